"""Values of which nothing need be said: products read transposed, and what reshapes enclose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from autoshard.lower.implied import between_reshapes, turned_products
from autoshard.lower.spmd import lower
from autoshard.lower.verify import numeric_differences, verify_collectives
from autoshard.plan.strategies_of import ChosenStrategies
from autoshard.program.trace import trace
from autoshard.search.search import search
from autoshard.xla import analyse
from tests.helpers import LONG, MESHES, best_plan, case, concrete_like, random_plan, toy_machine

SUMMED = ("x [None, x]", "y [x, None]", "result [None, None]")
ARRAY = jax.ShapeDtypeStruct((32, 32), jnp.float32)


def only_turned(x: Any, y: Any) -> Any:
    return jnp.tanh((x @ y).T)


def read_twice(x: Any, y: Any) -> Any:
    product = x @ y
    return jnp.tanh(product.T) + product


def not_turned(x: Any, y: Any) -> Any:
    return jnp.tanh(x @ y)


@pytest.mark.parametrize(
    ("step", "pins", "count"),
    [
        (only_turned, ("x [x, None]", "y [None, None]"), 1),  # the rows of the product
        (only_turned, SUMMED, 1),  # a sum
        (only_turned, ("x [None, x]", "y [x, None]", "result [x, None]"), 0),  # is scattered
        (read_twice, ("x [x, None]", "y [None, None]", "result [x, None]"), 0),
        (not_turned, ("x [x, None]", "y [None, None]"), 0),
    ],
)
def test_nothing_is_said_of_a_product_whose_transpose_says_it(
    step: Callable[..., Any], pins: tuple[str, ...], count: int
) -> None:
    program = trace(step, ARRAY, ARRAY)
    plan = search(
        program,
        toy_machine(4),
        mesh={"x": 4},
        requirements=[*(f"pin {one}" for one in pins), "limit all_gather count 0"],
        time_limit=10.0,
    )
    lowered = lower(plan, step, ARRAY, ARRAY)
    chosen = ChosenStrategies(plan.decisions, plan.mesh.sizes)
    found = turned_products(lowered.program, plan.decisions, chosen, analyse(program).readers)
    assert len(found) == count
    text = lowered.mlir_text()
    products = [line.split()[0] for line in text.splitlines() if "stablehlo.dot_general" in line]
    said = [
        line
        for line in text.splitlines()
        if "sdy.sharding_constraint" in line
        if line.split("sdy.sharding_constraint")[1].split()[0] in products
    ]
    assert bool(said) == (not count)


HEADS = jax.ShapeDtypeStruct((16, 2, 4, 8, 8), jnp.float32)


def softmax(x: Any, between: Callable[..., Any] = jnp.exp, last: tuple[int, ...] = ()) -> Any:
    """Attention whose softmax has another shape than its products, as MaxText's."""
    scores = jnp.einsum("bkgtd,bkgsd->bkgts", x, x)
    flat = scores.reshape(16, 8, 8, 8)
    shares = between(flat - flat.max(-1, keepdims=True))
    total = jnp.sum(shares.astype(jnp.float32), -1, keepdims=True)
    return jnp.einsum("bkgts,bkgsd->bkgtd", shares.reshape(last or scores.shape), x), total


def gradients(x: Any) -> Any:
    return jax.grad(lambda x: sum(jnp.sum(one**2) for one in softmax(x)))(x)


def sorted_between(x: Any) -> Any:
    return softmax(x, lambda flat: jnp.sort(flat, axis=2))


def turned_between(x: Any) -> Any:
    return softmax(x, lambda flat: jnp.exp(flat).swapaxes(2, 3))


def broadcast_alone(x: Any) -> Any:
    """Nothing but a sum over heads comes in, and a product of heads goes out."""
    flat = jnp.broadcast_to(jnp.sum(x, (1, 2)).reshape(16, 1, 8, 8), (16, 8, 8, 8))
    shares = jnp.exp(jnp.sin(flat)).reshape(HEADS.shape)
    return jnp.tanh(shares) * x, jnp.sum(jnp.exp(jnp.sin(flat)), (0, 1))


def enclosed(step: Callable[..., Any], seed: int | None = None) -> tuple[int, Any]:
    given = case(step, HEADS, mesh=MESHES["2x4"])
    plan = best_plan(given) if seed is None else random_plan(given, seed)
    chosen = ChosenStrategies(plan.decisions, plan.mesh.sizes)
    return len(between_reshapes(given.program, plan.decisions, chosen)), plan


@pytest.mark.parametrize(
    ("step", "count"),
    [(softmax, 3), (gradients, 13), (sorted_between, 0), (turned_between, 0), (broadcast_alone, 0)],
)
def test_what_elementwise_ops_connect_between_reshapes_is_left_to_propagation(
    step: Callable[..., Any], count: int
) -> None:
    found, plan = enclosed(step)
    assert found == count
    text = lower(plan, step, HEADS).mlir_text()
    said = [one for one in text.splitlines() if "sharding_constraint" in one]
    assert bool(count) != any("tensor<16x8x8x8x" in one for one in said)


PLANS = [
    pytest.param(step, seed, marks=() if (step, seed) == (gradients, 1) else LONG)
    for step in (softmax, gradients, turned_between, broadcast_alone)
    for seed in range(4)
]


@pytest.mark.parametrize(("step", "seed"), PLANS)
def test_any_plan_is_obeyed_without_them(step: Callable[..., Any], seed: int) -> None:
    _, plan = enclosed(step, seed)
    lowered = lower(plan, step, HEADS)
    comparison = verify_collectives(lowered)
    assert comparison.agrees, str(comparison)
    assert numeric_differences(lowered, step, concrete_like((HEADS,))) == []
