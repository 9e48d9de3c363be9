"""One op on whole arrays, of which each device runs its own part: a `jax.shard_map` over the mesh.

For ops of which XLA's partitioner makes something else than was planned, and those that no compiler
cuts (`autoshard.lower.partitioner`). Operands come in the layouts that the op reads, so nothing
moves. A result that is a partial sum gets a leading dimension of one term for each axis over which
it is summed, so that its sum over all devices is the sum over the leading dimensions
(`autoshard.lower.terms`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec

from autoshard.lower.parts.cut import Cut
from autoshard.program.layout import dimension_axes


def in_parts(
    run: Callable[..., Sequence[Any]], arrays: Sequence[Any], cut: Cut, mesh: Any
) -> list[Any]:
    """What `run` makes of the parts of `arrays`, as whole arrays.

    Args:
      run: from a device's parts of the operands to its parts of the results.
      arrays: the operands.
      cut: how both are cut.
      mesh: the mesh of the plan.

    Returns its results; of a sum over axes, its terms, with one leading dimension for each of
    `cut.partial`.
    """
    names = cut.devices.names

    def spec(rank: int, layout: Sequence[int]) -> list[Any]:
        axes = dimension_axes(rank, tuple(layout))
        return [tuple(names[axis] for axis in here) or None for here in axes]

    def body(*parts: Any) -> list[Any]:
        return [lax.expand_dims(part, range(len(cut.partial))) for part in run(*parts)]

    terms = [names[axis] for axis in cut.partial]
    return jax.shard_map(
        body,
        mesh=mesh,
        in_specs=tuple(
            PartitionSpec(*spec(np.ndim(array), layout))
            for array, layout in zip(arrays, cut.reads, strict=True)
        ),
        out_specs=[
            PartitionSpec(*terms, *spec(len(shape), layout))
            for shape, layout in zip(cut.result_shapes, cut.written, strict=True)
        ],
        check_vma=False,  # along axes that cut nothing of it, every device computes the same
    )(*arrays)
