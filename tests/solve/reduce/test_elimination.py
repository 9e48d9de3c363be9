"""Exact elimination without memory, and problems cut to some of their nodes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoshard.solve import evaluate
from autoshard.solve.reduce.elimination import cheapest
from autoshard.solve.sensitivity.neighbourhood import Neighbourhoods
from tests.solve.helpers import SHAPES, brute_force, random_problem
from tests.solve.sensitivity.test_nearby import best_of


@given(seed=st.integers(0, 10**6), shape=st.sampled_from(SHAPES))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_elimination_finds_what_brute_force_finds(seed, shape):
    problem = random_problem(seed, shape=shape, forbidden=0.1 * (seed % 3), tightness=None)
    best = brute_force(problem)
    found = cheapest(problem)
    assert found is not None
    assert evaluate(problem, found).objective == pytest.approx(best, rel=1e-12, abs=1e-12)


def test_large_arrays_are_left_to_others():
    problem = random_problem(1, shape=SHAPES[0])
    assert cheapest(problem, entries=1) is None
    assert cheapest(problem) is not None


@given(seed=st.integers(0, 10**6), shape=st.sampled_from(SHAPES))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_a_cut_is_the_problem_with_all_else_as_it_is(seed, shape):
    problem = random_problem(seed, shape=shape, forbidden=0.1 * (seed % 3), tightness=None)
    problem = replace(problem, limit=None)
    dice = np.random.default_rng(seed)
    plan = [int(dice.integers(node.costs.size)) for node in problem.nodes]
    free = np.flatnonzero(dice.random(len(plan)) < 0.5).tolist()
    fixed = {node: [choice] for node, choice in enumerate(plan) if node not in free}
    best = best_of(problem, fixed)
    kept = {node: np.arange(problem.nodes[node].costs.size) for node in free}
    cut = Neighbourhoods.of(problem).cut(kept, plan)
    if cut is None:
        assert best == np.inf
        return
    found = cheapest(cut.problem)
    assert found is not None
    whole = cut.expand(found, plan)
    assert [whole[node] for node in fixed] == [plan[node] for node in fixed]
    assert evaluate(problem, whole).objective == pytest.approx(best, rel=1e-12, abs=1e-12)
