"""The price of a byte against the value of every limit, by brute force."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from autoshard.solve import Edge, Node, Problem, ProblemError, Status, Usage, evaluate, solve
from autoshard.solve.evaluate import memory_profile
from autoshard.solve.sensitivity.limit import limit_gain, memory_price
from autoshard.solve.whole import tightened
from tests.solve.helpers import random_problem


def plans_of(
    problem: Problem, pins: dict[int, list[int]] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The cost of every plan without forbidden pairs, and its load at every time from 0 to 15."""
    free = replace(problem, limit=None)
    costs, loads = [], []
    sizes = [range(node.costs.size) for node in problem.nodes]
    for choices in itertools.product(*((pins or {}).get(i, own) for i, own in enumerate(sizes))):
        found = evaluate(free, choices)
        if found.violations:
            continue
        costs.append(found.objective)
        when, profile = memory_profile(free, choices)
        at = np.searchsorted(when, np.arange(16), side="right") - 1
        loads.append(np.where(at >= 0, profile[at], 0.0) if when.size else np.zeros(16))
    return np.array(costs), np.array(loads).reshape(-1, 16)


def value_at(limit: float, costs: np.ndarray, loads: np.ndarray) -> float:
    """The cost of the cheapest plan within a limit."""
    return float(costs[loads.max(axis=1) <= limit].min(initial=math.inf))


def relaxed_at(limit: float, costs: np.ndarray, loads: np.ndarray) -> float:
    """The cheapest mixture of plans that keeps the limit on average; on trees this is what any
    prices and messages can prove at best."""
    weights = np.ones((1, costs.size))
    result = linprog(costs, A_ub=loads.T, b_ub=np.full(16, limit), A_eq=weights, b_eq=[1.0])
    return float(result.fun) if result.status == 0 else math.inf


@given(
    seed=st.integers(0, 10**6),
    shape=st.sampled_from(("random", "tree", "grid", "clique")),
    tightness=st.sampled_from([0.4, 0.6, 0.8, 1.0]),
    tight=st.booleans(),
)
@settings(max_examples=80, deadline=None, derandomize=True)
def test_the_bound_holds_at_every_limit(seed, shape, tightness, tight):
    problem = random_problem(seed, shape=shape, forbidden=0.1, tightness=tightness)
    assert problem.limit is not None
    outcome = solve(problem, time_limit=20)
    if outcome.status is Status.INFEASIBLE:
        with pytest.raises(ProblemError, match="no plan keeps the limit"):
            memory_price(problem, outcome)
        return
    if tight:
        outcome = tightened(problem, outcome)
    price = memory_price(problem, outcome)
    assert price.per_byte >= 0.0
    assert price.bound <= outcome.report.objective + 1e-9
    costs, loads = plans_of(problem)
    for limit in {0.0, problem.limit, 1e6, *loads.max(axis=1).tolist()}:
        value = value_at(limit, costs, loads)
        assert price.bound_at(limit) <= value + 1e-7
        if limit >= problem.limit:
            saved = outcome.report.objective - value
            assert saved <= price.most_saved(limit - problem.limit) + 1e-7


def tense_tree(seed: int) -> Problem:
    """A tree in which the cheaper choices of a node take the more memory."""
    random = np.random.default_rng(seed)
    count = int(random.integers(2, 6))
    nodes = tuple(Node(f"n{i}", np.sort(random.random(3))) for i in range(count))
    edges = tuple(
        Edge.dense(int(random.integers(i)), i, 0.3 * random.random((3, 3))) for i in range(1, count)
    )
    usages = []
    for i in range(count):
        start = int(random.integers(4))
        amounts = np.sort(random.integers(0, 20, 3))[::-1].astype(float)
        usages.append(Usage(i, amounts, start, start + int(random.integers(1, 8))))
    most = evaluate(Problem(nodes, edges, tuple(usages)), [0] * count).peak
    return Problem(nodes, edges, tuple(usages), float(round(random.uniform(0.4, 1.0) * most)))


@given(seed=st.integers(0, 10**6))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_on_trees_the_price_is_a_slope_of_the_relaxed_value(seed):
    problem = tense_tree(seed)
    assert problem.limit is not None
    outcome = solve(problem, time_limit=20)
    if outcome.status is Status.INFEASIBLE:
        return
    price = memory_price(problem, outcome)
    costs, loads = plans_of(problem)
    relaxed = relaxed_at(problem.limit, costs, loads)
    assert price.bound == pytest.approx(relaxed, rel=2e-6)
    for step in (-3.0, -1.0, -0.01, 0.01, 1.0, 3.0):
        there = relaxed_at(problem.limit + step, costs, loads)
        assert there >= relaxed - price.per_byte * step - 2e-6 * abs(relaxed)


@given(seed=st.integers(0, 10**6), above=st.sampled_from([0.01, 0.3]))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_presolve_for_a_raised_limit_proves_of_all_below(seed, above):
    problem = tense_tree(seed)
    assert problem.limit is not None
    outcome = solve(problem, time_limit=20)
    if outcome.status is Status.INFEASIBLE:
        return
    assert outcome.solution is not None
    node = seed % len(problem.nodes)
    pins = {node: [outcome.solution.choices[node]]}  # with pins there is always a presolve
    price = memory_price(problem, outcome, pins=pins, above=above)
    costs, loads = plans_of(problem, pins)
    for limit in {0.0, problem.limit, *loads.max(axis=1).tolist()}:
        if limit <= price.highest:
            assert price.bound_at(limit) <= value_at(limit, costs, loads) + 1e-7
    if math.isfinite(price.highest):
        assert price.highest == problem.limit * (1 + above)
        assert price.bound_at(price.highest * 1.01) == -math.inf


def stair(limit: float) -> Problem:
    """Two tensors that may be kept, at 10 bytes each, or made again for 5 and for 8."""
    nodes = (Node("a", np.array([0.0, 5.0])), Node("b", np.array([0.0, 8.0])))
    usages = tuple(Usage(i, np.array([10.0, 0.0]), 0, 4) for i in range(2))
    return Problem(nodes, (), usages, limit)


@pytest.mark.parametrize(("limit", "price"), [(5.0, 0.8), (14.0, 0.5), (25.0, 0.0)])
def test_the_price_of_a_byte_is_that_of_the_tensor_in_doubt(limit, price):
    problem = stair(limit)
    found = memory_price(problem, solve(problem))
    assert found.per_byte == pytest.approx(price, abs=1e-9)


def test_how_a_price_prints():
    problem = stair(14.0)
    found = memory_price(problem, solve(problem))
    assert str(found) == (
        "a byte more than 14 saves at most 0.5 in relaxation (0.5 at time 0); bound 3, plan 5"
    )
    problem = stair(25.0)
    assert str(memory_price(problem, solve(problem))) == (
        "a byte more than 25 saves nothing, in relaxation"
    )


def test_tightened_reports_the_slope_of_its_bound():
    # A mixture of plans is no cheaper than the plan here: messages prove it, with a price.
    problem = stair(10.0)
    outcome = tightened(problem, solve(problem))
    assert outcome.report.objective == 5.0
    assert outcome.duals.messages is not None
    assert 0.5 - 1e-6 <= outcome.report.price_of_byte <= 0.8 + 1e-6
    assert outcome.report.prices == outcome.duals.prices


@given(
    seed=st.integers(0, 10**6),
    tightness=st.sampled_from([0.5, 0.8]),
    extra=st.integers(-8, 8),
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_gains_equal_brute_force(seed, tightness, extra):
    problem = random_problem(seed, shape="grid", forbidden=0.1, tightness=tightness)
    assert problem.limit is not None
    outcome = solve(problem, time_limit=20)
    if outcome.status is Status.INFEASIBLE:
        return
    gain = limit_gain(problem, outcome, extra, time_limit=20)
    costs, loads = plans_of(problem)
    limits = problem.limit, max(problem.limit + extra, 0.0)
    before, after = (value_at(limit, costs, loads) for limit in limits)
    assert gain.proven
    if math.isinf(after):
        assert gain.least == gain.most == -math.inf
        return
    assert gain.least - 1e-9 <= before - after <= gain.most + 1e-9
    assert gain.most - gain.least <= 1e-8 * max(1.0, abs(before))


def test_how_gains_print():
    problem = stair(14.0)
    outcome = solve(problem)
    assert str(limit_gain(problem, outcome, 6.0)) == "6 bytes more save 5"
    assert str(limit_gain(problem, outcome, -5.0)) == "5 bytes less save -8"
    # Nothing is lighter than the fixed load of a third tensor.
    fixed = replace(
        problem,
        nodes=(*problem.nodes, Node("c", np.zeros(1))),
        usages=(*problem.usages, Usage(2, np.array([3.0]), 0, 9)),
    )
    assert (
        str(limit_gain(fixed, solve(fixed), -12.0)) == "with 12 bytes less no plan keeps the limit"
    )


def test_gains_of_an_unproven_plan_are_an_interval():
    problem = stair(14.0)
    outcome = solve(problem)
    report = replace(outcome.report, status=Status.FEASIBLE, bound=4.0, gap=0.2)
    gain = limit_gain(problem, replace(outcome, status=Status.FEASIBLE, report=report), 6.0)
    assert not gain.proven
    assert (gain.least, gain.most) == (4.0, 5.0)
    assert str(gain) == "6 bytes more save between 4 and 5"


def test_without_a_limit_or_a_plan_there_is_no_price():
    free = Problem((Node("a", np.zeros(2)),), ())
    with pytest.raises(ProblemError, match="no memory limit, so a byte has no price"):
        memory_price(free, solve(free))
    with pytest.raises(ProblemError, match="no memory limit, so no byte more"):
        limit_gain(free, solve(free), 1.0)
    choose = Edge.dense(0, 1, np.array([[math.inf, 0.0], [0.0, math.inf]]))
    never = replace(stair(5.0), edges=(choose,))
    with pytest.raises(ProblemError, match="no plan is known at the limit of 5 bytes"):
        limit_gain(never, solve(never), 1.0)
