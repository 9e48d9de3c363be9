"""Products of which only the transpose is read, and what is said of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from autoshard.lower.spmd import lower
from autoshard.lower.turned import turned_products
from autoshard.plan.strategies_of import ChosenStrategies
from autoshard.program.trace import trace
from autoshard.search.search import search
from autoshard.xla import analyse
from tests.helpers import toy_machine

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
