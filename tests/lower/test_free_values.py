"""Values of constants and iotas alone, where they cross the edge of a loop."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from autoshard.lower import spmd
from autoshard.lower.verify import verify
from autoshard.machine.load import load
from tests.helpers import MESHES, best_plan, case, concrete_like, random_plan

BATCH, LENGTH, LAYERS = 16, 256, 3


def step(weights, x):
    """Masked attention in a scan; the mask depends on nothing, so that JAX takes it out of it."""

    def layer(x, weight):
        scores = jnp.einsum("bqd,dc,bkc->bqk", x, weight, x)
        asking = jax.lax.broadcasted_iota(jnp.int32, scores.shape[1:], 0)
        seen = jax.lax.broadcasted_iota(jnp.int32, scores.shape[1:], 1) <= asking
        shares = jax.nn.softmax(jnp.where(seen, scores, -1e9))
        return jnp.einsum("bqk,bkd->bqd", shares, x), None

    return jax.lax.scan(jax.checkpoint(layer), x, weights)[0]


def loss(weights, x):
    return jnp.mean(jnp.square(step(weights, x)))


ARGS = (
    jax.ShapeDtypeStruct((LAYERS, 8, 8), jnp.float32),
    jax.ShapeDtypeStruct((BATCH, LENGTH, 8), jnp.float32),
)


def test_a_mask_of_the_whole_batch_is_nowhere():
    given = case(jax.grad(loss), *ARGS, mesh=MESHES["8"])
    crossing = [
        value
        for op in given.program.ops
        if op.primitive == "enter"
        for value in (given.program.values[i] for i in op.inputs if i >= 0)
        if value.free and value.shape == (BATCH, LENGTH, LENGTH)
    ]
    assert crossing  # else the case shows nothing
    text = spmd.lower(best_plan(given), jax.grad(loss), *ARGS).mlir_text()
    held_whole = [
        line
        for line in text.splitlines()
        if "sharding_constraint" in line
        and "[{}, {}, {}]" in line
        and f"tensor<{BATCH}x{LENGTH}x{LENGTH}x" in line
    ]
    assert held_whole == []


@pytest.mark.parametrize("mesh", MESHES)
def test_the_numbers_are_right(mesh):
    given = case(jax.grad(loss), *ARGS, mesh=MESHES[mesh])
    for plan in (best_plan(given), random_plan(given, 0)):
        assert verify(plan, jax.grad(loss), *ARGS, concrete=concrete_like(ARGS))


def scanned_constant(x):
    """A slice of a scanned iota cannot be computed anew without its index."""

    def body(x, row):
        return x * row, None

    return jax.lax.scan(body, x, jnp.arange(4 * 16.0).reshape(4, 16))[0]


def test_a_slice_of_a_scanned_constant():
    args = (jax.ShapeDtypeStruct((8, 16), jnp.float32),)
    given = case(scanned_constant, *args, mesh=MESHES["2x4"])
    for seed in range(3):
        plan = random_plan(given, seed)
        assert verify(plan, scanned_constant, *args, concrete=concrete_like(args))


def nested(x):
    """A mask that crosses two edges."""

    def inner(x, _):
        seen = jax.lax.broadcasted_iota(jnp.int32, x.shape, 1) % 2 == 0
        return jnp.where(seen, 2 * x, x), None

    def outer(x, _):
        return jax.lax.scan(inner, x, None, length=2)[0], None

    return jax.lax.scan(outer, x, None, length=2)[0]


def test_nested_loops():
    args = (jax.ShapeDtypeStruct((8, 16), jnp.float32),)
    given = case(nested, *args, mesh=MESHES["2x4"])
    for seed in range(3):
        plan = random_plan(given, seed)
        assert verify(plan, nested, *args, concrete=concrete_like(args))
    x = np.arange(128.0, dtype=np.float32).reshape(8, 16)
    assert np.allclose(nested(x)[:, 0], 16 * x[:, 0])


def in_batch(weights, x):
    """Each row is its own class: the diagonal is looked up by indices that are joined of iotas."""
    hidden = jnp.tanh(x @ weights[0])
    scores = (hidden @ weights[1]) @ (jnp.sin(hidden) @ weights[1]).T
    return -jnp.mean(jnp.diagonal(jax.nn.log_softmax(scores)))


def test_indices_of_iotas_split_nothing_that_the_plan_does_not():
    """They are kept for the backward pass, in a layout that costs nothing, and split no lookup."""
    shapes = ((512, 512), (512, 128)), (64, 512)
    weights, x = jax.tree.map(
        lambda shape: jax.ShapeDtypeStruct(shape, jnp.float32),
        shapes,
        is_leaf=lambda one: isinstance(one[0], int),
    )
    function = jax.value_and_grad(in_batch)
    given = case(function, weights, x, mesh=MESHES["8"], machine=load("h100-8"))
    program, plan = given.program, best_plan(given)
    (lookup,) = (op for op in program.ops if op.primitive == "gather")
    kept = [
        plan.decisions.stored[op.outputs[0]]
        for op in program.ops
        if op.primitive == "join" and program.values[op.outputs[0]].shape == (64, 2)
    ]
    assert plan.decisions.assignment[lookup.index] == (-1,)
    assert kept == [(0,)]  # else the case shows nothing
    assert verify(plan, function, weights, x)


def at_points(x):
    """Points of a grid, in a loop and outside of one: pieces of 31 and 1 are joined."""
    grid = jnp.linspace(-1.0, 1.0, 32)
    joined = jnp.concatenate([2 * jnp.arange(31.0), jnp.ones(1)])
    return jax.lax.scan(lambda c, _: (jnp.sin(c * grid), None), x * joined, None, length=3)[0]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_pieces_that_do_not_divide_are_joined_on_every_device(seed):
    args = (jax.ShapeDtypeStruct((64, 32), jnp.float32),)
    given = case(at_points, *args, mesh={"x": 2, "y": 4})
    found = verify(random_plan(given, seed), at_points, *args, concrete=concrete_like(args))
    assert found, str(found)
