"""What XLA is told of a plan besides its defaults.

XLA:GPU's scheduler and its rematerialisation have a limit of memory, and take what lies on the host
for bytes of the device. With tens of gigabytes there they run nothing beside kernels any more, and
compute again what fits: Llama-3-8B on eight H100s, 36 GiB of each on the host, compiles to 3.084 s
a step, of which 0.619 s are waited, and with a limit that has room for the host's bytes to 2.542 s,
of which 0.099 s are (JAX 0.12.0.1). The limit is 80 % of the device's memory less arguments and
results, times a factor that can be set.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from autoshard.plan.plan import Plan

SHARE = 0.8
"""Of a device's memory, what XLA:GPU's limit is of: xla/service/gpu/gpu_hlo_schedule.cc."""
USUAL = 95
"""The factor by default, in percent: xla_gpu_memory_limit_slop_factor."""


def compiler_options(plan: Plan, arguments: Iterable[tuple[Any, Any]]) -> dict[str, int]:
    """Options of a plan for XLA:GPU that has arrays on the host; none for others.

    Args:
      plan: the plan.
      arguments: shapes of the step's arguments, each with its sharding.
    """
    if not plan.estimate.host_bytes or not plan.belief.startswith("xla:gpu"):
        return {}
    given = sum(
        math.prod(sharding.shard_shape(one.shape)) * one.dtype.itemsize
        for one, sharding in arguments
        if sharding.memory_kind in (None, "device")
    )
    limit = max(SHARE * plan.memory_limit - given, (1 - SHARE) * plan.memory_limit)
    factor = 100.0 * (plan.memory_limit + plan.estimate.host_bytes) / limit
    return {"xla_gpu_memory_limit_slop_factor": max(USUAL, math.ceil(factor))}
