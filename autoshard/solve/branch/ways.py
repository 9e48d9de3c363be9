"""Ways to branch a leaf, each tried with a few passes: hubs, two parts, better prices.

    hub       a node into all its choices            gains (least bound - bound) / log2 parts
    halves    a node by what it occupies, or by a group of choices   gains (lesser bound - bound)
    prices    no parts: passes that move the prices of memory

What a way gained in one leaf it is hoped to gain in the leaves below, where it is tried again only
while nothing else that was tried there has gained as much. Hopes of halves grow as hubs are
decided, for then they come to matter. Prices that suited all parts of a node suit none of them: in
a leaf that is such a part better prices come first, and are taken wherever they gain enough.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from autoshard.solve.branch.cases import decide, hubs
from autoshard.solve.branch.leaf import Leaf, ascent_within
from autoshard.solve.branch.splits import Split, splits
from autoshard.solve.branch.squeeze import squeeze
from autoshard.solve.dual import DualAscent
from autoshard.solve.flat import Flat
from autoshard.solve.problem import Booleans, Floats, Integers

PRICES, HALVES = -1, -2
"""The ways that are no hubs; a hub is the number of its node."""
FIRST, FURTHER = 24, 4
"""Nodes that are tried as hubs in the root; and in a leaf where those known gain too little."""
TRIES = 3
"""So many ways of which there is hope are tried in a leaf."""
WORTH, PRICE_WORTH = 0.01, 3e-3
"""A hub must gain this part of the gap; better prices, which make no parts, the second."""
PRICE_PASSES, PRICE_HOPE = 100, 0.05
"""Passes for better prices; and what they are hoped to gain in the root, as a part of the gap."""
SOFTNESSES = (1e-4, 1e-3)
"""Of passes for better prices (`DualAscent`): what one has left out of reach another finds."""
RENEWED, ADDED = 1.2, 2e-3
"""How the hopes of prices and halves grow with every hub; the second is a part of the gap."""
TRIAL_PASSES = 25
"""Passes with which two parts are tried."""
LEAST = 1e-3
"""A part gains at least this part of the gap, where halves are compared."""
FAILS = 5
"""Trials of halves end after so many that are no better than the best so far."""


class Branch(NamedTuple):
    """A way that was tried, its gain, and its parts: None where it is not worth them."""

    way: int
    gain: float
    parts: list[DualAscent] | None


@dataclass(slots=True, eq=False)
class Ways:
    """Ways to branch a leaf for plans cheaper than a cutoff, and the best one tried so far."""

    flat: Flat
    leaf: Leaf
    cutoff: float
    best: Branch = field(init=False, default=Branch(HALVES, -1.0, None))
    _tried: set[int] = field(default_factory=set)
    _tries: int = TRIES
    _widened: bool = False
    _floor: Floats = field(init=False)
    _extra: Floats = field(init=False)
    _priced: Floats = field(init=False)
    _hubs: Integers = field(init=False)

    def __post_init__(self) -> None:
        leaf = self.leaf
        whole = ascent_within(self.flat, leaf, leaf.alive)
        value, _, self._extra = whole.appraisal()
        self._floor = np.where(leaf.alive, np.maximum(value + self._extra, leaf.bound), np.inf)
        self._priced = whole.priced_usage()
        self._hubs = hubs(self.flat, leaf.alive, self._extra, self._gap)
        count = np.add.reduceat(leaf.alive.astype(np.int64), self.flat.node_start[:-1])
        for way in [way for way in leaf.hopes if way >= 0 and count[way] == 1]:
            del leaf.hopes[way]
        if not leaf.hopes:
            leaf.hopes = {HALVES: np.inf}
            if self.flat.capacity.size:
                leaf.hopes[PRICES] = PRICE_HOPE * self._gap
            leaf.hopes.update(dict.fromkeys(self._hubs[:FIRST].tolist(), np.inf))

    @property
    def _gap(self) -> float:
        return self.cutoff - self.leaf.bound

    def try_all(self, is_over: Callable[[], bool]) -> bool:
        """Try ways until the best is found, if it has parts; False where time was over before.

        Where it was, the next call goes on.
        """
        while (way := self._next()) is not None:
            if is_over():
                return False
            hopes = self.leaf.hopes
            self._tries -= hopes[way] < np.inf
            found = self._try(way, self.best.gain)
            self._tried.add(way)
            hopes[way] = found.gain
            if found.parts is not None and found.gain > self.best.gain:
                self.best = found
            if way == PRICES and self.best.way == PRICES:
                return True
        return True

    def _next(self) -> int | None:
        """The way to try next: there is more hope of it than the best one gains."""
        hopes = self.leaf.hopes
        way = PRICES if hopes.get(PRICES) == np.inf else max(hopes, key=hopes.__getitem__)
        enough = hopes[way] <= self.best.gain or way in self._tried
        if not enough and (self._tries > 0 or hopes[way] == np.inf):
            return way
        if self.best.gain < WORTH * self._gap and not self._widened:
            self._widened = True
            further = [node for node in self._hubs.tolist() if node not in hopes][:FURTHER]
            hopes.update(dict.fromkeys(further, np.inf))
            return self._next()
        return HALVES if self.best.parts is None and HALVES not in self._tried else None

    def handed_on(self) -> dict[int, float]:
        """What the parts of the best way hope for."""
        branch = self.best
        hopes = {way: hope for way, hope in self.leaf.hopes.items() if way != branch.way}
        for way in (PRICES, HALVES):
            if branch.way == way or way not in hopes:
                hopes[way] = branch.gain
            elif branch.way != PRICES:
                hopes[way] = RENEWED * hopes[way] + ADDED * self._gap
        if branch.way != PRICES and self.flat.capacity.size:
            hopes[PRICES] = np.inf
        return hopes

    def _try(self, way: int, rival: float) -> Branch:
        """Try a way; `rival` is what the best one so far gains."""
        if way == HALVES:
            return self._halves()
        if way == PRICES:
            return self._prices(rival)
        worth = max(rival, WORTH * self._gap)
        start, stop = self.flat.span(way)
        bits = np.log2(max(np.count_nonzero(self._floor[start:stop] < self.cutoff), 2))

        def begin(part: Booleans) -> DualAscent | None:
            ascent = self._part(way, part)
            if ascent is not None:
                ascent.still = True
            return ascent

        least = self.leaf.bound
        cases = decide(self.flat, way, self._floor, least, self.cutoff, begin, least + worth * bits)
        return Branch(way, max(cases.bound - least, 0.0) / bits, cases.parts)

    def _prices(self, rival: float) -> Branch:
        """Passes that move the prices, at one softness, and at another where that gains little."""
        best, gain = None, 0.0
        for softness in SOFTNESSES:
            ascent = ascent_within(self.flat, self.leaf, self.leaf.alive)
            ascent.softness = softness
            ascent.run(self.cutoff, np.inf, PRICE_PASSES, self.cutoff)
            found = min(ascent.bound, self.cutoff) - self.leaf.bound
            if found > gain:
                best, gain = [ascent], found
            if gain >= WORTH * self._gap:
                break
        return Branch(PRICES, gain, best if gain >= max(rival, PRICE_WORTH * self._gap) else None)

    def _part(self, node: int, part: Booleans) -> DualAscent | None:
        """An ascent where a node takes the choices marked; None where no plan keeps the limits."""
        alive = self.leaf.alive.copy()
        start, stop = self.flat.span(node)
        alive[start:stop] &= part
        return ascent_within(self.flat, self.leaf, alive) if squeeze(self.flat, alive) else None

    def _halves(self) -> Branch:
        """The best split in two of those tried."""
        gap = self._gap
        best, least = None, 0.0
        gain, fails = -1.0, 0
        for split in splits(self.flat, self.leaf.alive, self._priced, self._extra, gap):
            parts = self._two(split)
            gains = sorted(min(part.bound, self.cutoff) - self.leaf.bound for part in parts)
            gains = [gap] * (2 - len(gains)) if not gains else [*gains, gap][:2]
            found = (max(gains[0], 0.0) + LEAST * gap) * (max(gains[1], 0.0) + LEAST * gap)
            fails = 0 if found > gain else fails + 1
            if found > gain:
                best, gain, least = parts, found, max(gains[0], 0.0)
            if fails >= FAILS or not parts:
                break
        return Branch(HALVES, least, best)

    def _two(self, split: Split) -> list[DualAscent]:
        """Ascents on the two parts of a split that may hold a plan cheap enough."""
        found = []
        for part in (split.part, ~split.part):
            ascent = self._part(split.node, part)
            if ascent is not None:
                ascent.run(self.cutoff, np.inf, TRIAL_PASSES, self.cutoff)
                if ascent.bound < self.cutoff:
                    found.append(ascent)
        return found
