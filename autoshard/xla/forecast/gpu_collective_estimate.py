"""Reproduce XLA:GPU's own estimate of a collective between hosts.

XLA schedules kernels by these seconds, however long the collective really takes. Each step of a
ring takes a round trip, the preparation of its chunks, and the transfer of one card's share of the
bytes:

    ((share / rate + chunks * preparation + trip) * (devices - 1) / cards) * rounds

The time to read and write main memory is added. XLA derives the number of `devices` of a group from
the number of groups, as if each group had an equal part of every host's cards. Where the groups do
not divide the cards, XLA assumes 5 ms. The rate, the trip and the start are the machine parameters
that `autoshard.compiler.target` passes to XLA. The preparation of a chunk is XLA's own constant.

Source: `xla/service/gpu/model/sol_gpu_cost_model.cc` and `sol_latency_estimator.cc`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from autoshard.cost.collective import MeshTopology
from autoshard.machine.compiler import told_microseconds
from autoshard.machine.network import Switch
from autoshard.xla.forecast.planned_collectives import Collectives

UNKNOWN_SECONDS = 5e-3
"""Estimate of a collective whose groups XLA cannot model."""
CHUNK_BYTES = 4 << 20
CHUNK_SECONDS = 0.45 * 13.34e-6
B200_CHUNK_SECONDS = 0.45 * 4.45e-6
"""Seconds to prepare a chunk, by the chip's name. XLA has no setting that makes this zero."""
HEADERS = 1.025
"""Bytes on the wire per byte of payload."""
ROUNDS = {"all_reduce": 2}
PASSES = {"all_gather": 3, "reduce_scatter": 3}
"""How often the larger of operand and result passes through main memory; 2 for other kinds."""


ESTIMATED = {
    "all_slice": "gpu.gathers-between-hosts-reckoned",
    "all_gather": "gpu.gathers-between-hosts-reckoned",
    "reduce_scatter": "gpu.gathers-between-hosts-reckoned",
    "all_reduce": "gpu.sums-between-hosts-reckoned",
}
"""For kinds of collectives, the habit by which XLA:GPU uses this estimate."""


class CollectiveEstimate(NamedTuple):
    """XLA's estimate of a collective, and the part of it that does not depend on the size."""

    seconds: float
    fixed: float


def between_hosts(
    topology: MeshTopology, kind: str, axes: Sequence[int], size: float
) -> CollectiveEstimate | None:
    """Return XLA:GPU's estimate of a collective over mesh axes.

    Returns None where XLA:GPU does not estimate this kind this way, and within a host.

    Args:
      topology: two levels of switches; the inner one is a host.
      kind: the kind of collective, as in `autoshard.cost.collective`.
      axes: the mesh axes it runs over.
      size: bytes per device of the larger of operand and result.

    >>> from autoshard.machine import load
    >>> cluster = MeshTopology(load("h100-64"), (64,))
    >>> round(1e6 * between_hosts(cluster, "all_gather", (0,), 2**31).seconds)
    8712
    """
    network = topology.machine.network
    if len(network) != 2:
        return None
    host, outer = network[0].chips, network[1]
    pieces = [piece for axis in axes for piece in topology.pieces[axis]]
    inside, hosts = (
        math.prod(piece.length for piece in pieces if piece.level == level) for level in (0, 1)
    )
    has = topology.machine.chip.compiler.has
    estimated = kind in ESTIMATED and has(ESTIMATED[kind])
    if hosts == 1 or not isinstance(outer, Switch) or not estimated:
        return None
    groups = topology.machine.chips // (inside * hosts)
    reached = hosts if inside == host else inside * hosts
    if host % groups:
        known = not has("gpu.strange-groups-unknown")
        return None if known else CollectiveEstimate(UNKNOWN_SECONDS, UNKNOWN_SECONDS)
    members = reached * host // groups
    share, times = size / members, ROUNDS.get(kind, 1) * (members - 1) * reached / members
    chip = topology.machine.chip
    rate = outer.efficiency * outer.chip_bandwidth / HEADERS
    prepared = B200_CHUNK_SECONDS if chip.name in ("B200", "B300") else CHUNK_SECONDS
    trip = 1e-6 * told_microseconds(outer.latency_seconds)
    start = 1e-6 * told_microseconds(chip.launch_seconds)
    each = share / rate + math.ceil(share / CHUNK_BYTES) * prepared + trip
    memory = PASSES.get(kind, 2) * size / chip.memory_bandwidth
    return CollectiveEstimate(start + times * each + memory, start + times * (prepared + trip))


def estimate(topology: MeshTopology, found: Collectives) -> CollectiveEstimate | None:
    """Return the estimate of collectives in sequence; None where XLA:GPU has none for one."""
    parts = list[CollectiveEstimate]()
    for kind, axes in found.kinds:
        shares = topology.group_size(axes) if kind == "reduce_scatter" else 1
        one = between_hosts(topology, kind, axes, shares * found.bytes)
        if one is None:
            return None
        parts.append(one)
    return CollectiveEstimate(sum(one.seconds for one in parts), sum(one.fixed for one in parts))
