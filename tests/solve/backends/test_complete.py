"""The complete model against the problem itself: every plan, in both forms of memory."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoshard.solve import Node, Problem, Usage, evaluate
from autoshard.solve.backends import complete
from autoshard.solve.backends.complete import complete_model, complete_size, needed_rows
from autoshard.solve.backends.exact import Solver, Verdict, solve_linear
from autoshard.solve.backends.linear import LinearModel, memory_rows
from autoshard.solve.flat import flatten
from tests.solve.helpers import brute_force, random_problem


def plans(problem: Problem) -> list[tuple[int, ...]]:
    return list(itertools.product(*(range(node.costs.size) for node in problem.nodes)))


def value_of(result) -> float:
    return math.inf if result.verdict is Verdict.INFEASIBLE else result.objective


@given(seed=st.integers(0, 10**6), tightness=st.sampled_from([0.2, 0.5, 0.8, 1.0]))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_the_needed_rows_say_it_all(seed, tightness):
    """A plan keeps the needed rows exactly if it keeps the limit."""
    problem = random_problem(seed, shape="tree", forbidden=0.0, tightness=tightness)
    flat = flatten(problem)
    wanted = needed_rows(flat)
    rows = memory_rows(flat, wanted, flat.costs.size)
    for choices in plans(problem):
        taken = np.zeros(flat.costs.size)
        taken[flat.node_start[:-1] + np.array(choices)] = 1.0
        keeps = bool((rows @ taken <= flat.capacity[wanted]).all())
        assert keeps == evaluate(problem, choices).feasible


def test_rows_that_cannot_bind_and_covered_ones_are_left_out():
    def usage(node: int, start: int, stop: int) -> Usage:
        return Usage(node, np.array([1.0, 4.0]), start, stop)

    nodes = tuple(Node(f"n{i}", np.zeros(2)) for i in range(4))
    # Loads of up to 4, 8, 12, 8, 4 from times 0, 1, 2, 5, 7 on; rows are at the starts of usages.
    usages = (usage(0, 0, 5), usage(1, 1, 7), usage(2, 2, 8), usage(3, 8, 9))
    assert needed_rows(flatten(Problem(nodes, (), usages, 12.0))).tolist() == []
    flat = flatten(Problem(nodes, (), usages, 11.0))
    assert (flat.capacity.size, needed_rows(flat).tolist()) == (4, [2])
    flat = flatten(Problem(nodes, (), usages, 3.0))
    assert needed_rows(flat).tolist() == [2, 3]
    assert needed_rows(flatten(Problem(nodes, (), usages, None))).tolist() == []


@pytest.mark.parametrize("sums", [False, True])
@given(seed=st.integers(0, 10**6), tightness=st.sampled_from([None, 0.3, 0.6, 1.0]))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_both_forms_of_memory_equal_brute_force(sums, seed, tightness):
    problem = random_problem(seed, shape="grid", forbidden=0.1, tightness=tightness)
    flat = flatten(problem)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(complete, "ROW_COEFFICIENTS", -1 if sums else 10**9)
        size, model = complete_size(flat), complete_model(flat)
    assert size.sums == (sums and needed_rows(flat).size > 0)
    assert size.variables == model.size
    assert size.rows <= model.lower.size <= size.rows + needed_rows(flat).size
    assert model.matrix.nnz <= size.coefficients + needed_rows(flat).size
    best = brute_force(problem)
    found = value_of(solve_linear(model)) + problem.offset
    assert found == pytest.approx(best, rel=1e-9, abs=1e-9)


def capped(limit: float) -> LinearModel:
    """Two nodes that would rather take many bytes, beside one that takes 5e9 in any case."""
    nodes = (Node("a", np.array([0.0, 3.0])), Node("b", np.array([0.0, 4.0])), Node("c", [1.0]))
    bytes_of = np.array([6e9, 1e9])
    usages = (Usage(0, bytes_of, 0, 5), Usage(1, bytes_of, 3, 9), Usage(2, [5e9], 2, 7))
    return complete_model(flatten(Problem(nodes, (), usages, limit)))


@pytest.mark.parametrize("solver", list(Solver))
def test_every_solver_reads_sums(solver, monkeypatch):
    monkeypatch.setattr(complete, "ROW_COEFFICIENTS", -1)
    for limit, best in ((17e9, 1.0), (12e9, 4.0), (7e9, 8.0), (6.9e9, math.inf), (4e9, math.inf)):
        model = capped(limit)
        assert (model.top > 1).any() == (limit in (12e9, 7e9, 6.9e9))
        result = solve_linear(model, solver=solver, time_limit=20.0)
        assert value_of(result) == best, (limit, result.note)
