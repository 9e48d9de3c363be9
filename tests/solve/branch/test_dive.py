"""Plans in leaves of a tree."""

from __future__ import annotations

import math

import numpy as np

from autoshard.solve.branch.dive import ROUNDS, Dive
from autoshard.solve.branch.tree import Tree
from autoshard.solve.dual import DualAscent
from autoshard.solve.flat import flatten
from tests.solve.branch.test_tree import plans, rival_plans


def test_plans_of_a_leaf_take_what_is_left_there_and_cost_what_they_cost():
    problem = rival_plans(4)
    costs = plans(problem)
    flat = flatten(problem)
    dual, tree = DualAscent(flat), Tree(flat, min(costs.values()) + 5.0)
    dual.run(tree.cutoff, math.inf, 5)
    dive = Dive(tree)
    assert dive.next_round() is None
    assert dive.next_round() is None
    tree.run(dual, 0.0)
    assert tree.begun
    seen = []
    for _ in range(3 * ROUNDS):
        assert dive.next_round() is None
        found = dive.next_round()
        leaves = tree.lowest(8)
        assert (found is None) == (not leaves)
        if found is None:
            break
        found.run(40.0, math.inf)
        if found.best is not None:
            assert found.best_cost == costs[tuple(found.best.tolist())]
            where = flat.node_start[:-1] + found.best
            assert any(leaf.alive[where].all() for leaf in leaves)
        if all(found is not one for one in seen):
            seen.append(found)
    assert len(seen) == 3
    assert all(np.isfinite(one.conflict_cost) for one in seen)
