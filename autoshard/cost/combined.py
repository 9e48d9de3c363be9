"""How much a compiler runs as one collective, and what each part of it pays of the latency.

Of k parts that may run as one, each pays a k-th; but no more than a number of bytes is combined, so
that a part that takes a share b of them leaves room for that much less:

    paid = 1 - (1 - 1/k) (1 - min(b, 1))

Together they pay for 1 + (k - 1) b collectives where all are as large. Without a compiler nothing
is combined.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from autoshard.cost.collective import Kind, MeshTopology
from autoshard.machine.chip import Chip

GPU_BYTES = 30 * 2**20
"""What the results of collectives that are run as one take at most; the default of
`xla_gpu_all_gather_combine_threshold_bytes` and of its sisters."""
TPU_BYTES = 2**27
"""Likewise of what XLA:TPU sums: in compiled Llama-3 8B 117 and 8 MB, but not 117 and 17."""

COMBINING = {
    "all_gather": (("gpu.gathers-combined", "gpu.gathers-combined-to-30-mib"),),
    "all_reduce": (
        ("gpu.sums-combined", "gpu.sums-combined-to-30-mib"),
        ("tpu.sums-are-combined", "tpu.gradients-are-combined"),
    ),
    "reduce_scatter": (
        ("gpu.scatters-combined", "gpu.sums-combined-to-30-mib"),
        ("tpu.sums-are-combined", "tpu.scattered-gradients-are-combined"),
    ),
}
"""By kind of collective, what a compiler must do to run several as one: all habits of a group."""


def combines(chip: Chip, kind: str) -> bool:
    """Whether the chip's compiler runs several collectives of a kind as one."""
    has = chip.compiler.has
    return any(all(map(has, habits)) for habits in COMBINING.get(kind, ()))


def combined_bytes(chip: Chip) -> float:
    """At most how many bytes of results on one device are combined into one collective."""
    own = chip.compiler
    if own.has("tpu.large-sums-stay-apart"):
        return TPU_BYTES
    return math.inf if own.denies("tpu.large-sums-stay-apart") else GPU_BYTES


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
    if companions == 1 or not combines(chip, kind):
        return np.ones(np.shape(size))
    room = 1.0 - np.minimum(size / combined_bytes(chip), 1.0)
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

    What is combined into one collective shares its latency. Sums that are combined over several
    dimensions of a torus are priced as an all-reduce, of which each takes its part; XLA:TPU makes
    one over all of a square or a cube. HLO's reduce-scatter has one dimension: one that scatters
    onto several is made by an all-reduce and a slice, and is priced as that.

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
    own = chip.compiler

    def combined(kind: Kind) -> NDArray[np.float64]:
        rate = topology.rate(kind, axes)
        parts = 1 if kind == "all_reduce" else topology.group_size(axes)
        share = latency_share(together if kind in shares else 1, size / parts, chip, kind)
        return share * rate.latency_seconds + rate.seconds_per_byte * size

    several = together > 1 and topology.torus_dimensions(axes) > 1
    joins = several and own.has("tpu.scattered-gradients-whole-over-squares")
    if kind == "all_reduce" or (len(axes) == 1 and not joins):
        return combined(kind)
    whole = np.zeros(len(stored), dtype=bool)
    if not own.denies("tpu.no-scatter-onto-two-dimensions"):
        onto = stored[:, list(axes)]
        whole = (onto != onto[:, :1]).any(axis=1)
    if joins:
        whole = whole | (2 * size <= combined_bytes(chip))
    return np.where(whole, combined("all_reduce"), combined(kind))
