"""Functions with constraints on a mesh, and what Shardy moves for them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from autoshard.lower.collectives import explicit_collectives
from autoshard.lower.compare import normalise

MESH = AbstractMesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)


def sharding(*spec):
    return NamedSharding(MESH, PartitionSpec(*spec))


def put(value, *spec):
    return jax.lax.with_sharding_constraint(value, sharding(*spec))


def array(shape, *spec, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding(*spec))


def lower(function, *arguments):
    return jax.jit(function).trace(*arguments).lower(lowering_platforms=("tpu",))


def moves(function, *arguments, **options):
    """(kind, axes, bytes, count) of all that moves data, reductions and slices joined."""
    found = normalise(explicit_collectives(lower(function, *arguments), **options))
    return [
        (one.kind, ",".join(one.axes), one.bytes, one.count)
        for one in found
        if one.kind != "all_slice"
    ]


X = array((16, 32))
W = array((32, 64))

STACK = array((6, 32, 32), None, None, "y")
STATE = array((16, 32), "x", None)


def loop(*, entry=None, first=None, last=None, stacked=None):
    def run(weights, state):
        if entry:
            state = put(state, *entry)

        def body(state, weight):
            if first:
                state = put(state, *first)
            state = jnp.tanh(jnp.dot(state, put(weight, None, "y")))
            if last:
                state = put(state, *last)
            result = jnp.sin(state)
            return state, put(result, *stacked) if stacked else result

        return jax.lax.scan(body, state, weights)

    return run
