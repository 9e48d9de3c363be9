"""Collectives as engines make them: kernels of their own, and no library call.

Of `B` bytes on each of `n` chips that send `W` bytes/s, with a fixed time `f` of a kernel that
meets all others once, a sum takes

    in one shot    f + (n - 1) B / W               each reads the whole of all others
    in two         2 f + 2 (n - 1) / n  B / W      a part of each is summed and gathered

and engines take the shorter one; a gather takes `f + (n - 1) / n B / W`. Measured (github.com):

    H100, 2 chips, 0.5 MB                            7 us    vllm-project/vllm, pull 24111
    4 chips, 0.5, 1, 1.5 MB, in one shot     10, 14, 19 us    vllm-project/vllm, pull 24532
    4 chips, 2, 3, 4 MB, by symmetric memory 21, 23, 28 us    the same
    H100, largest, 2 to 8 chips     365 to 370 of 450 GB/s    NVIDIA/nccl, issue 1455
    A100, 2 chips, 512 B                           11.9 us    sgl-project/sglang, pull 2688

by which `f` is 5.6 us (0.5 MB among 2) and `W` 0.82 of a chip's bandwidth. The seven points are met
to within 8 %. Chips of which no such table is known have what an H100 has.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from autoshard.machine.machine import Machine
from autoshard.machine.network import Switch
from autoshard.plan.records import Move

FIXED_SECONDS = 5.6e-6
FIXED_OF: Mapping[str, float] = {"A100 SXM 80GB": 11.9e-6}
"""By the name of the chip, where it is another one."""
REACHED = 0.82


def fixed_seconds(machine: Machine) -> float:
    """Of a kernel that meets all other chips of a host once."""
    return FIXED_OF.get(machine.chip.name, FIXED_SECONDS)


def with_engine_collectives(machine: Machine) -> Machine:
    """The machine on whose hosts collectives are an engine's: sums at least as fast as it makes
    them, see `move_seconds`."""
    inner = machine.network[0]
    if not isinstance(inner, Switch):
        return machine
    start = max(fixed_seconds(machine) - machine.chip.launch_seconds, 0.0)
    own = replace(
        inner,
        start_seconds=start,
        latency_seconds=0.0,
        efficiency=REACHED,
        pair_bandwidth=math.inf,
        reduces=True,
    )
    return replace(machine, network=(own, *machine.network[1:]))


def all_reduce_seconds(machine: Machine, ranks: int, bytes: float) -> float:
    """Seconds of a sum of `bytes` on each of `ranks` chips of one host.

    Raises:
      ValueError: the chips are not on one switch.

    >>> from autoshard.machine.load import load
    >>> f"{all_reduce_seconds(load('h100-8'), 4, 2**20) * 1e6:.0f} us"
    '14 us'
    """
    inner = machine.network[0]
    if not isinstance(inner, Switch) or ranks > inner.size:
        raise ValueError(f"{ranks} chips of {machine.name} are not on one switch")
    rate = REACHED * inner.chip_bandwidth
    fixed = fixed_seconds(machine)
    two = 2 * fixed + 2 * (ranks - 1) / ranks * bytes / rate
    return min(fixed + (ranks - 1) * bytes / rate, two)


def move_seconds(move: Move, mesh: Mapping[str, int], machine: Machine) -> float:
    """Seconds of all runs of a planned collective on a machine `with_engine_collectives`."""
    inner = machine.network[0]
    ranks = math.prod(mesh[axis] for axis in move.axes)
    if move.kind != "all_reduce" or not isinstance(inner, Switch) or ranks > inner.size:
        return move.seconds
    return move.count * all_reduce_seconds(machine, ranks, move.bytes)
