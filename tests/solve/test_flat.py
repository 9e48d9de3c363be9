"""A problem as flat arrays: what is beside each node, and the spans of tables."""

from __future__ import annotations

import numpy as np
import pytest

from autoshard.solve import Edge, Node, Problem
from autoshard.solve.flat import edge_spans, flatten
from tests.solve.helpers import random_problem


@pytest.mark.parametrize("seed", range(8))
def test_every_node_knows_its_edges_and_its_groups_there(seed):
    problem = random_problem(seed, shape="random", forbidden=0.2)
    flat = flatten(problem)
    assert flat.near.size == 6 * flat.near_edge.size == 12 * len(problem.edges)
    near = flat.near.reshape(-1, 6)
    for number, node in enumerate(problem.nodes):
        first, last = flat.near_start[number : number + 2]
        edges = [e for e, edge in enumerate(problem.edges) if number in (edge.u, edge.v)]
        assert flat.near_edge[first:last].tolist() == near[first:last, 1].tolist() == edges
        for other, e, width, mine, theirs, group in near[first:last].tolist():
            edge, begin = problem.edges[e], int(flat.message_start[e])
            is_u = edge.u == number
            rows, columns = edge.costs.shape
            assert other == (edge.v if is_u else edge.u)
            assert width == (rows if is_u else columns)
            assert (mine, theirs) == ((begin, begin + rows) if is_u else (begin + rows, begin))
            groups = edge.left if is_u else edge.right
            if group < 0:
                assert width == node.costs.size
                assert groups.tolist() == list(range(width))
            else:
                assert flat.groups[group : group + node.costs.size].tolist() == groups.tolist()


@pytest.mark.parametrize("dense", [True, False])
def test_spans_are_those_of_what_is_allowed(dense):
    random = np.random.default_rng(3)
    nodes = [Node(f"n{i}", np.zeros(size)) for i, size in enumerate((30, 20, 4, 3))]
    seen = np.full((30, 20), np.inf)
    seen[np.arange(30), random.integers(20, size=30)] = random.uniform(-3, 9, 30)
    small = random.uniform(-5, 5, (4, 3))
    small[0, 1] = np.inf
    edges = [
        Edge.dense(0, 1, seen),
        Edge.dense(2, 3, small),
        Edge.dense(1, 2, np.full((20, 4), 2.0)),
        Edge.dense(0, 3, np.full((30, 3), np.inf)),
    ]
    low, high = edge_spans(flatten(Problem(nodes, edges), dense=dense))
    for e, edge in enumerate(edges):
        allowed = edge.table[edge.table < np.inf] * edge.weight
        assert low[e] == allowed.min(initial=np.inf)
        assert high[e] == allowed.max(initial=-np.inf)
