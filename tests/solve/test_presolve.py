"""Each reduction keeps the best cost, and its inverse gives a plan of exactly that cost."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoshard.solve import Edge, Node, Problem, Usage, evaluate
from autoshard.solve.presolve import presolve
from autoshard.solve.trail import InfeasibleError
from tests.solve.helpers import brute_force, random_problem
from tests.solve.transformer import transformer


@given(
    seed=st.integers(0, 10**6),
    shape=st.sampled_from(["random", "tree", "grid", "clique"]),
    tightness=st.sampled_from([None, 0.5, 0.8]),
    dominance=st.booleans(),
)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_keeps_the_best_cost(seed, shape, tightness, dominance):
    problem = random_problem(seed, shape=shape, tightness=tightness)
    best = brute_force(problem)
    try:
        small, trail = presolve(problem, dominance=dominance)
    except InfeasibleError:
        assert math.isinf(best)
        return
    assert brute_force(small) == pytest.approx(best, rel=1e-12, abs=1e-12)
    sizes = [node.costs.size for node in small.nodes]
    random = np.random.default_rng(seed)
    for _ in range(5):
        picked = [int(random.integers(size)) for size in sizes]
        inside = evaluate(small, picked)
        outside = evaluate(problem, trail.expand(picked))
        assert outside.objective == pytest.approx(inside.objective, rel=1e-12, abs=1e-12)
        assert outside.feasible == inside.feasible


def test_a_chain_is_eliminated_whole():
    nodes = tuple(Node(f"n{i}", np.arange(4.0)) for i in range(50))
    table = np.random.default_rng(0).random((4, 4))
    edges = tuple(Edge.dense(i, i + 1, table) for i in range(49))
    small, trail = presolve(Problem(nodes, edges))
    assert len(small.nodes) == 0
    assert evaluate(Problem(nodes, edges), trail.expand(())).objective == pytest.approx(
        small.offset
    )


def test_a_node_whose_memory_matters_is_not_decided_by_cost_alone():
    nodes = (Node("cheap or light", np.array([0.0, 1.0])), Node("same", np.array([0.0, 1.0])))
    usages = tuple(Usage(i, np.array([8.0, 2.0]), 0, 1) for i in range(2))
    small, _ = presolve(Problem(nodes, (), usages, 12.0))
    assert [node.name for node in small.nodes] == ["cheap or light", "same", "(fixed)"]
    assert brute_force(small) == 1.0


def test_pins_and_projection_of_a_plan():
    nodes = tuple(Node(f"n{i}", np.array([0.0, 0.0, 0.0])) for i in range(3))
    table = np.array([[0.0, 1.0, 2.0], [1.0, 0.0, 1.0], [2.0, 1.0, 0.5]])
    edges = tuple(Edge.dense(u, v, table) for u, v in ((0, 1), (1, 2), (2, 0)))
    usages = tuple(Usage(i, np.array([1.0, 2.0, 3.0]), 0, 1) for i in range(3))
    problem = Problem(nodes, edges, usages, 6.0)
    small, trail = presolve(problem, {0: [1, 2]})
    picked = trail.project((1, 1, 1))
    assert len(picked) == len(small.nodes)
    assert all(
        -1 <= choice < node.costs.size for choice, node in zip(picked, small.nodes, strict=True)
    )


def test_transformer_shrinks():
    problem = transformer(axes=(4, 2))
    small, _ = presolve(problem)
    assert len(small.nodes) < 0.7 * len(problem.nodes)
