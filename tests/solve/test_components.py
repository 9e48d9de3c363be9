"""Components: what can be solved apart, and that solving apart is right."""

from __future__ import annotations

import doctest
import math

import numpy as np
import pytest

from autoshard.solve import Edge, Node, Problem, Usage, evaluate
from autoshard.solve import components as module
from autoshard.solve.components import component, components
from tests.solve.helpers import SHAPES, brute_force, random_problem


def test_the_example():
    names = {"np": np, "Node": Node, "Problem": Problem, "Edge": Edge}
    assert doctest.testmod(module, extraglobs=names).failed == 0


def test_memory_joins_what_is_alive_together():
    nodes = [Node(f"n{i}", np.zeros(2)) for i in range(5)]
    swing, even = np.array([1.0, 2.0]), np.array([3.0, 3.0])
    usages = [
        Usage(0, swing, 0, 2),
        Usage(1, swing, 1, 3),
        Usage(2, swing, 3, 5),
        Usage(3, even, 0, 9),
        Usage(4, swing, 4, 4),
    ]
    problem = Problem(nodes, (), usages, 5.0)
    assert [part.tolist() for part in components(problem)] == [[0, 1], [2], [3], [4]]
    alone = components(Problem(nodes, (), usages))
    assert [part.tolist() for part in alone] == [[0], [1], [2], [3], [4]]
    assert components(Problem(())) == []


@pytest.mark.parametrize("shape", SHAPES)
def test_the_best_of_the_whole_is_the_sum_of_the_best(shape):
    several = 0
    for seed in range(60):
        problem = random_problem(seed, shape=shape, forbidden=0.1, tightness=[None, 0.7][seed % 2])
        parts = components(problem)
        assert sorted(np.concatenate(parts).tolist()) == list(range(len(problem.nodes)))
        several += len(parts) > 1
        fixed = evaluate(Problem(problem.nodes, (), _least(problem)), [0] * len(problem.nodes)).peak
        if problem.limit is not None and fixed > problem.limit:
            continue  # the limit is broken whatever the parts do
        best = problem.offset + sum(brute_force(component(problem, part)) for part in parts)
        whole = brute_force(problem)
        assert best == pytest.approx(whole, rel=1e-12) or (math.isinf(best) and math.isinf(whole))
    assert several or shape in ("tree", "clique", "grid", "bipartite", "ring", "parallel")


def _least(problem: Problem) -> list[Usage]:
    return [
        Usage(u.node, np.full_like(u.amounts, u.amounts.min()), u.start, u.stop)
        for u in problem.usages
    ]


def test_edges_that_lead_out_are_named():
    nodes = [Node(name, np.zeros(2)) for name in ("a", "b", "c")]
    edges = [Edge.dense(0, 1, np.eye(2)), Edge.dense(2, 1, np.eye(2))]
    with pytest.raises(
        ValueError, match=r"^1 edge out of the nodes given: c - b; give whole components$"
    ):
        component(Problem(nodes, edges), np.array([0, 1]))
