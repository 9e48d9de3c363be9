"""Dual bounds, reduced costs and the linear model, each against brute force."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoshard.solve import evaluate
from autoshard.solve.backends.exact import Solver, Verdict, solve_linear
from autoshard.solve.backends.linear import linear_model, with_memory
from autoshard.solve.dual import DualAscent
from autoshard.solve.flat import flatten
from autoshard.solve.problem import Edge, Node, Problem
from autoshard.solve.reduce.presolve import presolve
from autoshard.solve.reduce.trail import InfeasibleError
from tests.solve.helpers import brute_force, random_problem


@given(seed=st.integers(0, 10**6), tightness=st.sampled_from([None, 0.6]))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_bound_and_reduced_costs_are_valid(seed, tightness):
    problem = random_problem(seed, shape="clique", forbidden=0.1, tightness=tightness)
    try:
        problem, _ = presolve(problem, dominance=False)
    except InfeasibleError:
        return
    flat = flatten(problem)
    dual = DualAscent(flat)
    dual.run(np.inf, math.inf, 30)
    bound, _, extra = dual.appraisal()
    assert dual.bound == pytest.approx(bound, rel=1e-9, abs=1e-9)
    for choices in itertools.product(*(range(node.costs.size) for node in problem.nodes)):
        found = evaluate(problem, choices)
        if not found.violations:
            cost = found.objective - problem.offset
            each = [extra[flat.node_start[i] + c] for i, c in enumerate(choices)]
            assert bound + max(each, default=0.0) <= cost + 1e-9


@given(seed=st.integers(0, 10**6))
@settings(max_examples=20, deadline=None, derandomize=True)
def test_turns_never_lose_the_bound_and_settle(seed):
    problem = random_problem(seed, shape="clique", forbidden=0.1, tightness=0.5)
    best = brute_force(problem)
    dual = DualAscent(flatten(problem))
    dual.run(np.inf, math.inf, 40)
    for _ in range(60):
        before = dual.bound
        dual.turn(np.inf)
        dual.run(np.inf, math.inf, 20)
        assert before <= dual.bound
        if dual.bound > dual.worst:  # no plan keeps the limit
            assert math.isinf(best)
            return
        assert dual.bound <= best - problem.offset + 1e-9
        assert dual.bound == pytest.approx(dual.check(), rel=1e-9, abs=1e-9)
        if dual.settled:
            break
    assert dual.settled


@pytest.mark.parametrize("seed", range(4))
def test_messages_are_the_same_however_tables_are_stored(seed):
    random = np.random.default_rng(seed)
    nodes = [Node(f"n{i}", random.uniform(0, 1, size)) for i, size in enumerate((60, 9, 40, 9))]
    edges = []
    for u, v in ((0, 1), (1, 2), (0, 3), (2, 3), (3, 1)):
        rows, columns = nodes[u].costs.size, nodes[v].costs.size
        seen = np.full((rows, columns), np.inf)
        for _ in range(2):
            seen[np.arange(rows), random.integers(columns, size=rows)] = 0.0
        edges.append(Edge.dense(u, v, seen))
    flat = flatten(Problem(nodes, edges), dense=False)
    absent = np.full(flat.u.size, -1)
    stored = [flat, replace(flat, pair_start=absent), flatten(Problem(nodes, edges))]
    stored[2] = replace(stored[2], pair_start=absent, sparse_start=absent)
    assert (flat.pair_start >= 0).tolist() == [True] * 4 + [False]
    ascents = [DualAscent(one) for one in stored]
    for ascent in ascents:
        ascent.run(np.inf, math.inf, 7)
        np.testing.assert_allclose(ascent.best_messages, ascents[0].best_messages, rtol=1e-12)
        assert ascent.check() == pytest.approx(ascents[0].check(), rel=1e-12)


@pytest.mark.parametrize("solver", list(Solver))
@pytest.mark.parametrize("seed", [1, 4, 11])
def test_every_exact_solver_agrees(solver, seed):
    problem = random_problem(seed, shape="clique", forbidden=0.1, integers=True)
    best = brute_force(problem)
    try:
        small, _ = presolve(problem, dominance=False)
    except InfeasibleError:
        assert math.isinf(best)
        return
    flat = flatten(small)
    model = with_memory(linear_model(flat), flat, np.arange(flat.capacity.size))
    result = solve_linear(model, solver=solver, time_limit=20)
    if math.isinf(best):
        assert result.verdict is Verdict.INFEASIBLE
    else:
        assert result.verdict is Verdict.OPTIMAL
        assert result.objective + small.offset == pytest.approx(best, rel=1e-6)


def test_only_one_solver_relaxes():
    model = linear_model(flatten(random_problem(3)))
    with pytest.raises(ValueError, match=r"use Solver\.HIGHS"):
        solve_linear(model, solver=Solver.SCIP, relax=True)
