"""What JAX traced, with all that is opened, merged and cut before it is laid out flat."""

from __future__ import annotations

from typing import Any

from autoshard import compat
from autoshard.program.as_run.calls import move_one_by_one, run_calls
from autoshard.program.as_run.equal import merge_equal
from autoshard.program.as_run.loops import plain_loops
from autoshard.program.shard_maps.in_place import run_shard_maps
from autoshard.program.shard_maps.vmapped import reduce_dimensions


def as_planned(closed: Any) -> Any:
    """The closed jaxpr that is planned, of one in primitives of `jax.lax`."""
    mapped = run_calls(run_shard_maps(run_calls(compat.without_refs(closed))))
    return plain_loops(merge_equal(move_one_by_one(reduce_dimensions(mapped))))
