"""Plans within leaves of a tree of splits, under the prices and the messages of each.

The relaxation of all plans mixes ways to lay out a program, and so do plans that are rounded from
it. In a leaf the hubs are decided, and its prices are right for what was decided: plans rounded
there are often better than any near the best one known.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from autoshard.solve.branch.tree import Tree
from autoshard.solve.primal import ForestSearch

ROUNDS = 10
"""Rounds of moves in one leaf."""
LOWEST = 8
"""So many leaves of the least bounds are looked at in turn."""


@dataclass(slots=True, eq=False)
class Dive:
    """A search for plans in a leaf of the tree, and in another one after some rounds."""

    tree: Tree
    plans: ForestSearch | None = field(init=False, default=None)
    _rounds: int = 0
    _dives: int = 0
    _asked: int = 0

    def next_round(self) -> ForestSearch | None:
        """The search that a round of moves is due to: None in every other round, and where the tree
        has no leaves."""
        self._asked += 1
        if not self.tree.begun or self._asked % 2:
            return None
        if self.plans is None or self._rounds >= ROUNDS:
            self.plans, self._rounds = self._begin(), 0
        self._rounds += 1
        return self.plans

    def _begin(self) -> ForestSearch | None:
        leaves = self.tree.lowest(LOWEST)
        if not leaves:
            return None
        flat = self.tree.flat
        leaf = leaves[self._dives % len(leaves)]
        self._dives += 1
        prices = np.zeros(flat.capacity.size)
        prices[leaf.rows] = leaf.prices
        plans = ForestSearch(flat, prices, leaf.messages.astype(np.float64), self._dives)
        costs = np.where(leaf.alive, flat.costs, flat.costs + plans.conflict_cost)
        plans.flat = replace(flat, costs=costs)
        return plans
