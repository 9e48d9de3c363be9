"""Arguments of a step where its plan has them, before it runs.

A step that JAX traced for arrays on one device is traced and compiled again for those that it
returns, which lie on the plan's mesh: so the first call is given arrays on the mesh, too. An array
that stands twice among the arguments (averaged weights that begin as the weights) cannot be donated
and read, or be donated twice: all places but the first get a copy.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

STAY = (Tracer, jax.Ref)


def placed(leaves: Sequence[Any], shardings: Sequence[Any], donated: Collection[int]) -> list[Any]:
    """Return leaves of arguments as a plan lays them out.

    Args:
      leaves: arrays of JAX or NumPy, and numbers; `jax.Ref`s and what is traced stay as they are.
      shardings: of each leaf.
      donated: positions of those whose buffers the step may overwrite.
    """
    made, moved = _apart(leaves, donated), []
    for position, (leaf, sharding) in enumerate(zip(made, shardings, strict=True)):
        if isinstance(leaf, STAY):
            continue
        known = isinstance(leaf, jax.Array)
        if not (known and leaf.committed and leaf.sharding == sharding):
            moved.append(position)
    if not moved:
        return made
    new = jax.device_put([made[k] for k in moved], [shardings[k] for k in moved])
    for position, leaf in zip(moved, new, strict=True):
        made[position] = leaf
    return made


def _apart(leaves: Sequence[Any], donated: Collection[int]) -> list[Any]:
    """Leaves of which no donated array stands twice."""
    made = list(leaves)
    if len(set(map(id, made))) == len(made):
        return made
    overwritten, seen = {id(leaves[position]) for position in donated}, set()
    for position, leaf in enumerate(leaves):
        twice = id(leaf) in seen and id(leaf) in overwritten
        if twice and isinstance(leaf, jax.Array) and not isinstance(leaf, STAY):
            made[position] = jnp.copy(leaf)
        seen.add(id(leaf))
    return made
