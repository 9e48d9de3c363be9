"""The smallest limit, on problems where it is known; random programs are in `test_brute_force`."""

from __future__ import annotations

import numpy as np
import pytest

from autoshard.solve.problem import Edge, Node, Problem, ProblemError, Usage
from autoshard.solve.sensitivity.minimum import minimum_limit


def chain(count: int, exclude: bool = False) -> Problem:
    """Nodes that are dear and small, or cheap and large; each lives with its neighbour."""
    nodes = tuple(Node(str(k), np.array([1.0, 0.0])) for k in range(count))
    usages = tuple(Usage(k, np.array([10.0, 100.0]), k, k + 2) for k in range(count))
    # With `exclude`, neighbours may not both be small.
    table = np.array([[np.inf, 0.0], [0.0, 0.0]])
    edges = tuple(Edge.dense(k, k + 1, table) for k in range(count - 1)) if exclude else ()
    return Problem(nodes, edges, usages, None)


def test_all_small() -> None:
    found = minimum_limit(chain(6))
    assert found.achieved == 20.0
    assert found.choices == (0,) * 6


def test_neighbours_that_exclude_each_other() -> None:
    found = minimum_limit(chain(6, exclude=True))
    assert found.achieved == 110.0
    assert all(a + b >= 1 for a, b in zip(found.choices, found.choices[1:], strict=False))


def test_a_known_plan_is_where_the_search_starts() -> None:
    assert minimum_limit(chain(4), warm_start=[(0, 0, 0, 0)], refused=19.9).achieved == 20.0


def test_no_plan_at_all() -> None:
    nodes = (Node("a", np.zeros(1)), Node("b", np.zeros(1)))
    nothing = Problem(nodes, (Edge.dense(0, 1, [[np.inf]]),), (), None)
    with pytest.raises(ProblemError, match="no plan exists, whatever the memory limit"):
        minimum_limit(nothing)
