"""What XLA is told of a plan besides its defaults.

The flags that a plan for a GPU rests on, as its machine names them
(`autoshard.machine.compiler.FLAGS`), as far as the installed jaxlib has them. And a limit of
memory.

XLA:GPU's scheduler and its rematerialisation have one that is 80 % of the device's memory less
arguments and results, times a factor that can be set. Beyond it they run nothing beside kernels any
more, and compute again what fits. They take what lies on the host for bytes of the device, too.
Llama-3-8B on eight H100s, 36 GiB of each on the host, compiles to 3.084 s a step, of which 0.619 s
are waited, and with a limit that has room for the host's bytes to 2.542 s, of which 0.099 s are.
Llama-3-70B on 64 H100s, its products saved, takes 73.4 of 74.0 GiB: 6.137 s, of which 3.426 s are
waited, and with a limit that has room for that 2.846 s and 0.248 s (JAX 0.12.0.1).

And to merge no products of one array, where that moves more than it saves
(`autoshard.lower.facts.merged_products`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from autoshard import compat
from autoshard.lower.facts.merged_products import merging_loses
from autoshard.machine.compiler import FLAGS
from autoshard.plan.fits import needed_bytes
from autoshard.plan.plan import Plan
from autoshard.program.trace import Program

SHARE = 0.8
"""Of a device's memory, what XLA:GPU's limit is of: xla/service/gpu/gpu_hlo_schedule.cc."""
USUAL = 95
"""The factor by default, in percent: xla_gpu_memory_limit_slop_factor."""
_MERGED = "xla_gpu_dot_merger_threshold_mb"


def compiler_options(
    plan: Plan, program: Program, arguments: Iterable[tuple[Any, Any]]
) -> dict[str, bool | int | str]:
    """Options of a plan for XLA:GPU, by its flags and by what memory it needs; none for others.

    Args:
      plan: the plan.
      program: the step that it is of.
      arguments: shapes of the step's arguments, each with its sharding.
    """
    if not plan.belief.startswith("xla:gpu"):
        return {}
    told = told_by(plan.flags)
    if merging_loses(program, plan.decisions, plan.mesh.sizes):
        told[_MERGED] = 0
    if math.isinf(plan.memory_limit):
        return told
    given = sum(
        math.prod(sharding.shard_shape(one.shape)) * one.dtype.itemsize
        for one, sharding in arguments
        if sharding.memory_kind in (None, "device")
    )
    host = plan.estimate.host_bytes
    usual = USUAL / 100.0 * _limit(plan.memory_limit, given)
    if not host and needed_bytes(plan.estimate) - given <= usual:
        return told
    room = plan.memory_limit + host if host else plan.memory_limit - given
    return told | with_room(plan.memory_limit, given, room)


def with_room(memory_limit: float, given: float, room: float) -> dict[str, bool | int | str]:
    """What XLA:GPU is told for its limit to have room for so many bytes.

    Args:
      memory_limit: of a device.
      given: bytes of arguments and results, which its limit leaves out.
      room: bytes.
    """
    factor = 100.0 * room / _limit(memory_limit, given)
    return {"xla_gpu_memory_limit_slop_factor": max(USUAL, math.ceil(factor))}


def _limit(memory_limit: float, given: float) -> float:
    """XLA:GPU's own limit of bytes."""
    return max(SHARE * memory_limit - given, (1 - SHARE) * memory_limit)


def told_by(flags: str) -> dict[str, bool | int | str]:
    """Options of a set of flags of XLA:GPU, as far as the installed jaxlib has them."""
    return compat.known_flags(FLAGS.get(("xla:gpu", flags), {}))
