"""What a cluster can do: its chips, how they are wired, and how much of the peak is reached.

A **machine** is `n` equal chips and a network of nested levels, the innermost first:

    v5p-64          torus 4x4x4
    2xv5p-64        torus 4x4x4, then a switch of 2 slices (the data-center network)
    h100-64         switch of 8 (NVLink), then a switch of 8 hosts (InfiniBand)

The sizes of the levels multiply to `n`. Bandwidths are bytes per second that **one chip sends in
one direction** while all the others do the same: a host whose 8 chips share a 400 GB/s network card
has 50 GB/s per chip. A torus gives the figure of one link, of which a chip has two per dimension.
Every rate stands beside an `efficiency`, the fraction of it that programs reach; the product is
what the cost laws in `autoshard.cost` use.

`load` reads a preset by name, or a TOML file of the same form:

    family-chips    v5p-64, v5e-16, h100-8, gb200-nvl72-72    chips as JAX counts devices
    family-AxBxC    v5p-4x4x8                                 the torus, spelled out
    KxNAME          2xv5p-64                                  K slices over the slow network
    path/to/my.toml                                           with `chips` or `topology` in it

A TPU7x chip is two devices to JAX; there, "chip" means one such device.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from importlib import resources
from pathlib import Path
from types import MappingProxyType

from autoshard.machine.file import MachineError, MachineFile, SwitchRules, TorusRules, read
from autoshard.machine.network import Level, Network, Switch, Torus

__all__ = [
    "Chip",
    "Level",
    "Machine",
    "MachineError",
    "Network",
    "Range",
    "Switch",
    "Torus",
    "load",
    "parse",
    "presets",
    "submachine",
]


@dataclass(frozen=True, slots=True)
class Chip:
    """One accelerator, as JAX counts devices.

    Attributes:
      name: how its vendor calls it.
      peak_flops: FLOP/s of the matrix unit by dtype, dense, at JAX's default precision.
      vector_flops: FLOP/s of the units that do elementwise arithmetic in float32.
      memory_bytes: device memory that a program can address, bytes.
      memory_bandwidth: bytes/s between device memory and the chip.
      reserve_bytes: memory left to the runtime and to fragmentation, bytes.
      launch_seconds: fixed cost of one (fused) operation, seconds.
      matmul_efficiency, memory_efficiency: fractions of the peaks that programs reach.
      exponential_flops: what an exponential takes of the elementwise units, as FLOP of theirs;
        other functions are multiples of it, see `autoshard.program.flops.TRANSCENDENTAL`.
      transaction_bytes: the least that device memory moves for one element; what a transposition
        that jumps about pays for each. 0: transpositions are not priced.
      library_products: whether products are calls of a library, which reads whole arrays: slices
        of a stack are written for it first.
      hides_collectives: whether the compiler runs kernels in an order of its own for every plan, so
        that collectives run beside them, see `autoshard.xla.latency_hiding`.
      workspace_bytes: what one call of that library takes in memory besides its arrays, where
        plans are counted in the compiler's own order.
      vector_memory_bytes: of a memory beside the main one in which XLA keeps arrays, see
        `autoshard.xla.forecast.tpu_vector_memory`.
      lanes, sublanes: of the tiles in which arrays of two dimensions or more lie in its memory, see
        `autoshard.cost.tiling`; 1 where they lie element by element.
      heap_overhead: what a compiler's heap of temporaries takes beyond what is alive at once, as a
        share of that: gaps between buffers, and an order of its own.
    """

    name: str
    peak_flops: Mapping[str, float] = field(hash=False)
    vector_flops: float
    memory_bytes: float
    memory_bandwidth: float
    reserve_bytes: float
    launch_seconds: float
    matmul_efficiency: float
    memory_efficiency: float
    exponential_flops: float = 0.0
    transaction_bytes: float = 0.0
    library_products: bool = False
    heap_overhead: float = 0.0
    hides_collectives: bool = False
    workspace_bytes: float = 0.0
    vector_memory_bytes: float = 0.0
    lanes: int = 1
    sublanes: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "peak_flops", MappingProxyType(dict(self.peak_flops)))

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle and copy as a call of the constructor: read-only mappings have no pickle."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        values["peak_flops"] = dict(self.peak_flops)
        return Chip, tuple(values.values())

    @property
    def usable_bytes(self) -> float:
        """Memory that a plan may fill, in bytes."""
        return self.memory_bytes - self.reserve_bytes

    @property
    def counts_anew(self) -> bool:
        """Whether what a plan takes is counted once more as its compiler runs it.

        See `autoshard.xla.forecast.forecast`.
        """
        return self.hides_collectives or self.library_products or self.vector_memory_bytes > 0

    @property
    def runs_in_least_memory(self) -> bool:
        """Whether kernels run in the order of least memory, in loops, too.

        XLA does so on chips for which its latency-hiding scheduler does not run.
        """
        return not self.hides_collectives

    @property
    def memory_rate(self) -> float:
        """Bytes/s between device memory and the chip that programs reach."""
        return self.memory_bandwidth * self.memory_efficiency

    @property
    def exponential_bytes(self) -> float:
        """What memory could move while one exponential is computed, bytes."""
        return self.exponential_flops / self.vector_flops * self.memory_rate

    def matmul_flops(self, dtype: str) -> float:
        """Return the peak FLOP/s of the matrix unit for operands of a dtype.

        All 8-bit floats share the key ``float8``. A dtype that the matrix unit does not know
        (``int32``, ``complex64``) runs on the vector unit.
        """
        return self.peak_flops.get(self.rate_key(dtype), self.vector_flops)

    def rate_key(self, dtype: str) -> str:
        """The key of `peak_flops` for operands of a dtype; it may be absent."""
        key = str(dtype)
        if key not in self.peak_flops:
            key = re.sub(r"^float(8|4)_.*", r"float\1", re.sub(r"^uint", "int", key))
        return key

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.matmul_flops('bfloat16') / 1e12:,.0f} TFLOP/s bf16, "
            f"{self.memory_bytes / 2**30:,.0f} GiB at {self.memory_bandwidth / 1e9:,.0f} GB/s"
        )


@dataclass(frozen=True, slots=True)
class Range:
    """The values that a number of a machine may have, by its path (`autoshard.machine.numbers`)."""

    path: str
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Machine:
    """Equal chips and the nested levels of their network, innermost first.

    Attributes:
      name: the name under which it was loaded.
      family: preset or file it came from.
      chip: the accelerator.
      network: levels from the innermost; their sizes multiply to `chips`.
      overlap: fraction in [0, 1] of a collective's time that hides behind compute when nothing but
        its own inputs delays it.
      sources: what the numbers were read from.
      ranges: of the numbers that are known to lie between two values; the other fields have what
        they are taken for.
      dispatch_seconds: in which the controller of several meshes enqueues one program on this one.
    """

    name: str
    family: str
    chip: Chip
    network: Network
    overlap: float
    sources: tuple[str, ...] = field(default=(), compare=False)
    ranges: tuple[Range, ...] = field(default=(), compare=False)
    dispatch_seconds: float = 0.0

    def __post_init__(self) -> None:
        if not self.network:
            raise MachineError(f"machine {self.name!r} has no network level; give at least one")

    @property
    def chips(self) -> int:
        """Number of chips, as JAX counts devices."""
        return math.prod(level.chips for level in self.network)

    def __str__(self) -> str:
        levels = ", then ".join(map(str, self.network))
        return f"{self.name}: {self.chips} x {self.chip}; {levels}; overlap {self.overlap:g}"


def presets() -> tuple[str, ...]:
    """Return the families that ship with autoshard."""
    folder = resources.files("autoshard") / "machine" / "presets"
    return tuple(sorted(item.name[:-5] for item in folder.iterdir() if item.name.endswith(".toml")))


def load(name_or_path: str | Path, *, chips: int | None = None) -> Machine:
    """Return a machine by preset name, or from a TOML file of the presets' form.

    Args:
      name_or_path: see the module's grammar. A name that ends in ``.toml`` is a path.
      chips: for a file or a bare family, how many chips; overrides the file.

    Raises:
      MachineError: no such preset (near matches are proposed), a number of chips or a torus that
        the hardware does not come in, or a faulty file (every fault is listed).

    >>> print(load("v5p-64").network[0])
    ICI 4x4x4 (100 GB/s a link)
    >>> load("h100-64").chips
    64
    """
    text = str(name_or_path)
    if text.endswith(".toml"):
        path = Path(text)
        if not path.is_file():
            raise MachineError(f"no machine file {text!r}; give the path of a TOML file, or a name")
        return parse(path.read_text(encoding="utf-8"), where=text, chips=chips)
    slices, family, size = _parse(text)
    if chips is not None:
        size = str(chips)
    if family not in presets() or size is None:
        raise MachineError(_unknown(text, family))
    folder = resources.files("autoshard") / "machine" / "presets"
    toml = (folder / f"{family}.toml").read_text(encoding="utf-8")
    return _build(read(toml, where=f"{family}.toml"), text, size, slices=slices)


def parse(toml: str, *, where: str, chips: int | None = None) -> Machine:
    """Return the machine that the text of a machine file describes.

    Args:
      toml: the text.
      where: what to call it in an error.
      chips: how many chips; overrides the text.

    Raises:
      MachineError: as `load`.
    """
    file = read(toml, where=where)
    size = file.topology if chips is None else str(chips)
    if size is None:
        raise MachineError(
            f"{where}: it says neither `chips` nor `topology`; write one, or load it with chips="
        )
    return _build(file, file.name, size, slices=file.slices)


def submachine(machine: Machine, chips: int) -> Machine:
    """Return a part of a machine with fewer chips, inner levels filled first.

    A torus is cut along its major dimensions; a dimension that is cut loses its wrap-around.

    Raises:
      MachineError: the levels cannot be cut to that number.

    >>> print(submachine(load("v5p-64"), 16).network[0])
    ICI 1|x4x4 (100 GB/s a link)
    """
    levels: list[Level] = []
    left = chips
    for level in machine.network:
        if isinstance(level, Switch):
            size = math.gcd(left, level.size) if left % level.size else level.size
            levels.append(replace(level, size=size))
            left //= size
            continue
        sizes: list[int] = []
        for length in reversed(level.dimensions):
            sizes.insert(0, math.gcd(left, length))
            left //= sizes[0]
        kept = zip(sizes, level.dimensions, level.wraps, strict=True)
        wraps = tuple(wrap and size == length for size, length, wrap in kept)
        levels.append(replace(level, dimensions=tuple(sizes), wraps=wraps))
    if left != 1:
        shape = " then ".join(map(str, machine.network))
        raise MachineError(
            f"{machine.name} ({shape}) has no part of {chips} chips; take a divisor of its levels"
        )
    kept = [number for number, level in enumerate(levels) if level.chips > 1] or [0]
    return replace(
        machine,
        name=f"{machine.name}[{chips}]",
        network=tuple(levels[number] for number in kept),
        ranges=_moved(machine.ranges, kept),
    )


def _moved(ranges: Iterable[Range], kept: Sequence[int]) -> tuple[Range, ...]:
    """The ranges where only some levels of the network are left, by their numbers of before."""
    moved = {f"network[{before}]": f"network[{now}]" for now, before in enumerate(kept)}
    found = []
    for one in ranges:
        table, dot, key = one.path.partition(".")
        if not table.startswith("network"):
            found.append(one)
        elif table in moved:
            found.append(replace(one, path=f"{moved[table]}{dot}{key}"))
    return tuple(found)


def _parse(text: str) -> tuple[int, str, str | None]:
    match = re.fullmatch(r"(?:(\d+)x)?([a-z].*?)(?:-(\d+(?:x\d+)*))?", text.strip().lower())
    if match is None:
        return 1, text, None
    family = match[2].replace("tpu-", "")
    return int(match[1] or 1), {"tpu7x": "v7x"}.get(family, family), match[3]


def _unknown(text: str, family: str) -> str:
    known = presets()
    lines = [f"no machine {text!r}"]
    if family in known:
        lines.append(f"  how many chips? write for example {family}-64")
    near = difflib.get_close_matches(family, known, n=3, cutoff=0.5)
    if near and family not in known:
        lines.append(f"  did you mean {' or '.join(near)}?")
    lines.append(f"  presets, each with a number of chips: {', '.join(known)}")
    lines.append("  or give the path of a .toml file of the same form")
    return "\n".join(lines)


def _build(file: MachineFile, name: str, size: str, *, slices: int) -> Machine:
    chip = Chip(**file.chip)  # type: ignore[arg-type]
    topology = tuple(map(int, size.split("x"))) if "x" in size else None
    fixed = math.prod(
        rules.size for rules in file.levels if isinstance(rules, SwitchRules) and rules.size
    )
    has_torus = any(isinstance(rules, TorusRules) for rules in file.levels)
    if topology and not has_torus:
        raise MachineError(f"{name}: {file.name} has no torus to shape; give a number of chips")
    left = math.prod(topology) * fixed if topology else int(size)
    if left < 1 or slices < 1:
        raise MachineError(f"{name}: {slices} x {left} chips; a machine has at least one chip")
    network: list[Level] = []
    kept: list[int] = []
    for number, rules in enumerate(file.levels):
        if isinstance(rules, TorusRules):
            network.append(_torus(rules, left, topology, name=name))
            kept.append(number)
            left = 1
            continue
        if rules.size is None:
            units, left, slices = left * slices, 1, 1
        else:
            units = max(unit for unit in range(1, rules.size + 1) if left % unit == 0)
            if units < rules.size and units < left and 2 * units < rules.size:
                raise MachineError(
                    f"{name}: {left} chips do not spread evenly over {rules.name} units of "
                    f"{rules.size}; take a multiple of {rules.size}, or fewer than one unit"
                )
            left //= units
        if units > 1:
            network.append(_switch(rules, units))
            kept.append(number)
    if left * slices > 1:
        raise MachineError(f"{name}: no network of {file.name} joins {left * slices} such units")
    return Machine(
        name=name,
        family=file.name,
        chip=chip,
        network=tuple(network) or (_switch(_switch_rules(file), 1),),
        overlap=file.overlap,
        sources=file.sources,
        ranges=_moved((Range(*one) for one in file.ranges), kept),
        dispatch_seconds=file.dispatch_seconds,
    )


def _torus(rules: TorusRules, chips: int, topology: tuple[int, ...] | None, *, name: str) -> Torus:
    shape = topology or rules.standard_shape(chips)
    if shape is None or not rules.allows(shape):
        wanted = "x".join(map(str, topology)) if topology else f"{chips} chips"
        most = rules.maximum_chips or 2 * chips
        sizes = sorted(
            (count for count in range(1, min(4 * chips, most) + 1) if rules.standard_shape(count)),
            key=lambda count: abs(count - math.prod(topology or (chips,))),
        )
        near = ", ".join(
            f"{'x'.join(map(str, rules.standard_shape(count) or ()))} ({count})"
            for count in sorted(sizes[:3])
        )
        raise MachineError(
            f"{name}: the hardware does not come as {wanted} in {rules.rank} dimensions; "
            f"nearest: {near}"
        )
    return Torus(
        dimensions=shape,
        wraps=rules.ring_closures(shape),
        link_bandwidth=rules.link_bandwidth,
        hop_seconds=rules.hop_seconds,
        efficiency=rules.efficiency,
        name=rules.name,
    )


def _switch(rules: SwitchRules, units: int) -> Switch:
    return Switch(
        size=units,
        chip_bandwidth=rules.chip_bandwidth,
        latency_seconds=rules.latency_seconds,
        efficiency=rules.efficiency,
        pair_bandwidth=rules.pair_bandwidth,
        pipelined=rules.pipelined,
        start_seconds=rules.start_seconds,
        reduces=rules.reduces,
        name=rules.name,
    )


def _switch_rules(file: MachineFile) -> SwitchRules:
    return next(rules for rules in file.levels if isinstance(rules, SwitchRules))
