"""Reasons for infeasibility: never given for a problem that has a solution, and they name names."""

from __future__ import annotations

import numpy as np
import pytest

from autoshard.solve import Edge, Node, Problem, Usage
from autoshard.solve.conflict import conflict
from tests.solve.helpers import brute_force, random_problem

FREE = np.zeros(2)
EQUAL = np.array([[0.0, np.inf], [np.inf, 0.0]])
UNEQUAL = np.array([[np.inf, 0.0], [0.0, np.inf]])


@pytest.mark.parametrize("shape", ["random", "tree", "clique", "grid"])
def test_a_reason_means_that_there_is_no_solution(shape):
    reasons = []
    for seed in range(150):
        problem = random_problem(seed, shape=shape, forbidden=0.6, tightness=0.3)
        why = conflict(problem)
        if why:
            assert brute_force(problem) == np.inf
            reasons.append("forbidden pairs" in why)
    assert any(reasons)
    assert not all(reasons)


def test_trees_are_decided_by_their_pairs():
    found = 0
    for seed in range(200):
        problem = random_problem(seed, shape="tree", forbidden=0.6, tightness=None)
        assert bool(conflict(problem)) == (brute_force(problem) == np.inf)
        found += bool(conflict(problem))
    assert 0 < found < 200


def test_names_the_node_and_the_edges():
    nodes = tuple(Node(name, FREE) for name in "abcd")
    first = np.array([[0.0, 0.0], [np.inf, np.inf]])
    edges = (
        Edge.dense(0, 1, first),
        Edge.dense(2, 1, EQUAL),
        Edge.dense(2, 3, [[np.inf, np.inf], [0.0, 0.0]]),
        Edge.dense(0, 2, EQUAL),
    )
    assert conflict(Problem(nodes, edges)) == (
        "c has no choice left under the forbidden pairs of edges c - d, a - c, a - b"
    )
    nothing = Edge.dense(3, 1, np.full((2, 2), np.inf))
    assert conflict(Problem(nodes, (nothing,))) == (
        "b has no choice left under the forbidden pairs of edge d - b"
    )


def test_names_the_time_and_the_nodes():
    nodes = tuple(Node(f"n{i}", FREE) for i in range(8))
    usages = [Usage(i, np.array([i + 1.0, 9.0]), i // 4, 2) for i in range(8)]
    usages.append(Usage(0, np.array([100.0, 100.0]), 5, 5))
    problem = Problem(nodes, (), tuple(usages), 35.0)
    assert conflict(problem) == (
        "at time 1 the lightest choices use 36, and the limit is 35: n7 8, n6 7, n5 6, n4 5, n3 4 "
        "and 3 more; no limit below 36 can work"
    )
    assert conflict(Problem(nodes, (), tuple(usages), 36.0)) == ""


def test_choices_that_pairs_exclude_do_not_count_as_light():
    nodes = (Node("a", FREE), Node("b", np.zeros(1)))
    edges = (Edge.dense(0, 1, [[np.inf], [0.0]]),)
    usages = (Usage(0, np.array([1.0, 5.0]), 0, 1),)
    assert conflict(Problem(nodes, edges, usages, 3.0)) == (
        "at time 0 the lightest choices use 5, and the limit is 3: a 5; no limit below 5 can work"
    )


def test_what_only_a_search_finds_has_no_reason_here():
    nodes = tuple(Node(name, FREE) for name in "abc")
    odd = tuple(Edge.dense(u, v, UNEQUAL) for u, v in ((0, 1), (1, 2), (2, 0)))
    assert brute_force(Problem(nodes, odd)) == np.inf
    assert conflict(Problem(nodes, odd)) == ""
