"""Seconds of a collective over any set of mesh axes, from the wires it runs on.

Every collective costs ``latency + bytes / rate``: the alpha-beta model. With ``n`` chips in a
group, ``s`` the bytes of one shard and ``V = n s`` the bytes of the gathered result:

* **all-gather, one level.** Each chip receives ``s (n - 1)`` bytes. A switch delivers them at the
  chip's bandwidth ``B``; a ring at twice, a line at once the link's (``W``), because a chip has one
  link per direction; several torus dimensions at the sum of theirs:

      switch  s (n-1) / B  + ceil(log2 n) latency
      torus   s (n-1) / sum_i W_i  +  (hops to the farthest chip) hop

* **all-gather, nested levels.** From the outermost level in: level ``l`` receives what the levels
  outside it have gathered, ``s * prod_{k>l} n_k * (n_l - 1)`` bytes. Levels that work as a pipeline
  take the time of the slowest one, levels that take turns the sum; `Switch.pipelined` is where a
  network lies between the two. Every chip of a host drives its share of the host's network.
  Before the first message a group starts (`Switch.start_seconds`), once, at the slowest level.
* **reduce-scatter** is an all-gather run backwards, **all-reduce** is both, exactly; on levels
  that reduce (`Switch.reduces`) it is one collective, of the bytes of both and the latency of one.
  Over all chips of a torus of several dimensions XLA:TPU has no reduce-scatter that uses all links:
  it makes an all-reduce and a slice (4x4, 8x8, and all of three dimensions), or goes round one ring
  (2x4, 4x8), which takes as long. Without a compiler it is a reduce-scatter there, too. Over chips
  of several slices it is an all-reduce, whose last step gathers within the slices; and where these
  are tori of three rings, a gather over all of one is an all-reduce of shards among zeros.
* **all-to-all** of ``V`` local bytes: half of everything crosses the middle of a torus dimension,
  ``V floor(n^2/4)/n`` bytes per line, over one link (line) or two (ring); a switch passes
  ``V (n-1)/n`` at the chip's bandwidth. Dimensions and levels work at the same time.
* **collective-permute** moves all ``V`` bytes of a chip. A transposition of axes loads the middle
  of a torus as an all-to-all does; and nothing is faster than one path.
* **all-slice** reads and writes the slice in device memory: nothing is free.

Pieces of one torus dimension with others between them are narrow places that these formulas do not
see well. So two laws are made to hold besides: gathering a shard over ``A + B`` contains gathering
it over ``A``, and can be done by gathering over ``A`` and then over ``B`` (but where XLA:TPU makes
a sum among zeros of it):

    time(A, s)  <=  time(A + B, s)  <=  time(A, s) + time(B, |A| s)

Sources: Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in
MPICH", IJHPCA 2005 (alpha-beta, logarithmic steps at full bandwidth); Chan, Heimlich, Purkayastha,
van de Geijn, "Collective communication: theory, practice, and experience", CCPE 2007 (meshes and
tori); https://jax-ml.github.io/scaling-book/sharding/ (rings, lines, several torus axes,
all-to-all) and https://jax-ml.github.io/scaling-book/gpus/ (nested levels).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, overload

import numpy as np

from autoshard.cost import several_slices
from autoshard.cost.placement import Piece, place, runs
from autoshard.machine.file import MachineError
from autoshard.machine.machine import Machine
from autoshard.machine.network import Level, Switch, Torus
from autoshard.units import counted

Kind = Literal[
    "all_gather",
    "reduce_scatter",
    "all_reduce",
    "all_to_all",
    "collective_permute",
    "all_slice",
]
KINDS: tuple[Kind, ...] = (
    "all_gather",
    "reduce_scatter",
    "all_reduce",
    "all_to_all",
    "collective_permute",
    "all_slice",
)

AROUND_ONE_RING = "tpu.scatters-around-oblongs"
"""A habit of XLA:TPU."""


@dataclass(frozen=True, slots=True)
class Rate:
    """The two numbers of the alpha-beta model: seconds, and seconds per byte."""

    latency_seconds: float
    seconds_per_byte: float


_FREE = Rate(0.0, 0.0)


@dataclass(frozen=True, slots=True, repr=False)
class MeshTopology:
    """A logical mesh laid on a machine, and the price of its collectives.

    Attributes:
      machine: the cluster.
      mesh_shape: sizes of the mesh axes, major to minor; their product is `machine.chips`.
      pieces: per mesh axis, the parts of physical dimensions that it occupies.

    Raises:
      MachineError: the mesh has not as many devices as the machine has chips.
    """

    machine: Machine
    mesh_shape: tuple[int, ...]
    pieces: tuple[tuple[Piece, ...], ...] = field(init=False, repr=False, compare=False)
    _rates: dict[tuple[str, tuple[int, ...]], Rate] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        shape = tuple(int(size) for size in self.mesh_shape)
        object.__setattr__(self, "mesh_shape", shape)
        if math.prod(shape) != self.machine.chips or min(shape, default=1) < 1:
            raise MachineError(
                f"mesh {'x'.join(map(str, shape)) or '()'} has "
                f"{counted(math.prod(shape), 'device')} but "
                f"{self.machine.name} has {counted(self.machine.chips, 'chip')}; choose "
                "sizes whose product "
                f"is {self.machine.chips}, or load a machine of {counted(math.prod(shape), 'chip')}"
            )
        object.__setattr__(self, "pieces", place(self.machine, shape))

    def __repr__(self) -> str:
        return f"MeshTopology({'x'.join(map(str, self.mesh_shape))} on {self.machine.name})"

    def group_size(self, axes: Iterable[int]) -> int:
        """Return how many chips take part in one collective over these axes."""
        return math.prod(self.mesh_shape[axis] for axis in set(axes))

    @overload
    def collective_seconds(self, kind: Kind, axes: Sequence[int], bytes: float) -> float: ...
    @overload
    def collective_seconds(
        self, kind: Kind, axes: Sequence[int], bytes: np.ndarray
    ) -> np.ndarray: ...
    def collective_seconds(
        self, kind: Kind, axes: Sequence[int], bytes: float | np.ndarray
    ) -> float | np.ndarray:
        """Return the seconds of one collective, every group along `axes` running it at once.

        Args:
          kind: one of `KINDS`.
          axes: the mesh axes that it runs over, in any order. Over no axis, or over axes of size 1
            only, nothing happens and the time is 0.
          bytes: per chip; an array gives an array. all_gather: of the result; reduce_scatter: of
            the operand; all_reduce, all_to_all, collective_permute: of either; all_slice: of the
            result.

        Raises:
          ValueError: no such kind or axis.
        """
        rate = self.rate(kind, axes)
        return rate.latency_seconds + rate.seconds_per_byte * bytes

    def rate(self, kind: Kind, axes: Sequence[int]) -> Rate:
        """Return latency and seconds per byte of a collective; see `collective_seconds`."""
        key = (kind, tuple(axes))
        rate = self._rates.get(key)
        if rate is None:
            rate = self._rates[key] = self._find_rate(kind, key[1])
        return rate

    def shift_rate(self, axes: Sequence[int]) -> Rate:
        """Return the rate of a permutation by which each device sends to the next along `axes`.

        All go the same way: over one link of a torus, whose wires back bring what has to return.
        """
        key = "shift", tuple(axes)
        if key not in self._rates:
            group = tuple(sorted({axis for axis in axes if self.mesh_shape[axis] > 1}))
            rate = _shift(self, group) if group else _FREE
            latency = self.machine.chip.launch_seconds + self._start(group) + rate.latency_seconds
            self._rates[key] = Rate(latency, rate.seconds_per_byte) if group else _FREE
        return self._rates[key]

    def _find_rate(self, kind: Kind, axes: tuple[int, ...]) -> Rate:
        if kind not in KINDS:
            raise ValueError(f"there is no collective {kind!r}; use one of {', '.join(KINDS)}")
        unknown = [axis for axis in axes if not 0 <= axis < len(self.mesh_shape)]
        if unknown:
            raise ValueError(
                f"{kind} over axes {axes}: no axis {unknown} in the mesh {self.mesh_shape}; "
                f"axes are numbered 0 to {len(self.mesh_shape) - 1}"
            )
        group = tuple(sorted({axis for axis in axes if self.mesh_shape[axis] > 1}))
        if not group:
            return _FREE
        if group != axes:
            return self.rate(kind, group)
        chip = self.machine.chip
        if kind == "all_slice":
            return Rate(chip.launch_seconds, 2 / chip.memory_rate)
        if kind == "reduce_scatter" and self._is_summed_whole(group):
            return self.rate("all_reduce", group)
        if kind == "all_gather" and several_slices.is_padded(self, group):
            return self._padded(group)
        if kind in ("all_gather", "reduce_scatter"):
            return self._each_way(group)
        if kind == "all_reduce":
            crosses = several_slices.crosses(self, group)
            half = self.rate("all_gather", group) if crosses else self._each_way(group)
            kernels = 1 if self._reduces(group) else 2
            return Rate(kernels * half.latency_seconds, 2 * half.seconds_per_byte)
        pattern = self._bounded(kind, group)
        return Rate(chip.launch_seconds + pattern.latency_seconds, pattern.seconds_per_byte)

    def _each_way(self, group: tuple[int, ...]) -> Rate:
        """A gather of shards to so many bytes, or a scatter of them."""
        shard = self._bounded("gather", group)
        return Rate(
            self.machine.chip.launch_seconds + shard.latency_seconds,
            shard.seconds_per_byte / self.group_size(group),
        )

    def _padded(self, group: tuple[int, ...]) -> Rate:
        """A gather that is an all-reduce within slices, of shards among zeros that are written."""
        chip, rate = self.machine.chip, _gather(self, group, twice=True)
        latency = 2 * chip.launch_seconds + self._start(group) + rate.latency_seconds
        return Rate(latency, rate.seconds_per_byte / self.group_size(group) + 1 / chip.memory_rate)

    def _bounded(self, pattern: str, group: tuple[int, ...]) -> Rate:
        """Return the pattern's rate, held between those of the parts of the group.

        The bytes are those of a shard for "gather", of the local value otherwise: what stays the
        same when axes are added. By induction over the axes the two bounds never cross.
        """
        key = (f"bounded {pattern}", group)
        if key not in self._rates:
            rate = _RATES_OF[pattern](self, group)
            latency = self._start(group) + rate.latency_seconds
            slope = rate.seconds_per_byte
            if len(group) > 1:
                parts = [(axis, tuple(a for a in group if a != axis)) for axis in group]
                if pattern == "gather":
                    for axis, others in parts:
                        one = self._bounded(pattern, (axis,)).seconds_per_byte
                        rest = self._bounded(pattern, others).seconds_per_byte
                        slope = min(slope, one + self.mesh_shape[axis] * rest)
                        slope = min(slope, rest + self.group_size(others) * one)
                for _, others in parts:
                    least = self._bounded(pattern, others)
                    latency = max(latency, least.latency_seconds)
                    slope = max(slope, least.seconds_per_byte)
            self._rates[key] = Rate(latency, slope)
        return self._rates[key]

    def _reduces(self, group: tuple[int, ...]) -> bool:
        """Whether an all-reduce over the group is one kernel."""
        return all(isinstance(one, Switch) and one.reduces for one in self._crossed(group))

    def leaves_whole(self, axes: Iterable[int]) -> bool:
        """Whether a reduce-scatter over these axes is an all-reduce, cut by what reads the sum."""
        habit = self._scatter_habit(tuple(axes))
        return habit != AROUND_ONE_RING and self.machine.chip.compiler.has(habit)

    def _is_summed_whole(self, group: tuple[int, ...]) -> bool:
        """Whether a reduce-scatter over the group takes as long as an all-reduce."""
        own = self.machine.chip.compiler
        return own.denies("gpu.sums-are-scattered") or own.has(self._scatter_habit(group))

    def _scatter_habit(self, group: tuple[int, ...]) -> str:
        """What XLA:TPU does instead of a reduce-scatter over the group; empty if nothing."""
        if several_slices.crosses(self, group):
            return several_slices.NO_SCATTER
        lengths = self._whole_torus(group)
        if len(lengths) > 2:
            return "tpu.no-scatter-over-whole-cube"
        if len(set(lengths)) == 1:
            return "tpu.no-scatter-over-whole-square"
        return AROUND_ONE_RING if lengths else ""

    def _whole_torus(self, group: tuple[int, ...]) -> tuple[int, ...]:
        """The lengths of the torus if the group is all of it, it has several, and is not 2x2."""
        crossed = self._crossed(group)
        if len(crossed) != 1 or not isinstance(torus := crossed[0], Torus):
            return ()
        lengths = tuple(length for length in torus.dimensions if length > 1)
        several = len(lengths) > 1 and torus.chips > 4
        return lengths if several and self.group_size(group) == torus.chips else ()

    def _start(self, group: tuple[int, ...]) -> float:
        """Seconds before the first message of a group."""
        switches = (level for level in self._crossed(group) if isinstance(level, Switch))
        return max((level.start_seconds for level in switches), default=0.0)

    def _crossed(self, group: tuple[int, ...]) -> list[Level]:
        """The levels of the network that lie between devices of a group."""
        by_level = zip(self.machine.network, self._pieces_by_level(group), strict=True)
        return [level for level, pieces in by_level if any(one.length > 1 for one in pieces)]

    def _pieces_by_level(self, group: tuple[int, ...]) -> list[list[Piece]]:
        levels: list[list[Piece]] = [[] for _ in self.machine.network]
        for axis in group:
            for piece in self.pieces[axis]:
                levels[piece.level].append(piece)
        return levels


def _gather(topology: MeshTopology, group: tuple[int, ...], *, twice: bool = False) -> Rate:
    """The rate of a gather, by bytes of a shard; if `twice`, with all-reduces within slices."""
    latency, pipelined, gathered = 0.0, 1.0, 1
    times: list[float] = []
    levels = list(zip(topology.machine.network, topology._pieces_by_level(group), strict=True))
    for level, pieces in reversed(levels):
        size = math.prod(piece.length for piece in pieces)
        if size == 1:
            continue
        if isinstance(level, Switch):
            bandwidth = _switch_bandwidth(level, size)
            latency += math.ceil(math.log2(size)) * level.latency_seconds
        else:
            bandwidth = 0.0
            for spans in runs(pieces, level).values():
                bandwidth += min(span.links for span in spans) * _link(level)
                latency += sum(span.hops for span in spans) * level.hop_seconds
        again = 2 if twice and isinstance(level, Torus) else 1
        times.append(again * gathered * (size - 1) / bandwidth)
        gathered *= size
        if isinstance(level, Switch):
            pipelined = min(pipelined, level.pipelined)
    slowest = max(times)
    return Rate(latency, slowest + (1.0 - pipelined) * (sum(times) - slowest))


def _all_to_all(topology: MeshTopology, group: tuple[int, ...]) -> Rate:
    latency, slowest = 0.0, 0.0
    for level, pieces in zip(
        topology.machine.network, topology._pieces_by_level(group), strict=True
    ):
        size = math.prod(piece.length for piece in pieces)
        if size == 1:
            continue
        if isinstance(level, Switch):
            slowest = max(slowest, (size - 1) / size / _switch_bandwidth(level, size))
            latency += math.ceil(math.log2(size)) * level.latency_seconds
            continue
        for spans in runs(pieces, level).values():
            crossing = sum(span.length**2 // 4 / span.length / span.links for span in spans)
            slowest = max(slowest, crossing / _link(level))
            latency += sum(span.hops for span in spans) * level.hop_seconds
    return Rate(latency, slowest)


def _permute(topology: MeshTopology, group: tuple[int, ...]) -> Rate:
    shift, exchange = _shift(topology, group), _all_to_all(topology, group)
    return Rate(shift.latency_seconds, max(shift.seconds_per_byte, exchange.seconds_per_byte))


def _shift(topology: MeshTopology, group: tuple[int, ...]) -> Rate:
    latency, slowest = 0.0, 0.0
    for level, pieces in zip(
        topology.machine.network, topology._pieces_by_level(group), strict=True
    ):
        if not pieces:
            continue
        if isinstance(level, Switch):
            slowest = max(slowest, 1 / _switch_bandwidth(level, 2))
            latency += level.latency_seconds
            continue
        for spans in runs(pieces, level).values():
            slowest = max(slowest, max(span.stride for span in spans) / _link(level))
            latency += sum(span.hops for span in spans) * level.hop_seconds
    return Rate(latency, slowest)


_RATES_OF = {"gather": _gather, "all_to_all": _all_to_all, "collective_permute": _permute}


def _switch_bandwidth(level: Switch, size: int) -> float:
    return level.efficiency * min(level.chip_bandwidth, (size - 1) * level.pair_bandwidth)


def _link(level: Torus) -> float:
    return level.efficiency * level.link_bandwidth
