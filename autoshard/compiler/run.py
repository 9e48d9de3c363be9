"""The step on devices that are there: seconds and peak memory, measured.

The step runs on zeros, which take as long as other numbers. Its inputs are made anew for every run,
since it may donate them, outside of the time that is taken.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Any

from autoshard import compat
from autoshard.lower.numbers.keys import keys_like
from autoshard.lower.spmd import Lowered


@dataclass(frozen=True, slots=True)
class Measured:
    """What a run took.

    Attributes:
      step_seconds: the median of the runs.
      runs: seconds of each.
      peak_bytes: most that the first device held since the process began; None where it does not
        say.
      device_kind: what ran.
    """

    step_seconds: float
    runs: tuple[float, ...]
    peak_bytes: int | None
    device_kind: str


def measure(lowered: Lowered, *, warm_ups: int = 2, repeats: int = 7) -> Measured:
    """Run a lowered step on its mesh's devices.

    Args:
      lowered: on a mesh of devices that are there.
      warm_ups: runs before the first that counts.
      repeats: runs of which the median is taken.
    """
    import jax

    step = lowered.functional()
    program = lowered.program
    structs = [compat.shape_struct(var.aval) for var in program.jaxpr.jaxpr.invars]
    shapes = jax.tree.unflatten(program.in_tree, structs)
    zeros = jax.jit(lambda: jax.tree.map(_zeros, shapes), out_shardings=lowered.in_shardings)
    runs = []
    for _ in range(warm_ups + repeats):
        arguments = jax.block_until_ready(zeros())
        start = time.perf_counter()
        jax.block_until_ready(step(*arguments))
        runs.append(time.perf_counter() - start)
    device = lowered.mesh.devices.flat[0]
    stats = device.memory_stats() or {}
    counted = tuple(runs[warm_ups:])
    peak = stats.get("peak_bytes_in_use")
    return Measured(statistics.median(counted), counted, peak, device.device_kind)


def _zeros(struct: Any) -> Any:
    import jax
    import jax.numpy as jnp

    if jnp.issubdtype(struct.dtype, jax.dtypes.prng_key):
        return keys_like(struct, 0)
    return jnp.zeros(struct.shape, struct.dtype)
