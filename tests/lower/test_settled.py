"""Partial sums that are scattered inside of what JAX makes of one op are one reduce-scatter."""

from __future__ import annotations

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from autoshard.lower import lower
from autoshard.lower.verify import numeric_differences, verify_collectives
from autoshard.program.dim_order import possible_orders
from tests.helpers import case, random_plan

F32, I32 = jnp.float32, jnp.int32
S = jax.ShapeDtypeStruct
TABLE, TOKENS = S((64, 32), F32), S((16, 8), I32)


def take(mode):
    def run(table, tokens):
        return jnp.take(table, tokens, axis=0, mode=mode)

    return run


def columns(table, tokens):
    return jnp.take(table.T.astype(jnp.bfloat16), tokens[0], axis=1)


def gradient_of_segments(table, tokens):
    def loss(t):
        return jnp.sum(jax.ops.segment_sum(t, tokens[:, 0].repeat(4), 16) ** 2)

    return jax.grad(loss)(table)


GATHERS = {
    "fill": take("fill"),
    "default": take(None),
    "clip": take("clip"),
    "columns": columns,
    "gradient_of_segments": gradient_of_segments,
}


@functools.cache
def problem(name):
    return case(GATHERS[name], TABLE, TOKENS, mesh={"x": 2, "y": 4})


def scatters(plan):
    return [move for move in plan.moves if move.kind == "reduce_scatter"]


@pytest.mark.parametrize("name", GATHERS)
def test_gathers_that_are_scattered_are_as_planned(name):
    plans = [random_plan(problem(name), seed) for seed in range(12)]
    chosen = [plan for plan in plans if scatters(plan)][:3]
    assert chosen
    for plan in chosen:
        found = verify_collectives(lower(plan, GATHERS[name], TABLE, TOKENS))
        assert found.agrees, str(found)


@pytest.mark.parametrize("name", ["fill", "default", "columns"])
def test_what_lies_outside_is_filled_in_as_without_a_plan(name):
    dice = np.random.default_rng(0)
    table = jnp.asarray(10 * dice.normal(size=TABLE.shape), F32)
    tokens = jnp.asarray(dice.integers(-80, 80, TOKENS.shape), I32)
    plan = next(
        plan for plan in (random_plan(problem(name), seed) for seed in range(12)) if scatters(plan)
    )
    lowered = lower(plan, GATHERS[name], TABLE, TOKENS)
    assert np.isnan(jax.jit(GATHERS[name])(table, tokens)).any()
    np.testing.assert_allclose(
        lowered.jit()(table, tokens), jax.jit(GATHERS[name])(table, tokens), rtol=1e-6
    )


# -- products in another order ---------------------------------------------------------------------


def contracted(numbers):
    def run(a, b):
        return jnp.tanh(jax.lax.dot_general(a, b, numbers))

    return run


PRODUCTS = {
    "batched": ((((2,), (2,)), ((0,), (0,))), S((4, 8, 32), F32), S((4, 16, 32), F32)),
    "two_free": ((((2,), (1,)), ((), ())), S((8, 16, 32), F32), S((8, 32), F32)),
    "two_contracted": ((((1, 2), (1, 2)), ((), ())), S((16, 4, 16), F32), S((8, 4, 16), F32)),
    "three_free": ((((0,), (2,)), ((), ())), S((32, 8, 4), F32), S((8, 4, 32), F32)),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_in_another_order_are_scattered_before_they_are_put_in_order(name):
    numbers, a, b = PRODUCTS[name]
    fn = contracted(numbers)
    given = case(fn, a, b, mesh={"x": 2, "y": 4})
    (product,) = (op for op in given.program.ops if op.primitive == "dot_general")
    orders = list(possible_orders(product.rule))[::-1]  # the last one exchanges the operands
    plans = [plan for plan in (random_plan(given, seed) for seed in range(20)) if scatters(plan)]
    assert plans
    for plan, order in zip(plans, orders[:3], strict=False):
        lowered = lower(replace(plan, product_orders={product.index: order}), fn, a, b)
        found = verify_collectives(lowered)
        assert found.agrees, str(found)
    key = jax.random.key(0)
    arrays = jax.random.normal(key, a.shape), jax.random.normal(key, b.shape)
    assert numeric_differences(lowered, fn, arrays) == []
