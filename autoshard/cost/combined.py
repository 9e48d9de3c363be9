"""How much a compiler runs as one collective, and what each part of it pays of the latency.

Of k parts that may run as one, each pays a k-th; but no more than a number of bytes is combined, so
that a part that takes a share b of them leaves room for that much less:

    paid = 1 - (1 - 1/k) (1 - min(b, 1))

Together they pay for 1 + (k - 1) b collectives where all are as large. Without a compiler nothing
is combined.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from autoshard.cost.collective import Kind, MeshTopology
from autoshard.machine.chip import Chip

if TYPE_CHECKING:
    from autoshard.program.strategies import Strategies

GPU_BYTES = 30 * 2**20
"""What the results of collectives that are run as one take at most; the default of
`xla_gpu_all_gather_combine_threshold_bytes` and of its sisters."""

Settlement = tuple[Kind, tuple[int, ...], NDArray[np.int64], tuple[int, ...]]
Combining = tuple[tuple[str, ...], float]
COMBINING: dict[str, tuple[Combining, ...]] = {
    "all_gather": ((("gpu.gathers-combined", "gpu.gathers-combined-to-30-mib"), GPU_BYTES),),
    "all_reduce": (
        (("gpu.sums-combined", "gpu.sums-combined-to-30-mib"), GPU_BYTES),
        (("tpu.sums-are-combined",), math.inf),
    ),
    "reduce_scatter": ((("gpu.scatters-combined", "gpu.sums-combined-to-30-mib"), GPU_BYTES),),
}
"""By kind of collective, what a compiler must do to run several as one: all habits of a group; and
how many bytes of results on one device it combines at most."""


def combined_bytes(chip: Chip, kind: str) -> float:
    """At most how many bytes of results on one device the chip's compiler runs as one collective.

    0 where it runs each collective of this kind by itself.
    """
    has = chip.compiler.has
    found = (size for habits, size in COMBINING.get(kind, ()) if all(map(has, habits)))
    return max(found, default=0.0)


def latency_share(
    companions: int, size: NDArray[np.float64], chip: Chip, kind: str
) -> NDArray[np.float64]:
    """The part of a collective's latency that one of those pays that may run as one.

    Args:
      companions: how many may, with this one.
      size: bytes of its result on one device.
      chip: it runs on.
      kind: of the collectives.
    """
    most = combined_bytes(chip, kind)
    if companions == 1 or not most:
        return np.ones(np.shape(size))
    room = 1.0 - np.minimum(size / most, 1.0)
    return 1.0 - (1.0 - 1.0 / companions) * room


def settled_seconds(
    topology: MeshTopology,
    kind: Kind,
    axes: tuple[int, ...],
    size: NDArray[np.float64],
    stored: NDArray[np.int64],
    together: int,
    shares: Collection[str],
) -> NDArray[np.float64]:
    """Seconds of settling partial sums of local `size` into the layouts `stored`; `[n]`.

    What is combined into one collective shares its latency. HLO's reduce-scatter has one dimension:
    one that scatters onto several is made by an all-reduce and a slice, and is priced as that.

    Args:
      topology: the mesh.
      kind: "all_reduce" or "reduce_scatter".
      axes: over which the sums are partial.
      size: local bytes of the partial sums, `[n]`.
      stored: layouts of the settled sums, `[n, mesh axes]`.
      together: how many sums may be settled by one collective.
      shares: the kinds of collectives that pay their share of the latency; others pay all of it.
    """
    chip = topology.machine.chip

    def combined(kind: Kind) -> NDArray[np.float64]:
        rate = topology.rate(kind, axes)
        parts = 1 if kind == "all_reduce" else topology.group_size(axes)
        share = latency_share(together if kind in shares else 1, size / parts, chip, kind)
        return share * rate.latency_seconds + rate.seconds_per_byte * size

    one_dimension = len(axes) == 1 or chip.compiler.denies("tpu.no-scatter-onto-two-dimensions")
    if kind == "all_reduce" or one_dimension:
        return combined(kind)
    onto = stored[:, list(axes)]
    whole = (onto != onto[:, :1]).any(axis=1)
    return np.where(whole, combined("all_reduce"), combined(kind))


def settlements(strategies: Strategies) -> Iterator[Settlement]:
    """(kind, axes, rows, before) of every group of strategies that is settled alike.

    Of a sum that is settled in steps `before` are the axes over which it was scattered before the
    all-reduce, which sends one of the parts.
    """
    # Of what is stored unreduced nothing is settled.
    due = strategies.reduced & ~strategies.pending[:, None]
    onto = strategies.onto
    for pattern, rows in _alike(onto):
        yield "reduce_scatter", pattern, rows, ()
    count = onto.shape[1]
    for both, rows in _alike(np.concatenate([due & ~onto, onto], axis=1)):
        axes = tuple(axis for axis in both if axis < count)
        before = tuple(axis - count for axis in both if axis >= count)
        if axes:
            yield "all_reduce", axes, rows, before


def _alike(marks: NDArray[np.bool_]) -> Iterator[tuple[tuple[int, ...], NDArray[np.int64]]]:
    """The rows with any marks, by the columns that are marked."""
    patterns = marks @ (1 << np.arange(marks.shape[1]))
    for pattern in np.unique(patterns[patterns > 0]).tolist():
        columns = tuple(k for k in range(marks.shape[1]) if pattern >> k & 1)
        yield columns, np.flatnonzero(patterns == pattern)
