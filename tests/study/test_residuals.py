"""What timelines teach about prices."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoshard.compiler.hlo.timeline import Timeline
from autoshard.cost.corrections import NONE, Corrections
from autoshard.cost.step_prices import step_prices
from autoshard.plan.evaluate import evaluate
from autoshard.study.residuals import Observation, compiled_parts, fit, predicted_parts
from tests.cost.test_corrections import ARGS, step
from tests.helpers import case, random_plan, toy_machine

TRUTH = Corrections({("first", "matrix"): 4.0, ("second", "matrix"): 1.5}, 2.0, 0.9, 1.8)
MACHINE = replace(toy_machine(), overlap=0.5)


def observation(seed, truth=TRUTH):
    """A plan, and the timeline that it would have if `truth` were the prices."""
    given = case(step, *ARGS, mesh={"x": 8}, machine=MACHINE)
    plain = given.built.prices
    plan = random_plan(given, seed)
    true = step_prices(given.program, plain.dataflow, MACHINE, (8,), truth)
    estimate = evaluate(true, plan.decisions, ("x",)).estimate
    parts = {
        (f"jit(step)/{scope}", unit == "matrix"): seconds
        for (scope, unit), seconds in predicted_parts(true, plan).items()
    }
    timeline = Timeline(estimate.step_seconds, estimate.compute_seconds, parts=parts)
    return Observation(plan, plain, timeline)


def error(corrections, one):
    prices = step_prices(
        one.prices.program, one.prices.dataflow, MACHINE, one.prices.mesh_shape, corrections
    )
    found = evaluate(prices, one.plan.decisions, ("x",)).estimate.step_seconds
    return abs(found / one.timeline.seconds - 1)


def test_nothing_is_corrected_without_observations():
    assert fit([]) is NONE


def test_factors_are_found_again():
    corrections = fit([observation(seed) for seed in range(6)])
    for part in [("first", "matrix"), ("second", "matrix")]:
        assert corrections.factors[part] == pytest.approx(TRUTH.factors[part], rel=0.1)


def test_steps_are_predicted_that_were_not_seen():
    corrections = fit([observation(seed) for seed in range(6)])
    unseen = [observation(seed) for seed in range(6, 12)]
    before = [error(NONE, one) for one in unseen]
    after = [error(corrections, one) for one in unseen]
    assert max(after) < 0.1 < min(before)


def test_one_plan_teaches_its_own_compute_exactly():
    one = observation(0)
    corrections = fit([one])
    prices = step_prices(
        one.prices.program, one.prices.dataflow, MACHINE, one.prices.mesh_shape, corrections
    )
    compute = evaluate(prices, one.plan.decisions, ("x",)).estimate.compute_seconds
    assert compute == pytest.approx(one.timeline.compute_seconds)


def test_prices_that_are_right_stay():
    corrections = fit([observation(seed, NONE) for seed in range(4)])
    assert all(factor == pytest.approx(1.0) for factor in corrections.factors.values())
    assert corrections.hidden == pytest.approx(0.5)
    assert corrections.waited == pytest.approx(1.0)


def test_time_of_no_known_part_is_spread_over_all():
    timeline = Timeline(4.0, 4.0, parts={("first", True): 3.0, ("elsewhere", False): 1.0})
    parts = compiled_parts(timeline, {("first", "matrix"): 1.0, ("second", "matrix"): 1.0})
    assert parts == {("first", "matrix"): 4.0}
    strange = Timeline(4.0, 4.0, parts={("elsewhere", False): 4.0})
    parts = compiled_parts(strange, {("first", "matrix"): 1.0, ("second", "matrix"): 3.0})
    assert parts == {("first", "matrix"): 1.0, ("second", "matrix"): 3.0}


def test_corrected_prices_are_refused():
    one = observation(0)
    corrected = replace(one.prices, corrections=TRUTH)
    with pytest.raises(ValueError, match="plain"):
        fit([replace(one, prices=corrected)])
