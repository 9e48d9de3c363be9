"""Choices that others replace, one for all plans or several between them; nodes that join."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoshard.solve import Edge, Node, Problem, Usage, evaluate
from autoshard.solve.reduce.dominance import drop_dominated
from autoshard.solve.reduce.finish import finish
from autoshard.solve.reduce.presolve import presolve
from autoshard.solve.reduce.trail import InfeasibleError, Restrict
from autoshard.solve.reduce.workspace import Compared, Workspace
from tests.solve.helpers import SHAPES, brute_force, random_problem


def compared(problem: Problem) -> tuple[list[int], Workspace]:
    """The sizes of the nodes of a problem after one comparison, with no other rule."""
    space = Workspace.of(problem)
    space.memory.refresh()
    drop_dominated(space)
    return space.size.tolist(), space


def knot(costs: list[float], row: np.ndarray, amounts: list[float]) -> Problem:
    """A node of these costs and of table `row` with one neighbour, both in a knot of others."""
    random = np.random.default_rng(0)
    others = [Node(f"n{i}", random.random(3)) for i in range(4)]
    edges = [Edge.dense(1, 0, row.T)]
    edges += [
        Edge.dense(u, v, 9 * random.random((3, 3)))
        for u in range(1, 5)
        for v in range(u + 1, 5)
    ]  # fmt: skip
    usages = [Usage(i, np.array([0.0, 5.0, 9.0]), 0, 1) for i in range(1, 5)]
    usages.append(Usage(0, np.array(amounts), 0, 1))
    return Problem((Node("x", np.array(costs)), *others), edges, usages, 16.0)


def first_restriction(problem: Problem) -> list[int] | None:
    """The choices that one comparison leaves of the first node; None when it leaves all."""
    _, space = compared(problem)
    for made, *parts in space.steps:
        if made is Restrict and 0 in parts[0]:
            return space.maps.items[parts[1][parts[0].tolist().index(0)]].tolist()
    return None


def test_a_choice_goes_for_one_that_is_cheaper_everywhere():
    row = np.array([[0.0, 9.0, 9.0], [1.0, 9.5, 9.0], [9.0, 0.0, 0.0]])
    assert first_restriction(knot([0.0, 0.0, 0.0], row, [1.0, 1.0, 1.0])) == [0, 2]


def test_of_choices_that_all_cost_nothing_one_stays():
    assert first_restriction(knot([0.0, 0.0], np.zeros((2, 3)), [1.0, 1.0])) == [0]


def test_lighter_choices_stay():
    row = np.array([[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]])
    assert first_restriction(knot([0.0, 0.0], row, [2.0, 1.0])) is None
    assert first_restriction(knot([0.0, 0.0], row, [1.0, 2.0])) == [0]


def test_several_choices_together_replace_one():
    # The last choice is beaten by the first beside 0 and by the second beside 1 and 2, and by
    # neither of them alone.
    row = np.array([[0.0, 9.0, 9.0], [9.0, 0.0, 0.0], [1.0, 1.0, 1.0]])
    assert first_restriction(knot([0.0, 0.0, 0.0], row, [1.0, 1.0, 1.0])) == [0, 1]


def test_of_equal_choices_one_stays():
    row = np.array([[1.0, 2.0, 3.0]] * 4)
    assert first_restriction(knot([5.0] * 4, row, [2.0] * 4)) == [0]


@given(
    seed=st.integers(0, 10**6),
    shape=st.sampled_from(SHAPES),
    tightness=st.sampled_from([None, 0.5, 0.8]),
    integers=st.booleans(),
    alike=st.booleans(),
)
@settings(max_examples=300, deadline=None, derandomize=True)
def test_one_comparison_keeps_the_best_cost(seed, shape, tightness, integers, alike):
    problem = random_problem(
        seed, shape=shape, tightness=tightness, forbidden=0.1, integers=integers, alike=alike
    )
    best = brute_force(problem)
    try:
        _, space = compared(problem)
    except InfeasibleError:
        assert best == np.inf
        return
    small, trail = finish(space)
    assert brute_force(small) == pytest.approx(best, rel=1e-12)
    if np.isfinite(best):
        random = np.random.default_rng(seed)
        picked = [int(random.integers(node.costs.size)) for node in small.nodes]
        expanded = trail.expand(picked)
        assert evaluate(problem, expanded).objective == pytest.approx(
            evaluate(small, picked).objective, rel=1e-12
        )
        assert trail.project(expanded) == tuple(picked)


@given(
    seed=st.integers(0, 10**6),
    shape=st.sampled_from(SHAPES),
    tightness=st.sampled_from([None, 0.5]),
    changed=st.integers(0, 3),
)
@settings(max_examples=100, deadline=None, derandomize=True)
def test_what_is_remembered_of_a_problem_like_it_changes_nothing(seed, shape, tightness, changed):
    problem = random_problem(seed, shape=shape, tightness=tightness, forbidden=0.1)
    nodes = list(problem.nodes)
    changed %= len(nodes)
    nodes[changed] = Node(nodes[changed].name, nodes[changed].costs[::-1] + 1.0)
    like_it = replace(problem, nodes=tuple(nodes))
    known: Compared = {}
    for one in (problem, like_it, problem):
        try:
            alone, trail = presolve(one)
        except InfeasibleError:
            with pytest.raises(InfeasibleError):
                presolve(one, compared=known)
            continue
        small, way = presolve(one, compared=known)
        assert [node.costs.tolist() for node in small.nodes] == [
            node.costs.tolist() for node in alone.nodes
        ]
        start = [0] * len(small.nodes)
        assert way.expand(start) == trail.expand(start)


def test_comparisons_are_remembered():
    problem = knot([0.0, 0.0], np.zeros((2, 3)), [1.0, 1.0])
    known: Compared = {}
    presolve(problem, compared=known)
    once = dict(known)
    assert once
    presolve(problem, compared=known)
    assert known.keys() == once.keys()
    assert all(known[key] is once[key] for key in once)
