"""Ranges of a scale against the lines of all plans."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoshard.solve import Node, Outcome, Problem, ProblemError, Solution, Status, evaluate, solve
from autoshard.solve.limit_hit import LimitHit
from autoshard.solve.sensitivity.part import Part, part_cost, scaled
from autoshard.solve.sensitivity.scales import ScaleEnd, ScaleRange, scale_range
from tests.solve.helpers import random_problem

SHAPES = ("random", "tree", "grid", "clique")


def random_part(problem: Problem, seed: int, signed: bool) -> Part:
    """Some of the costs of some nodes and edges; a part of each."""
    random = np.random.default_rng(seed)

    def of(costs: np.ndarray) -> np.ndarray:
        if signed:
            return random.normal(size=costs.shape)
        share = random.random(costs.shape) * (random.random(costs.shape) < 0.5)
        return np.where(np.isfinite(costs), costs, 0.0) * share

    return Part(
        {i: of(node.costs) for i, node in enumerate(problem.nodes) if random.random() < 0.6},
        {i: of(edge.table) for i, edge in enumerate(problem.edges) if random.random() < 0.6},
    )


def lines_of(
    problem: Problem, part: Part, pins: dict[int, list[int]] | None = None
) -> dict[tuple[int, ...], tuple[float, float]]:
    """What every plan that is allowed costs without the part, and of the part."""
    rest = scaled(problem, part, 0.0)
    ranges = [(pins or {}).get(i, range(node.costs.size)) for i, node in enumerate(problem.nodes)]
    lines = {}
    for choices in itertools.product(*ranges):
        found = evaluate(rest, choices)
        if found.feasible:
            lines[choices] = found.objective, part_cost(problem, part, choices)
    return lines


def true_range(
    lines: dict[tuple[int, ...], tuple[float, float]], plan: tuple[int, ...]
) -> tuple[float, float]:
    """The scales s >= 0 at which no line is below the plan's: one half-line for every other."""
    fixed, part = lines[plan]
    low, high = 0.0, math.inf
    for other_fixed, other_part in lines.values():
        if other_part < part - 1e-12:
            high = min(high, (other_fixed - fixed) / (part - other_part))
        elif other_part > part + 1e-12:
            low = max(low, (other_fixed - fixed) / (part - other_part))
    return low, high


@given(
    seed=st.integers(0, 10**6),
    shape=st.sampled_from(SHAPES),
    tightness=st.sampled_from([None, 0.7, 1.0]),
    signed=st.booleans(),
    pinned=st.booleans(),
)
@settings(max_examples=120, deadline=None, derandomize=True)
def test_ranges_equal_brute_force(seed, shape, tightness, signed, pinned):
    forbidden = 0.1 * (seed % 3)
    problem = random_problem(seed, shape=shape, forbidden=forbidden, tightness=tightness)
    pins = {0: [seed % problem.nodes[0].costs.size]} if pinned else {}
    outcome = solve(problem, time_limit=20, pins=pins)
    if outcome.solution is None:
        return
    part = random_part(problem, seed, signed)
    found = scale_range(problem, outcome, part, pins=pins, time_limit=60)
    lines = lines_of(problem, part, pins)
    plan = outcome.solution.choices
    assert (found.fixed, found.part) == pytest.approx(lines[plan])
    assert found.slack == 0.0
    assert found.exact
    assert found.limit_hit is None
    low, high = true_range(lines, plan)
    assert found.low.scale == pytest.approx(low, rel=1e-6, abs=1e-6)
    assert found.high.scale == pytest.approx(high, rel=1e-6, abs=1e-6)
    for end, outside in ((found.low, 0.0), (found.high, math.inf)):
        if end.successor is None:
            assert end.scale == outside
            continue
        assert end.successor.choices in lines
        line = lines[end.successor.choices]
        assert line == pytest.approx((end.successor_fixed, end.successor_part))
        # The two cost the same at the end, and the successor less beyond.
        ours = found.fixed + end.scale * found.part
        assert line[0] + end.scale * line[1] == pytest.approx(ours, rel=1e-7, abs=1e-7)
        assert line[1] < found.part if math.isinf(outside) else line[1] > found.part


@given(
    seed=st.integers(0, 10**6),
    shape=st.sampled_from(SHAPES),
    worse=st.sampled_from([0.02, 0.2]),
)
@settings(max_examples=80, deadline=None, derandomize=True)
def test_a_plan_with_a_gap_is_followed_with_its_slack(seed, shape, worse):
    problem = random_problem(seed, shape=shape, forbidden=0.1, tightness=0.8)
    best = solve(problem, time_limit=20)
    if best.solution is None:
        return
    part = random_part(problem, seed, False)
    lines = lines_of(problem, part)
    objective = best.report.objective
    # The worst plan that is not worse than so much, with a bound that is below the best.
    slack = worse * (1.0 + abs(objective))
    plan = max(
        (own for own, (f, v) in lines.items() if f + v <= objective + slack),
        key=lambda own: sum(lines[own]),
    )
    cost = sum(lines[plan])
    report = replace(
        best.report, status=Status.FEASIBLE, objective=cost, bound=objective - 0.5 * slack
    )
    outcome = Outcome(Status.FEASIBLE, Solution(plan), report)
    found = scale_range(problem, outcome, part, time_limit=60)
    assert found.slack == pytest.approx(cost - report.bound)
    tolerance = 1e-7 * (1.0 + abs(objective))

    def behind(scale: float) -> float:
        """How much cheaper the cheapest plan is."""
        return found.fixed + scale * found.part - min(f + scale * v for f, v in lines.values())

    assert found.low.scale <= found.low.proven <= 1.0 <= found.high.proven <= found.high.scale
    for scale in np.linspace(found.low.proven, min(found.high.proven, 20.0), 20).tolist():
        assert behind(scale) <= found.slack + tolerance
    if found.low.successor is not None:
        assert behind(0.99 * found.low.scale) > found.slack - tolerance
    if found.high.successor is not None:
        assert behind(1.01 * found.high.scale) > found.slack - tolerance
    assert found.exact


def two_plans(problem_part: tuple[float, float], rest: tuple[float, float]) -> tuple[Problem, Part]:
    """One node with two choices that cost `rest`, and `problem_part` of what is scaled."""
    costs = np.array(rest) + np.array(problem_part)
    return Problem((Node("n", costs),)), Part({0: np.array(problem_part)})


def test_the_plan_that_takes_over_is_named_and_printed():
    # Four seconds on the link against nine elsewhere: worth it up to 9/4 of the seconds.
    problem, part = two_plans((4.0, 0.0), (0.0, 9.0))
    found = scale_range(problem, solve(problem), part)
    assert (found.low.scale, found.high.scale) == (0.0, 2.25)
    assert found.high.successor is not None
    assert found.high.successor.choices == (1,)
    assert str(replace(found, seconds=0.5)) == (
        "optimal at scales from 0 (the end of the scales asked for) to 2.25 (another plan takes "
        "over); costs 0 + scale * 4, 0.50 s"
    )


def test_a_part_that_does_not_matter_has_no_ends():
    problem, _ = two_plans((4.0, 0.0), (0.0, 9.0))
    for part in (Part(), Part({0: np.array([3.0, 3.0])})):
        found = scale_range(problem, solve(problem), part)
        assert found.exact
        assert (found.low.scale, found.high.scale) == (0.0, math.inf)
        assert found.low.successor is found.high.successor is None
        assert str(found.high) == "inf (no end)"


def test_scales_outside_of_those_asked_for_are_left_alone():
    problem, part = two_plans((4.0, 0.0), (0.0, 9.0))
    seen = []
    found = scale_range(problem, solve(problem), part, within=(0.5, 2.0), progress=seen.append)
    assert (found.low.proven, found.low.scale, found.low.successor) == (0.5, 0.5, None)
    assert (found.high.proven, found.high.scale, found.high.successor) == (2.0, 2.0, None)
    assert all(news.objective <= 9.0 for news in seen)
    point = scale_range(problem, solve(problem), part, within=(1.0, 1.0))
    assert (point.low.scale, point.high.scale) == (1.0, 1.0)
    assert point.exact


def test_without_time_only_scale_one_is_proven():
    problem = random_problem(11, shape="clique", forbidden=0.0, tightness=0.7)
    found = scale_range(problem, solve(problem), random_part(problem, 1, True), time_limit=0.0)
    assert found.limit_hit == "time"
    assert (found.low.proven, found.high.proven) == (1.0, 1.0)
    assert not found.exact
    assert "1 proven" in str(found)


def test_an_interrupt_keeps_what_is_known():
    problem, part = two_plans((4.0, 0.0), (0.0, 9.0))
    outcome = solve(problem)

    def stop(news):
        raise KeyboardInterrupt

    found = scale_range(problem, outcome, part, progress=stop)
    assert found.limit_hit == "interrupted"
    assert found.low.scale <= found.low.proven <= 1.0 <= found.high.proven <= found.high.scale


def test_what_cannot_be_asked_is_refused():
    problem, part = two_plans((4.0, 0.0), (0.0, 9.0))
    outcome = solve(problem)
    with pytest.raises(ProblemError) as caught:
        scale_range(problem, outcome, part, within=(2.0, 3.0))
    assert str(caught.value) == (
        "scales from 2.0 to 3.0 were asked for; give 0 <= low <= 1 <= high"
    )
    with pytest.raises(ProblemError, match="the outcome has no plan, so nothing is known at"):
        scale_range(problem, replace(outcome, solution=None), part)
    unbounded = replace(outcome, report=replace(outcome.report, bound=-math.inf))
    with pytest.raises(ProblemError, match="the outcome has no bound, so nothing is known at"):
        scale_range(problem, unbounded, part)
    with pytest.raises(ProblemError, match="node 0: shape \\(3,\\); its costs are \\(2,\\)"):
        scale_range(problem, outcome, Part({0: np.zeros(3)}))


def test_how_ranges_that_are_not_exact_print():
    found = ScaleRange(
        ScaleEnd(0.5, 0.25, Solution((1,)), 1.0, 2.0), ScaleEnd(3.0, math.inf), 1.0, 2.0, 0.125,
        7.0, LimitHit.TIME,
    )  # fmt: skip
    assert not found.exact
    assert str(found) == (
        "within 0.125 of optimal at scales from 0.5 proven, 0.25 at the furthest (another plan "
        "takes over) to 3 proven, inf at the furthest (no end known); costs 1 + scale * 2, 7.00 s, "
        "stopped by the time limit"
    )
