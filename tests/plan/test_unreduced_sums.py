"""Terms that wait, against brute force: every plan of small sums, priced by the evaluator."""

from __future__ import annotations

from math import prod

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from autoshard.plan.consistency import InconsistentPlanError
from autoshard.plan.evaluate import evaluate
from autoshard.program.layout import UNREDUCED
from autoshard.search.search import search
from tests.helpers import case, toy_machine
from tests.random_programs import all_plans, prices_of


def two(a, b, c, d):
    return a @ b + c @ d


def three(a, b, c, d):
    return a @ b + c @ d + a @ d


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


CASES = {
    "two terms": (two, (f32(2, 4), f32(4, 3), f32(2, 8), f32(8, 3)), {"x": 2}),
    "two terms, two axes": (two, (f32(3, 4), f32(4, 3), f32(3, 4), f32(4, 3)), {"x": 2, "y": 2}),
    "three terms": (three, (f32(5, 3), f32(3, 5), f32(5, 3), f32(3, 5)), {"x": 3}),
}


@pytest.mark.parametrize("name", CASES)
def test_every_plan_costs_what_the_evaluator_says_and_the_search_finds_the_best(name):
    fn, args, mesh = CASES[name]
    given = case(
        fn, *args, mesh=mesh, machine=toy_machine(prod(mesh.values())), fold=False, join_sums=True
    )
    plans = all_plans(given.built.problem, 400_000)
    assert plans is not None
    seconds, peaks = prices_of(given.built.problem, plans)
    dice = np.random.default_rng(0)
    waiting = 0
    sample = {int(seconds.argmin()), *dice.choice(len(plans), 60).tolist()}
    for number in sorted(sample):
        decisions = given.built.decode(plans[number].tolist())
        estimate = evaluate(given.built.prices, decisions, given.mesh.names).estimate
        assert estimate.step_seconds == pytest.approx(seconds[number], rel=1e-9)
        assert estimate.peak_bytes == peaks[number] + given.program.constant_bytes
        waiting += any(layout and UNREDUCED in layout for layout in decisions.stored)
    assert waiting
    found = search(
        given.program,
        given.built.prices.machine,
        mesh=mesh,
        gap=0.0,
        baselines=False,
        fold=False,
        join_sums=True,
    )
    assert found.estimate.step_seconds == pytest.approx(seconds.min(), rel=1e-9)
    assert found.proof.status == "optimal"


def test_the_evaluator_refuses_what_no_sum_explains():
    fn, args, mesh = CASES["two terms"]
    given = case(fn, *args, mesh=mesh, machine=toy_machine(2))
    decisions = given.built.decode([0] * len(given.built.problem.nodes))
    stored = list(decisions.stored)
    stored[given.program.outputs[0]] = (UNREDUCED,)
    product = next(op for op in given.program.ops if op.primitive == "dot_general").outputs[0]
    stored[product] = (UNREDUCED,)
    wrong = type(decisions)(tuple(stored), decisions.copy, decisions.mode, decisions.assignment)
    with pytest.raises(InconsistentPlanError) as error:
        evaluate(given.built.prices, wrong, given.mesh.names)
    assert "is unreduced, but is not a term of a sum" in str(error.value)
    assert "is settled over some of its axes only" in str(error.value)
