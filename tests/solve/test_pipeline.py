"""The pipeline against brute force, and its promises: bounds, limits, pins, starts, interrupts."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoshard.solve import Edge, Node, Problem, ProblemError, Status, Usage, evaluate, solve
from autoshard.solve.whole import Look
from tests.solve.helpers import brute_force, random_problem

SHAPES = ("random", "tree", "grid", "clique")


@given(
    seed=st.integers(0, 10**6),
    shape=st.sampled_from(SHAPES),
    forbidden=st.sampled_from([0.0, 0.2, 0.5]),
    tightness=st.sampled_from([None, 0.4, 0.7, 1.0]),
    integers=st.booleans(),
)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_equals_brute_force(seed, shape, forbidden, tightness, integers):
    problem = random_problem(
        seed, shape=shape, forbidden=forbidden, tightness=tightness, integers=integers
    )
    best = brute_force(problem)
    outcome = solve(problem, time_limit=20, seed=seed % 3)
    if math.isinf(best):
        assert outcome.status is Status.INFEASIBLE
        assert outcome.solution is None
        return
    assert outcome.status is Status.OPTIMAL
    assert outcome.solution is not None
    assert outcome.report.objective == pytest.approx(best, rel=1e-9, abs=1e-9)
    assert outcome.report.bound <= best + 1e-9 * abs(best)
    found = evaluate(problem, outcome.solution.choices)
    assert found.feasible
    assert found.objective == outcome.report.objective


def chain(count: int, limit: float | None) -> Problem:
    """Nodes in a ring with chords: too knotted for presolve alone."""
    random = np.random.default_rng(5)
    nodes = tuple(Node(f"n{i}", random.random(6)) for i in range(count))
    pairs = [(i, (i + step) % count) for i in range(count) for step in (1, 3, 7)]
    edges = tuple(Edge.dense(u, v, random.random((6, 6))) for u, v in pairs)
    usages = tuple(
        Usage(i, random.integers(1, 50, 6).astype(float), i, i + 9) for i in range(count)
    )
    return Problem(nodes, edges, usages, limit)


def test_bound_is_valid_when_time_is_short():
    problem = chain(40, 200.0)
    best = solve(problem, time_limit=0.05)
    long = solve(problem, time_limit=2.0)
    assert best.report.bound <= long.report.objective
    assert long.report.bound <= long.report.objective
    if best.status is not Status.OPTIMAL:
        assert best.report.limit_hit == "time"


@given(
    seed=st.integers(0, 10**6),
    shape=st.sampled_from(SHAPES),
    tightness=st.sampled_from([None, 0.4, 0.7, 1.0]),
    gap=st.sampled_from([0.0, 0.01, 0.1]),
    look=st.sampled_from([None, *Look]),
    beat=st.sampled_from([math.inf, 1.0, 1.05]),
)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_good_plans_and_looks_prove_no_more_than_holds(seed, shape, tightness, gap, look, beat):
    problem = random_problem(seed, shape=shape, forbidden=0.2, tightness=tightness)
    best = brute_force(problem)
    known = best + (beat - 1) * abs(best) if beat < math.inf else math.inf
    outcome = solve(problem, time_limit=20, gap=gap, look=look, better_than=known)
    report = outcome.report
    if math.isinf(best):
        assert outcome.solution is None
        return
    # Of plans that cost as much as the one to beat, or more, nothing is said.
    assert min(report.bound, known) <= best + 1e-9 * abs(best)
    if outcome.solution is not None:
        assert evaluate(problem, outcome.solution.choices).objective == report.objective
        assert report.objective >= best - 1e-9 * abs(best)
    if report.limit_hit in (None, "gap", "cutoff"):
        found = min(report.objective, known)
        assert found - best <= gap * abs(found) + 1e-9 * abs(best)
    else:
        assert report.limit_hit == "bound"
        assert look is not None


@given(
    seed=st.integers(0, 10**6),
    shape=st.sampled_from(SHAPES),
    tightness=st.sampled_from([None, 0.4, 0.7, 1.0]),
    beat=st.sampled_from([1.0, 1.05, 1.5]),
)
@settings(max_examples=100, deadline=None, derandomize=True)
def test_a_search_that_begins_with_a_close_look_finds_what_others_find(
    seed, shape, tightness, beat
):
    problem = random_problem(seed, shape=shape, forbidden=0.2, tightness=tightness)
    best = brute_force(problem)
    if math.isinf(best):
        return
    known = best + (beat - 1) * abs(best)
    close = solve(problem, time_limit=20, look=Look.CLOSE, better_than=known)
    again = solve(problem, time_limit=20, warm_duals=close.duals, looked=True, better_than=known)
    assert min(again.report.bound, known) <= best + 1e-9 * abs(best)
    found = min(again.report.objective, known)
    assert found == pytest.approx(best, rel=1e-8, abs=1e-9)


def test_a_brief_look_ends_with_a_plan_before_exact_sub_problems():
    problem = chain(60, 300.0)
    brief = solve(problem, time_limit=30.0, look=Look.BRIEF)
    assert brief.report.limit_hit == "bound"
    assert brief.solution is not None
    assert evaluate(problem, brief.solution.choices).feasible
    whole = solve(problem, time_limit=5.0)
    assert brief.report.bound <= whole.report.objective <= brief.report.objective


def test_gap_stops_early_and_is_not_called_optimal():
    outcome = solve(chain(40, 200.0), time_limit=20.0, gap=0.5)
    assert outcome.report.gap <= 0.5
    if outcome.report.gap > 1e-9:
        assert outcome.status is Status.FEASIBLE
        assert outcome.report.limit_hit == "gap"


def test_warm_start_is_never_lost():
    problem = chain(40, 200.0)
    first = solve(problem, time_limit=2.0)
    assert first.solution is not None
    again = solve(problem, time_limit=0.0, warm_start=[first.solution.choices])
    assert again.report.objective <= first.report.objective


def test_broken_warm_start_is_repaired():
    problem = chain(40, 200.0)
    heavy = [int(usage.amounts.argmax()) for usage in problem.usages]
    outcome = solve(problem, time_limit=2.0, warm_start=[heavy])
    assert outcome.solution is not None
    assert evaluate(problem, outcome.solution.choices).feasible


def test_pins_restrict():
    problem = chain(12, None)
    outcome = solve(problem, time_limit=5.0, pins={3: [2], 7: [0, 5]})
    assert outcome.solution is not None
    assert outcome.solution.choices[3] == 2
    assert outcome.solution.choices[7] in (0, 5)


def test_pins_name_every_offender():
    with pytest.raises(ProblemError) as caught:
        solve(chain(5, None), pins={9: [0], 2: [1, 6, 7]})
    assert str(caught.value) == (
        "pins name what does not exist:\n"
        "  - node 9: there is no such node\n"
        "  - n2: choices [6, 7] of 6"
    )


def test_interrupt_keeps_the_best():
    seen = []

    def stop(news):
        seen.append(news)
        if math.isfinite(news.objective):
            raise KeyboardInterrupt

    outcome = solve(chain(60, 220.0), time_limit=30.0, progress=stop)
    assert outcome.report.limit_hit == "interrupted"
    assert outcome.solution is not None
    assert outcome.report.objective == seen[-1].objective


def test_memory_makes_it_infeasible():
    problem = chain(20, 5.0)
    outcome = solve(problem, time_limit=10.0)
    assert outcome.status is Status.INFEASIBLE
    assert outcome.report.objective == math.inf


def test_prices_are_the_price_of_a_byte():
    # Saving 10 bytes costs 5 units: one more byte is worth half a unit, in the relaxation.
    nodes = (Node("a", np.array([0.0, 5.0, 5.0])), Node("b", np.array([0.0, 5.0, 6.0])))
    amounts = np.array([10.0, 0.0, 3.0])
    usages = tuple(Usage(i, amounts, 0, 4) for i in range(2))
    outcome = solve(Problem(nodes, (), usages, 12.0), time_limit=5.0)
    assert outcome.report.objective == 5.0
    assert outcome.report.price_of_byte >= 0.0


def test_same_seed_same_answer():
    one, two = (solve(chain(12, 120.0), time_limit=20.0, seed=3) for _ in range(2))
    assert one.solution is not None
    assert two.solution is not None
    assert one.solution.choices == two.solution.choices


def test_empty_problem():
    outcome = solve(Problem((), offset=2.0))
    assert outcome.status is Status.OPTIMAL
    assert outcome.report.objective == 2.0
