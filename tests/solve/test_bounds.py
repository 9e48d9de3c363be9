"""Dual bounds, reduced costs and the linear model, each against brute force."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoshard.solve import evaluate
from autoshard.solve.dual import DualAscent
from autoshard.solve.exact import Solver, Verdict, solve_linear
from autoshard.solve.flat import flatten
from autoshard.solve.linear import linear_model, with_memory
from autoshard.solve.presolve import presolve
from autoshard.solve.trail import InfeasibleError
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
