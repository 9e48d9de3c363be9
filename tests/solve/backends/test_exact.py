"""The exact solvers behind their one interface: against brute force, and from a known start."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from autoshard.solve import evaluate
from autoshard.solve.backends import exact
from autoshard.solve.backends.exact import Solver, Verdict, solve_linear
from autoshard.solve.backends.judge import dual_bound, faults
from autoshard.solve.backends.linear import LinearModel, start_values
from autoshard.solve.flat import Flat
from autoshard.solve.problem import Node, Problem, Usage
from tests.solve.backends.models import SOLVERS, hard_problem, model_of
from tests.solve.helpers import brute_force, random_problem


def picked_by(flat: Flat, values: np.ndarray) -> list[int]:
    return [int(values[slice(*flat.span(i))].argmax()) for i in range(flat.node_count)]


# -- the answers -------------------------------------------------------------------------------


def check_against_brute_force(problem: Problem, solver: Solver) -> Verdict:
    best = brute_force(problem)
    model, flat = model_of(problem)
    result = solve_linear(model, solver=solver, time_limit=20.0)
    if math.isinf(best):
        assert (result.verdict, result.values) == (Verdict.INFEASIBLE, None), result.note
        assert result.bound == math.inf
        return result.verdict
    assert result.verdict is Verdict.OPTIMAL, result.note
    assert result.objective + problem.offset == pytest.approx(best, rel=1e-9, abs=1e-9)
    assert result.bound + problem.offset == pytest.approx(best, rel=1e-6, abs=1e-6)
    assert result.bound <= result.objective
    assert result.values is not None
    assert set(result.values[model.integer]) <= {0.0, 1.0}
    found = evaluate(problem, picked_by(flat, result.values))
    assert found.feasible
    assert found.objective == pytest.approx(best, rel=1e-9, abs=1e-9)
    return result.verdict


@given(
    seed=st.integers(0, 10**6),
    shape=st.sampled_from(["random", "tree", "grid", "clique"]),
    forbidden=st.sampled_from([0.0, 0.1, 0.2]),
    tightness=st.sampled_from([None, 0.6, 0.8]),
    integers=st.booleans(),
)
@settings(max_examples=100, deadline=None, derandomize=True)
def test_highs_equals_brute_force(seed, shape, forbidden, tightness, integers):
    problem = random_problem(
        seed, shape=shape, forbidden=forbidden, tightness=tightness, integers=integers
    )
    check_against_brute_force(problem, Solver.HIGHS)


@pytest.mark.parametrize("solver", SOLVERS)
def test_every_solver_equals_brute_force_in_a_process_of_its_own(solver, monkeypatch):
    monkeypatch.setattr(exact, "APART_COEFFICIENTS", 0)
    shapes = ("clique", "grid", "tree", "random")
    verdicts = [
        check_against_brute_force(
            random_problem(seed, shape=shapes[seed % 4], forbidden=0.1, tightness=0.6), solver
        )
        for seed in (3, 5, 8, 14, 19)
    ]
    assert verdicts == [Verdict.INFEASIBLE, *[Verdict.OPTIMAL] * 4]


@pytest.mark.parametrize("solver", SOLVERS)
def test_large_numbers_keep_their_meaning(solver, monkeypatch):
    """Costs up to 1e10 beside differences of one, and bytes beside limits of 1e10."""
    monkeypatch.setattr(exact, "APART_COEFFICIENTS", 0)
    small = random_problem(22, shape="clique", forbidden=0.1, tightness=0.5, integers=True)
    assert small.limit is not None
    problem = Problem(
        tuple(Node(n.name, n.costs + 1e10 * (np.arange(n.costs.size) > 1)) for n in small.nodes),
        small.edges,
        tuple(Usage(u.node, u.amounts * 1e9, u.start, u.stop) for u in small.usages),
        small.limit * 1e9,
    )
    assert check_against_brute_force(problem, solver) is Verdict.OPTIMAL


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_model_without_variables(solver):
    empty = LinearModel(
        np.zeros(0), np.zeros(0, bool), sparse.csr_matrix((1, 0)), np.zeros(1), np.ones(1)
    )
    result = solve_linear(empty, solver=solver)
    assert (result.verdict, result.objective, result.bound) == (Verdict.OPTIMAL, 0.0, 0.0)
    unreachable = replace(empty, lower=np.ones(1))
    assert solve_linear(unreachable, solver=solver).verdict is Verdict.INFEASIBLE


@given(seed=st.integers(0, 10**6), tightness=st.sampled_from([None, 0.5]))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_the_bound_of_a_relaxation_holds_and_is_its_optimum(seed, tightness):
    problem = random_problem(seed, shape="clique", forbidden=0.2, tightness=tightness)
    best = brute_force(problem)
    model, _ = model_of(problem)
    result = solve_linear(model, relax=True)
    if result.verdict is Verdict.INFEASIBLE:
        assert math.isinf(best)
        return
    assert result.verdict is Verdict.OPTIMAL
    assert result.bound + problem.offset <= best + 1e-9
    assert result.bound == pytest.approx(result.objective, rel=1e-9, abs=1e-9)
    assert result.row_duals is not None
    # Any other prices prove a bound too, if a weaker one.
    random = np.random.default_rng(seed)
    duals = result.row_duals + random.normal(size=result.row_duals.size)
    assert dual_bound(model, duals) <= result.objective + 1e-9


def test_row_duals_are_in_units_of_the_rows_as_given():
    # One unit of y1 saves 3; the row allows 1024 * y1 <= 512: one more of the side saves 3 / 1024.
    model = LinearModel(
        np.array([-3.0]),
        np.array([True]),
        sparse.csr_matrix(np.array([[1024.0]])),
        np.array([-np.inf]),
        np.array([512.0]),
    )
    result = solve_linear(model, relax=True)
    assert result.objective == pytest.approx(-1.5)
    assert result.row_duals == pytest.approx([-3.0 / 1024.0])


# -- starts ------------------------------------------------------------------------------------


def known_start(problem: Problem) -> tuple[LinearModel, np.ndarray, float]:
    model, flat = model_of(problem)
    picked = np.array([int(u.amounts.argmin()) for u in problem.usages])
    start = start_values(flat, model, picked)
    assert faults(model, start) == ""
    return model, start, float(start @ model.costs)


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_start_is_never_lost(solver):
    model, start, price = known_start(hard_problem())
    result = solve_linear(model, solver=solver, time_limit=2.0, start=start)
    assert result.verdict is Verdict.STOPPED, result.note
    assert result.objective <= price
    assert result.bound <= result.objective
    assert result.values is not None
    assert faults(model, result.values) == ""


@pytest.mark.parametrize("solver", SOLVERS)
def test_no_limit_at_all(solver, knapsack, monkeypatch):
    monkeypatch.setattr(exact, "APART_COEFFICIENTS", 0)
    result = solve_linear(knapsack, solver=solver, time_limit=math.inf)
    assert (result.verdict, result.objective) == (Verdict.OPTIMAL, -2.0), result.note


def test_no_time_leaves_the_start():
    model, start, price = known_start(hard_problem())
    result = solve_linear(model, time_limit=0.0, start=start)
    assert (result.verdict, result.objective, result.bound) == (Verdict.STOPPED, price, -math.inf)


def test_a_start_that_breaks_the_model_is_left_out():
    model, _ = model_of(random_problem(5, shape="clique", forbidden=0.1, tightness=0.5))
    assert faults(model, np.zeros(model.size))
    result = solve_linear(model, start=np.zeros(model.size))
    plain = solve_linear(model)
    assert (result.verdict, result.objective) == (plain.verdict, plain.objective)
