"""The peak in the compiler's own order of a plan: what it must be, and by hand what moves it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from autoshard.program import trace
from autoshard.scheduled import scheduled_bytes
from autoshard.search import search
from tests.helpers import case, hiding, random_plan, toy_machine
from tests.random_programs import random_program


def looped(seed: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A random program, three times in a loop; its arguments are what the loop reads."""
    fn, args, _ = random_program(seed)

    def step(*args: Any) -> Any:
        def body(carry: Any, _: Any) -> tuple[Any, Any]:
            return carry + 1.0, fn(*args)

        return jax.lax.scan(body, jnp.zeros(()), length=3)

    return step, args


@pytest.mark.parametrize("seed", range(12))
def test_any_plan_of_any_program_takes_what_its_arguments_take_at_least(seed: int) -> None:
    step, args = looped(seed)
    given = case(step, *args, mesh={"x": 2, "y": 2}, machine=hiding(4))
    plan, prices = random_plan(given, seed), given.built.prices
    found = scheduled_bytes(prices, plan.decisions)
    assert found is not None
    assert found == plan.estimate.scheduled_bytes
    arguments = sum(
        float(prices.local_bytes(value, np.array(layout)))
        for value in given.program.inputs
        if (layout := plan.decisions.stored[value]) is not None
    )
    # No more lies anywhere than each value, its copy, and what either is made of and by.
    everything = sum(value.bytes for value in given.program.values)
    assert arguments - 1 <= found <= given.program.constant_bytes + 4 * everything


@pytest.mark.parametrize("seed", range(6))
def test_a_plan_without_collectives_runs_in_the_order_that_the_solver_counts_in(seed: int) -> None:
    step, args = looped(seed)
    plan = search(trace(step, *args), hiding(1), mesh={"x": 1}, time_limit=10.0)
    assert plan.estimate.scheduled_bytes == plan.estimate.peak_bytes


def test_compilers_that_hide_nothing_and_steps_without_loops_have_one_order() -> None:
    (step, args), (fn, plain, options) = looped(0), random_program(0)
    for program, machine in (
        (trace(step, *args), toy_machine(2)),
        (trace(fn, *plain, **options), hiding(2)),
    ):
        plan = search(program, machine, mesh={"x": 2}, time_limit=10.0)
        assert plan.estimate.scheduled_bytes is None
        assert plan.estimate.expected_bytes == plan.estimate.peak_bytes


def test_gathers_of_several_weights_run_as_one_and_lie_in_memory_together() -> None:
    # Two weights that are gathered for a product each: begun together, both are there at once.
    def step(x: Any, first: Any, second: Any) -> Any:
        count, _ = jax.lax.scan(lambda n, _: (n + 1.0, None), jnp.zeros(()), length=3)
        return jnp.tanh(x @ first) @ second, count

    array = jax.ShapeDtypeStruct((256, 256), jnp.float32)
    plan = search(
        trace(step, array, array, array),
        hiding(4),
        mesh={"x": 4},
        requirements=[
            "pin x [x, None]",
            "pin first [x, None]",
            "pin second [x, None]",
            "pin result[0] [x, None]",
        ],
        time_limit=10.0,
    )
    assert sum(move.kind == "all_gather" for move in plan.moves) == 2
    part = 256 * 256 * 4 // 4
    # The arguments, one gathered weight, what is between the products, and the result:
    assert round(plan.estimate.peak_bytes / part) == 3 + 4 + 1 + 1
    # The arguments, both gathered weights, and what is between the products:
    assert round(plan.estimate.expected_bytes / part) == 3 + 4 + 4 + 1
