"""Problems near a problem: the same answers as cold, bounds that hold, and duals that serve."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoshard.solve import Duals, Edge, Node, Problem, ProblemError, Status, evaluate, solve
from autoshard.solve.sensitivity.nearby import carried_bound, scaled_duals, solve_again
from autoshard.solve.sensitivity.part import Part, scaled
from autoshard.solve.whole import ascent_of, tightened
from tests.solve.helpers import random_problem

SHAPES = ("random", "tree", "grid", "clique")
CHANGES = ("none", "pin", "lower", "higher", "all", "rise", "fall", "forbid", "several")


def best_of(problem: Problem, pins: dict[int, list[int]]) -> float:
    """The best objective under pins, by brute force; +inf when no plan is feasible."""
    ranges = [pins.get(i, range(node.costs.size)) for i, node in enumerate(problem.nodes)]
    found = (evaluate(problem, choices) for choices in itertools.product(*ranges))
    return min((plan.objective for plan in found if plan.feasible), default=math.inf)


def changed(problem: Problem, change: str, seed: int) -> tuple[Problem, dict[int, list[int]]]:
    """The problem after a change, and its pins."""
    random = np.random.default_rng(seed)
    pins: dict[int, list[int]] = {}
    if change in ("pin", "several"):
        node = int(random.integers(len(problem.nodes)))
        pins[node] = [int(random.integers(problem.nodes[node].costs.size))]
    if change in ("lower", "higher", "several") and problem.limit is not None:
        factor = random.uniform(1.0, 1.4) if change == "higher" else random.uniform(0.6, 1.0)
        problem = replace(problem, limit=problem.limit * factor)
    if change == "all":
        problem = scaled(problem, Part.all(problem), float(random.uniform(0.0, 3.0)))
    if change in ("rise", "fall", "several"):
        chosen = (
            [i for i in range(len(items)) if random.random() < 0.4]
            for items in (problem.nodes, problem.edges)
        )
        part = Part.of(problem, nodes=next(chosen), edges=next(chosen))
        scale = random.uniform(0.3, 1.0) if change == "fall" else random.uniform(1.0, 2.0)
        problem = scaled(problem, part, float(scale))
    if change == "forbid" and problem.edges:
        position = int(random.integers(len(problem.edges)))
        edge = problem.edges[position]
        table = np.where(random.random(edge.table.shape) < 0.3, np.inf, edge.table)
        edges = list(problem.edges)
        edges[position] = replace(edge, costs=table)
        problem = replace(problem, edges=tuple(edges))
    return problem, pins


cases = given(
    seed=st.integers(0, 10**6),
    shape=st.sampled_from(SHAPES),
    change=st.sampled_from(CHANGES),
    tightness=st.sampled_from([None, 0.5, 0.8, 1.0]),
)


@cases
@settings(max_examples=150, deadline=None, derandomize=True)
def test_again_equals_brute_force(seed, shape, change, tightness):
    before = random_problem(seed, shape=shape, forbidden=0.1 * (seed % 3), tightness=tightness)
    first = tightened(before, solve(before, time_limit=20))
    after, pins = changed(before, change, seed)
    best = best_of(after, pins)
    again = solve_again(before, first, after, pins=pins, time_limit=20)
    if math.isinf(best):
        assert again.status is Status.INFEASIBLE
        return
    assert again.status is Status.OPTIMAL
    assert again.report.objective == pytest.approx(best, rel=1e-9, abs=1e-9)
    assert again.report.bound <= best + 1e-9 * abs(best)
    assert again.solution is not None
    assert all(again.solution.choices[node] in allowed for node, allowed in pins.items())


@cases
@settings(max_examples=100, deadline=None, derandomize=True)
def test_carried_bound_holds(seed, shape, change, tightness):
    before = random_problem(seed, shape=shape, forbidden=0.1 * (seed % 3), tightness=tightness)
    first = solve(before, time_limit=20)
    after, pins = changed(before, change, seed)
    factor, bound = carried_bound(before, first, after, pins_before={}, pins=pins)
    best = best_of(after, pins)
    assert factor >= 0.0
    assert bound <= best + 1e-9 * max(1.0, abs(best))
    if change == "higher" and tightness is not None and first.solution is not None:
        assert bound == -math.inf
    if change in ("none", "all") and first.solution is not None:
        assert bound == pytest.approx(best, rel=1e-8, abs=1e-8)


@cases
@settings(max_examples=100, deadline=None, derandomize=True)
def test_any_duals_give_a_bound_that_holds(seed, shape, change, tightness):
    before = random_problem(seed, shape=shape, forbidden=0.1 * (seed % 3), tightness=tightness)
    first = tightened(before, solve(before, time_limit=20))
    after, pins = changed(before, change, seed)
    random = np.random.default_rng(seed)
    needed = sum(sum(edge.table.shape) for edge in before.edges)
    worse = Duals(
        tuple((int(when), float(random.exponential())) for when in random.integers(0, 12, 3)),
        random.normal(size=needed),
    )
    best = best_of(after, pins)
    kept = {node: np.array(allowed) for node, allowed in pins.items()}
    for duals in (first.duals, scaled_duals(first.duals, 1.7), worse):
        ascent, _ = ascent_of(after, duals, kept)
        assert ascent.check() + after.offset <= best + 1e-9 * max(1.0, abs(best))


def test_a_bound_under_pins_says_nothing_of_a_problem_without_them():
    problem = random_problem(3, shape="tree", forbidden=0.0, tightness=None)
    node = max(range(len(problem.nodes)), key=lambda i: problem.nodes[i].costs.size)
    worst = int(problem.nodes[node].costs.argmax())
    pinned = solve(problem, pins={node: [worst]})
    free = solve(problem)
    assert pinned.report.objective > free.report.objective
    pins_before = {node: [worst]}
    assert carried_bound(problem, pinned, problem, pins_before=pins_before, pins={})[1] == -math.inf
    kept = carried_bound(problem, pinned, problem, pins_before=pins_before, pins=pins_before)
    assert kept[1] == pytest.approx(pinned.report.objective)
    again = solve_again(problem, pinned, problem, pins_before=pins_before)
    assert again.report.objective == free.report.objective


def knotted(count: int, seed: int, *, weight: float, doomed: bool = False) -> Problem:
    """A ring with chords, too knotted for presolve.

    If `doomed`, the last choice of every node needs that of the next one, and one of them is not
    allowed at all.
    """
    random = np.random.default_rng(seed)
    nodes = tuple(Node(f"n{i}", random.random(5)) for i in range(count))
    edges = []
    for u, step in itertools.product(range(count), (1, 3, 7)):
        table = weight * random.random((5, 5))
        if doomed and step == 1:
            table[4, : 5 if u == count // 2 else 4] = np.inf
        edges.append(Edge.dense(u, (u + step) % count, table))
    return Problem(nodes, tuple(edges))


@pytest.mark.parametrize("doomed", [False, True])
def test_tightened_duals_prove_at_once_what_they_proved_before(doomed):
    problem = knotted(60, 2, weight=0.1, doomed=doomed)
    outcome = solve(problem, time_limit=20)
    unproven = replace(outcome, report=replace(outcome.report, bound=-math.inf, gap=math.inf))
    first = tightened(problem, unproven)
    assert first.duals.messages is not None
    assert np.isfinite(first.duals.messages).all()
    assert first.report.bound >= 0.99 * outcome.report.objective
    ascent, _ = ascent_of(problem, first.duals)
    assert ascent.check() + problem.offset == pytest.approx(first.report.bound, rel=1e-9)
    # What lost all support pushes what stands for infinity, and is found anew.
    assert int((~ascent.alive).sum()) == (60 if doomed else 0)


def test_tightened_duals_spare_later_stages():
    problem = knotted(60, 7, weight=0.2)
    seen = []
    first = tightened(problem, solve(problem, progress=seen.append))
    assert len(seen) > 1
    assert first.solution is not None
    seen.clear()
    again = solve(
        problem,
        warm_start=[first.solution.choices],
        warm_duals=first.duals,
        progress=seen.append,
    )
    assert again.status is Status.OPTIMAL
    assert again.report.objective == first.report.objective
    # The plan was told of; whatever comes after the bound would have told of itself.
    assert [news.phase for news in seen] == ["presolve"]


def test_weak_messages_are_left_out_and_prices_stay():
    # An odd cycle in which neighbours must differ in price: pairs alone prove half of it.
    unlike = np.array([[1.0, 0.0], [0.0, 1.0]])
    nodes = tuple(Node(f"n{i}", np.zeros(2)) for i in range(5))
    edges = tuple(Edge.dense(i, (i + 1) % 5, unlike) for i in range(5))
    problem = Problem(nodes, edges)
    first = solve(problem)
    assert first.report.objective == 1.0
    assert tightened(problem, first).duals.messages is None


def test_tightened_keeps_what_is_known():
    problem = random_problem(5, shape="grid", forbidden=0.0, tightness=None)
    outcome = solve(problem)
    better = tightened(problem, outcome)
    assert better.solution is outcome.solution
    assert better.report.objective == outcome.report.objective
    assert better.report.bound >= outcome.report.bound
    nothing = replace(outcome, solution=None)
    assert tightened(problem, nothing) is nothing


def test_duals_of_other_edges_are_refused():
    problem = knotted(15, 2, weight=0.1)
    with pytest.raises(ProblemError) as caught:
        solve(problem, warm_duals=Duals((), np.zeros(7)))
    assert str(caught.value) == (
        "warm_duals hold 7 messages; the edges of this problem need 450; give duals of a problem "
        "with the same edges and tables of the same shape"
    )


def test_problems_that_are_not_near_are_refused_with_all_that_differs():
    before = Problem(
        (Node("a", np.zeros(2)), Node("b", np.zeros(3)), Node("c", np.zeros(2))),
        (Edge.dense(0, 1, np.zeros((2, 3))), Edge.dense(1, 2, np.zeros((3, 2)))),
    )
    after = Problem(
        (Node("a", np.zeros(2)), Node("b", np.zeros(4)), Node("c", np.zeros(2))),
        (
            Edge.dense(0, 1, np.zeros((2, 4))),
            Edge(1, 2, np.zeros((3, 2)), np.array([0, 1, 2, 2]), np.arange(2)),
        ),
    )
    with pytest.raises(ProblemError) as caught:
        solve_again(before, solve(before), after)
    assert str(caught.value) == (
        "the problems are not near each other; solve the second one by itself:\n"
        "  - b: 3 choices before, 4 after\n"
        "  - edge 0 (0-1, table (2, 3)): its ends, projections or table's shape differ "
        "(0-1, table (2, 4))\n"
        "  - edge 1 (1-2, table (3, 2)): its ends, projections or table's shape differ "
        "(1-2, table (3, 2))"
    )
