"""A bound by branching: parts of the plans, each with messages and prices of its own.

Where memory binds, the relaxation mixes plans: one that spends the memory on one tensor, one that
spends it on another. Messages and prices cannot tell them apart, whatever their values. Split by
what a tensor occupies, each part has a higher bound, and often soon one above the best plan known.

The leaves of the tree are sets of plans: every node has some of its choices there. The bound is the
least bound of a leaf; the leaf that has it is branched next, in the best of some ways that are
tried (`autoshard.solve.branch.ways`). A leaf of few pairs is solved exactly. What no plan of a leaf
that is cheaper than the best one known can take, is dropped: choices whose reduced cost exceeds the
gap, and those that fit beside nothing.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from autoshard.solve.branch.leaf import Leaf, ascent_on, leaf_of
from autoshard.solve.branch.squeeze import squeeze
from autoshard.solve.branch.ways import HALVES, PRICES, Ways
from autoshard.solve.dual import DualAscent
from autoshard.solve.flat import Flat
from autoshard.solve.problem import Booleans, Floats, Integers

PASSES, MOST_ROUNDS = 25, 20
"""Passes of a round, and rounds, of a leaf that was made."""
GAINS = 0.02
"""Rounds go on while one gains this part of the gap that is left."""
EXACT_PAIRS = 60_000
"""Leaves of fewer pairs of choices are solved exactly."""
SMALLER = 0.7
"""A leaf in a leaf that took too long is tried once it has at most this part of its pairs."""
SECONDS = 2.0
"""What an exact leaf may take."""
PATIENCE, SLOW = 15.0, 0.01
"""The tree is slow when so many seconds close less than this part of the gap. It is given up then,
unless it is ahead of the ascent alone, which had the time else."""
AHEAD = 0.02
"""The tree begins anew where an ascent alone is ahead of it by this part of the gap; and so far it
is ahead itself where it goes on though it is slow."""
MEMORY = 4e8
"""Bytes that the leaves may take; the tree grows no further then."""


class Solved(NamedTuple):
    """What no plan costs less than; the best plan met; whether there is none below the bound."""

    bound: float
    plan: Integers | None
    is_best: bool


@dataclass(slots=True, eq=False)
class Tree:
    """Leaves that together hold every plan cheaper than `cutoff`, all without the offset.

    `met` are plans that were met in leaves; what they cost is for the caller to say. It grows no
    more when it is `full`, or gains too little. `stopped` ends a run that is under way in another
    thread.
    """

    flat: Flat
    cutoff: float
    stopped: bool = False
    full: bool = False
    splits: int = 0
    begun: bool = False
    exactly: Callable[[Booleans, float, float], Solved] | None = None
    """Solves a leaf, of the choices given, for plans below a cost, in so many seconds."""
    met: list[Integers] = field(default_factory=list)
    _leaves: list[tuple[float, int, Leaf]] = field(default_factory=list)
    _made: int = 0
    _bytes: int = 0
    _seconds: float = 0.0
    _looked: float = -np.inf
    _root: Leaf | None = None
    _ways: Ways | None = None

    def _begin(self, dual: DualAscent) -> None:
        """The root: all plans, from the best messages and prices of an ascent.

        Anew, it hopes for what every way to branch had gained before.
        """
        hopes = {} if self._root is None else self._root.hopes
        self._leaves.clear()
        self._bytes, self.begun = 0, True
        root = ascent_on(self.flat, dual.alive, dual.best_prices, dual.best_messages)
        self._go_on(root)
        self._keep(root, dual.bound, np.inf, dict(hopes))
        self._root = self._leaves[0][2] if self._leaves else None
        self._looked = self.bound

    @property
    def bound(self) -> float:
        """What no plan costs less than, or the cutoff where there is no cheaper one."""
        return min(self._leaves[0][0], self.cutoff) if self._leaves else self.cutoff

    def floor(self) -> Floats:
        """What no plan with each choice costs less than; infinity where no leaf has it."""
        floor = np.full(self.flat.costs.size, np.inf)
        for _, _, leaf in list(self._leaves):
            np.minimum(floor, leaf.floor, out=floor)
        return floor

    def lowest(self, count: int) -> list[Leaf]:
        """Up to so many leaves, those of the least bounds first."""
        return [leaf for _, _, leaf in heapq.nsmallest(count, list(self._leaves))]

    def run(self, dual: DualAscent, deadline: float) -> None:
        """Split leaves until `deadline` (time.monotonic), until stopped, or until none is left.

        It begins with the messages and prices that the ascent has by the first run, and begins anew
        where the ascent alone has come to a much higher bound since.
        """
        if not self.begun or dual.bound - self.bound > AHEAD * (self.cutoff - self.bound):
            self._begin(dual)
        began = time.monotonic()
        while self._leaves and not self.stopped and not self.full:
            if time.monotonic() > deadline:
                return
            if self._leaves[0][0] >= self.cutoff:
                self._leaves.clear()
                return
            leaf = self._leaves[0][2]
            if (
                leaf.tried == 0.0
            ):  # Its best plan is among those met: the caller knows what it costs.
                return
            if self._solved(leaf):
                continue
            if not self._branched(leaf, deadline):
                return
            slow = self._is_slow(time.monotonic() - began)
            ahead = self.bound - dual.bound > AHEAD * (self.cutoff - dual.bound)
            self.full = self._bytes > MEMORY or (slow and not ahead)
            began = time.monotonic()

    def _branched(self, leaf: Leaf, deadline: float) -> bool:
        """Put the parts of the first leaf in its place; False where there are none, or no time."""

        def is_over() -> bool:
            return self.stopped or time.monotonic() > deadline

        if self._ways is None or self._ways.leaf is not leaf:
            self._ways = Ways(self.flat, leaf, self.cutoff)
        ways, self._ways.cutoff = self._ways, self.cutoff
        if not ways.try_all(is_over):
            return False
        branch, self._ways = ways.best, None
        if branch.parts is None:
            self.full = True
            return False
        heapq.heappop(self._leaves)
        self._bytes -= leaf.size
        self.splits += branch.way != PRICES
        hopes = ways.handed_on()
        for part in branch.parts:
            if branch.way == HALVES:
                self._go_on(part)
            self._keep(part, leaf.bound, leaf.tried, dict(hopes))
        return True

    def _is_slow(self, seconds: float) -> bool:
        """Count seconds; whether those since the last look have closed too little of the gap."""
        self._seconds += seconds
        if self._seconds < PATIENCE:
            return False
        gained = self.bound - self._looked
        slow = gained < SLOW * (self.cutoff - self._looked)
        self._seconds, self._looked = 0.0, self.bound
        return slow

    def _solved(self, leaf: Leaf) -> bool:
        """Solve the first leaf exactly, where it is small; True when its bound is another then."""
        if self.exactly is None:
            return False
        pairs = pairs_alive(self.flat, leaf.alive)
        if pairs > min(EXACT_PAIRS, SMALLER * leaf.tried):
            return False
        solved = self.exactly(leaf.alive, self.cutoff, SECONDS)
        if solved.plan is not None:
            self.met.append(solved.plan)
        leaf.tried = 0.0 if solved.is_best else max(pairs, 1.0)
        if solved.bound <= leaf.bound:
            return False
        heapq.heappop(self._leaves)
        leaf.bound = solved.bound
        np.maximum(leaf.floor, solved.bound, out=leaf.floor)
        if solved.bound < self.cutoff:
            self._made += 1
            heapq.heappush(self._leaves, (leaf.bound, self._made, leaf))
        else:
            self._bytes -= leaf.size
        return True

    def _keep(self, dual: DualAscent, bound: float, tried: float, hopes: dict[int, float]) -> None:
        """A leaf of what an ascent has left, unless nothing cheap enough is; `bound` holds too."""
        flat = self.flat
        value, _, extra = dual.appraisal()
        floor = np.maximum(value + extra, bound)
        alive = dual.alive & (floor < self.cutoff)
        value = max(value, bound)
        if value >= self.cutoff or not squeeze(flat, alive):
            return
        if int(alive.sum()) == flat.node_count:
            self.met.append(np.flatnonzero(alive) - flat.node_start[:-1])
            return
        floor[~alive] = np.inf
        leaf = leaf_of(dual, alive, value, floor, tried, hopes)
        self._made += 1
        self._bytes += leaf.size
        heapq.heappush(self._leaves, (value, self._made, leaf))

    def _go_on(self, ascent: DualAscent) -> None:
        """Passes until they gain little."""
        for _ in range(MOST_ROUNDS):
            before = ascent.bound
            if self.stopped or before >= self.cutoff:
                return
            ascent.run(self.cutoff, np.inf, PASSES, self.cutoff)
            if ascent.bound - before < GAINS * (self.cutoff - before):
                return


def pairs_alive(flat: Flat, alive: Booleans) -> float:
    """How many pairs of choices that are alive the edges have, between nodes of several."""
    counts = np.add.reduceat(alive.astype(np.float64), flat.node_start[:-1])
    counts[counts <= 1] = 0.0
    return float((counts[flat.u] * counts[flat.v]).sum())
