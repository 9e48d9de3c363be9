"""The peak in the compiler's own order of a plan: what it must be, and by hand what moves it."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from autoshard.machine import Machine
from autoshard.program import trace
from autoshard.scheduled import scheduled_bytes
from autoshard.search import search
from tests.helpers import case, random_plan, toy_machine
from tests.random_programs import random_program


def hiding(chips: int) -> Machine:
    machine = toy_machine(chips)
    return replace(machine, chip=replace(machine.chip, hides_collectives=True))


@pytest.mark.parametrize("seed", range(12))
def test_any_plan_of_any_program_takes_what_its_arguments_take_at_least(seed: int) -> None:
    fn, args, options = random_program(seed)
    given = case(fn, *args, mesh={"x": 2, "y": 2}, machine=hiding(4), **options)
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
    fn, args, options = random_program(seed)
    program = trace(fn, *args, **options)
    plan = search(program, hiding(1), mesh={"x": 1}, time_limit=10.0)
    assert plan.estimate.scheduled_bytes == plan.estimate.peak_bytes


def test_compilers_that_hide_nothing_have_no_order_of_their_own() -> None:
    fn, args, options = random_program(0)
    program = trace(fn, *args, **options)
    plan = search(program, toy_machine(2), mesh={"x": 2}, time_limit=10.0)
    assert plan.estimate.scheduled_bytes is None
    assert plan.estimate.expected_bytes == plan.estimate.peak_bytes


def test_gathers_of_several_weights_run_as_one_and_lie_in_memory_together() -> None:
    # Two weights that are gathered for a product each: begun together, both are there at once.
    def step(x, first, second):
        return jnp.tanh(x @ first) @ second

    array = jax.ShapeDtypeStruct((256, 256), jnp.float32)
    program = trace(step, array, array, array)
    plan = search(
        program,
        hiding(4),
        mesh={"x": 4},
        requirements=[
            "pin x [x, None]",
            "pin first [x, None]",
            "pin second [x, None]",
            "pin result [x, None]",
        ],
        time_limit=10.0,
    )
    gathers = [move for move in plan.moves if move.kind == "all_gather"]
    assert len(gathers) == 2
    part = 256 * 256 * 4 // 4
    # The arguments, one gathered weight, what is between the products, and the result:
    assert plan.estimate.peak_bytes == (3 + 4 + 1 + 1) * part
    # The arguments, both gathered weights, and what is between the products:
    assert plan.estimate.scheduled_bytes == (3 + 4 + 4 + 1) * part
