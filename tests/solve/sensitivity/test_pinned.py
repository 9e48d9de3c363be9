"""Solves of one problem under pins of one node: the same answers as cold, reduced or not."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoshard.solve import Status, evaluate, solve
from autoshard.solve.reduce.workspace import Compared
from autoshard.solve.sensitivity.about import SolvesAbout
from autoshard.solve.sensitivity.pinned import PinnedSolves
from autoshard.solve.whole import tightened
from tests.solve.helpers import random_problem
from tests.solve.sensitivity.test_nearby import SHAPES, best_of


@given(
    seed=st.integers(0, 10**6),
    shape=st.sampled_from(SHAPES),
    tightness=st.sampled_from([None, 0.5, 0.8, 1.0]),
    reduced=st.booleans(),
)
@settings(max_examples=80, deadline=None, derandomize=True)
def test_every_group_costs_what_brute_force_says(seed, shape, tightness, reduced):
    problem = random_problem(seed, shape=shape, forbidden=0.1 * (seed % 3), tightness=tightness)
    first = tightened(problem, solve(problem, time_limit=20))
    if first.solution is None:
        return
    dice = np.random.default_rng(seed)
    node = int(dice.integers(len(problem.nodes)))
    groups = np.unique(dice.integers(3, size=problem.nodes[node].costs.size), return_inverse=True)[
        1
    ]
    base = PinnedSolves.of(problem, first)
    if seed % 3:
        base.ready()
    before = first.solution.choices
    if seed % 2:  # a plan that is asked about need not be the best
        other = base.solve(node, np.flatnonzero(groups == 0), before, time_limit=20).solution
        before = before if other is None else other.choices
    about = SolvesAbout(base, node, groups, before) if reduced else None
    for group in range(int(groups.max()) + 1):
        choices = np.flatnonzero(groups == group)
        if about is not None:
            found = about.solve(group, time_limit=20)
        else:
            found = base.solve(node, choices, before, time_limit=20)
        best = best_of(problem, {node: choices.tolist()})
        if math.isinf(best):
            assert found.status is Status.INFEASIBLE
            continue
        assert found.status is Status.OPTIMAL
        assert found.solution is not None
        assert found.report.objective == pytest.approx(best, rel=1e-9, abs=1e-9)
        assert found.report.bound == pytest.approx(best, rel=1e-8, abs=1e-8)
        assert found.solution.choices[node] in choices
        assert evaluate(problem, found.solution.choices).feasible


def test_an_ordinary_solve_first_compares_what_was_compared_to_be_ready():
    problem = random_problem(52, shape="random", tightness=0.9)
    known: Compared = {}
    first = solve(problem, compared=known)
    ready = PinnedSolves.of(problem, first).ready().compared
    assert ready
    assert ready.keys() <= known.keys()
    before = dict(known)
    solve(problem, compared=known)
    assert known.keys() == before.keys()
    assert all(known[key] is before[key] for key in known)
