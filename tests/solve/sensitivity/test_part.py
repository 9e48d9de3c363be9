"""Parts of the costs: what a scale makes of a problem, and of the price of a plan."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoshard.solve import Edge, Node, Problem, ProblemError, evaluate
from autoshard.solve.sensitivity.part import Part, part_cost, scaled
from tests.solve.helpers import random_problem


def random_part(problem: Problem, seed: int) -> Part:
    """Some of the costs of some nodes and edges; of either sign."""
    random = np.random.default_rng(seed)
    nodes = {
        number: random.normal(size=node.costs.size)
        for number, node in enumerate(problem.nodes)
        if random.random() < 0.6
    }
    edges = {
        number: random.normal(size=edge.table.shape)
        for number, edge in enumerate(problem.edges)
        if random.random() < 0.6
    }
    return Part(nodes, edges)


@given(seed=st.integers(0, 10**6), scale=st.floats(0.0, 50.0))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_a_plan_costs_the_rest_and_the_scale_times_the_part(seed, scale):
    problem = random_problem(seed, forbidden=0.2)
    part = random_part(problem, seed)
    random = np.random.default_rng(seed + 1)
    choices = [int(random.integers(node.costs.size)) for node in problem.nodes]
    now, then, alone = (evaluate(scaled(problem, part, s), choices) for s in (1.0, scale, math.inf))
    assert (now.violations, now.peak) == (then.violations, then.peak)
    assert now.violations == alone.violations
    if math.isinf(now.objective):
        assert math.isinf(then.objective)
        assert math.isinf(alone.objective)
        return
    cost = part_cost(problem, part, choices)
    assert now.objective == evaluate(problem, choices).objective
    assert then.objective == pytest.approx(now.objective + (scale - 1.0) * cost, abs=1e-9)
    assert alone.objective == pytest.approx(cost, abs=1e-12)


def test_scales_of_one_table_stay_one_table():
    table = np.array([[0.0, 1.0], [np.inf, 2.0]])
    nodes = tuple(Node(f"n{i}", np.ones(2)) for i in range(4))
    problem = Problem(nodes, tuple(Edge.dense(i, i + 1, table) for i in range(3)), offset=7.0)
    half = scaled(problem, Part.of(problem, nodes=[0], edges=[0, 1]), 0.5)
    assert half.edges[0].table is half.edges[1].table
    assert half.edges[2].table is problem.edges[2].table
    assert half.edges[0].table.tolist() == [[0.0, 0.5], [math.inf, 1.0]]
    assert [node.costs.tolist() for node in half.nodes[:2]] == [[0.5, 0.5], [1.0, 1.0]]
    assert half.offset == 7.0
    assert scaled(problem, Part.all(problem), 1.0) is problem


def test_faults_are_named_all_at_once():
    problem = Problem(
        (Node("a", np.zeros(2)), Node("b", np.zeros(3))), (Edge.dense(0, 1, np.zeros((2, 3))),)
    )
    part = Part(
        {0: np.zeros(3), 1: np.array([1.0, np.nan, 0.0]), 5: np.zeros(1)}, {0: np.zeros((3, 2))}
    )
    with pytest.raises(ProblemError) as caught:
        scaled(problem, part, -1.0)
    assert str(caught.value) == (
        "a part of the costs does not fit:\n"
        "  - scale is -1.0; give a number >= 0\n"
        "  - node 0: shape (3,); its costs are (2,)\n"
        "  - node 1: not finite where its costs are\n"
        "  - node 5: there is no such node\n"
        "  - edge 0: shape (3, 2); its costs are (2, 3)"
    )
    with pytest.raises(ProblemError) as caught:
        Part.of(problem, nodes=[1, 2], edges=[-1])
    assert str(caught.value) == "a part of the costs names what does not exist: node 2, edge -1"
