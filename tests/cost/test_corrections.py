"""Factors on the prices of a program's parts."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
import pytest

from autoshard.cost.corrections import NONE, Corrections, part_of, scope_key
from autoshard.cost.step_prices import step_prices
from autoshard.plan.evaluate import evaluate
from autoshard.plan.written import WrittenCorrections
from autoshard.solve import evaluate as evaluate_problem
from autoshard.solve import solve
from autoshard.xla import analyse
from tests.helpers import case, random_plan, toy_machine


@pytest.mark.parametrize(
    ("scope", "key"),
    [
        ("", ""),
        ("jvp(layers)/attention/bkgqs,bskh->bqkgh", "jvp(layers)/attention"),
        ("jit(step)/jvp(layers)/while/body/closed_call/attention", "jvp(layers)/attention"),
        ("transpose(jvp(layer_12))/ffn", "transpose(jvp(layer_#))/ffn"),
    ],
)
def test_program_and_compiler_name_a_part_alike(scope, key):
    assert scope_key(scope) == key


def step(x, weights):
    with jax.named_scope("first"):
        x = jnp.tanh(x @ weights[0])
    with jax.named_scope("second"):
        return x @ weights[1]


ARGS = (
    jax.ShapeDtypeStruct((64, 32), jnp.float32),
    [jax.ShapeDtypeStruct((32, 16), jnp.float32), jax.ShapeDtypeStruct((16, 8), jnp.float32)],
)
CORRECTIONS = Corrections({("first", "matrix"): 3.0}, 0.5, 0.25, 2.0)


def test_they_survive_json():
    for one in (CORRECTIONS, NONE):
        written = json.dumps(one.to_json())
        assert msgspec.json.decode(written, type=WrittenCorrections).record() == one


def test_each_part_has_its_factor():
    given = case(step, *ARGS, mesh={"x": 8})
    plain = given.built.prices
    program = given.program
    corrected = step_prices(program, plain.dataflow, plain.machine, (8,), CORRECTIONS)
    seen = set()
    for op in program.ops:
        strategies = given.built.op_strategies[int(given.built.classes.op_class[op.index])]
        before = plain.compute_seconds(op, strategies)
        factor = 3.0 if part_of(op) == ("first", "matrix") else 0.5
        np.testing.assert_allclose(corrected.compute_seconds(op, strategies), factor * before)
        seen.add(part_of(op))
    assert {("first", "matrix"), ("second", "matrix"), ("first", "vector")} <= seen


def test_shares_of_collectives():
    program = case(step, *ARGS, mesh={"x": 8}).program
    prices = step_prices(program, analyse(program), toy_machine(), (8,), CORRECTIONS)
    assert prices.exposed(True) == 0.25
    assert prices.exposed(False) == 2.0


@pytest.mark.parametrize("seed", range(5))
def test_the_solver_and_the_evaluator_agree_under_corrections(seed):
    from autoshard.problem.build import build
    from autoshard.program.repeats import find_repeats

    given = case(step, *ARGS, mesh={"x": 2, "y": 4})
    program = given.program
    prices = step_prices(program, analyse(program), toy_machine(), (2, 4), CORRECTIONS)
    built = build(prices, find_repeats(program), limit=None)
    for decisions in (
        built.decode(solve(built.problem).solution.choices),
        random_plan(given, seed).decisions,
    ):
        choices = built.encode(decisions)
        assert choices is not None
        priced = evaluate(prices, decisions, ("x", "y")).estimate.step_seconds
        assert evaluate_problem(built.problem, choices).objective == pytest.approx(priced)


def test_a_step_takes_no_longer_than_with_nothing_hidden():
    """Though compiled plans waited longer than collectives are said to take."""
    slow = Corrections({}, 1.0, None, 1.5)
    longer = 0
    for seed in range(8):
        given = case(step, *ARGS, mesh={"x": 8})
        plain = given.built.prices
        plan = random_plan(given, seed)
        prices = step_prices(given.program, plain.dataflow, plain.machine, (8,), slow)
        found = evaluate(prices, plan.decisions, ("x",)).estimate
        assert found.step_seconds <= found.upper_seconds
        longer += found.step_seconds > plan.estimate.upper_seconds
    assert longer
