"""Tables that only say what is allowed are the tables that they stand for."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from autoshard.solve import Edge, Node, Problem, evaluate, solve
from autoshard.solve.allowed import Allowed
from autoshard.solve.flat import flatten


def random_table(random, rows, columns):
    """A table of zeros and +inf with one or two allowed columns a row."""
    ends = np.sort(random.integers(0, columns, size=(rows, 2)), axis=1)
    return Allowed(ends[:, 0], ends[:, 1], columns)


def both_ways(seed, rows=40, columns=12, nodes=4):
    """A chain of nodes joined by such tables, and the same with the tables written out."""
    random = np.random.default_rng(seed)
    sizes = random.integers(20, 60, size=nodes)
    own = tuple(Node(f"n{i}", random.random(size)) for i, size in enumerate(sizes))
    edges = []
    for u in range(nodes - 1):
        table = random_table(random, rows, columns)
        left = random.integers(0, rows, size=sizes[u])
        edges.append(Edge(u, u + 1, table, left, random.integers(0, columns, size=sizes[u + 1])))
    dense = [Edge(e.u, e.v, e.table.copy(), e.left, e.right) for e in edges]
    return Problem(own, tuple(edges)), Problem(own, tuple(dense))


@pytest.mark.parametrize("seed", range(5))
def test_costs_and_arrays_are_those_of_the_table_written_out(seed):
    brief, dense = both_ways(seed)
    for one, other in zip(brief.edges, dense.edges, strict=True):
        assert (one.pair_costs() == other.pair_costs()).all()
        rows, columns = one.costs.shape
        assert all(one.cost(i, j) == other.cost(i, j) for i in range(rows) for j in range(columns))
    for written in (True, False):
        one, other = flatten(brief, dense=written), flatten(dense, dense=written)
        names = [each.name for each in fields(one)]
        assert all(np.array_equal(getattr(one, n), getattr(other, n)) for n in names)


@pytest.mark.parametrize("seed", range(5))
def test_solves_to_the_same_plan(seed):
    brief, dense = both_ways(seed)
    ours, theirs = solve(brief), solve(dense)
    assert ours.status is theirs.status
    if ours.solution is not None:
        assert ours.report.objective == pytest.approx(theirs.report.objective, rel=1e-12)
        assert evaluate(dense, ours.solution.choices).feasible


def test_errors_name_what_is_wrong():
    with pytest.raises(ValueError, match="shapes"):
        Allowed(np.zeros(2, np.int64), np.zeros(3, np.int64), 2)
    with pytest.raises(ValueError, match="0 <= first <= last < 2"):
        Allowed(np.array([1]), np.array([2]), 2)
    with pytest.raises(ValueError, match="0 <= first <= last < 3"):
        Allowed(np.array([2]), np.array([1]), 3)
