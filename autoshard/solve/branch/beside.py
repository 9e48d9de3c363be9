"""What goes on beside a window: passes on the whole problem, and a tree of splits, in turns.

Passes come first: what they find all leaves begin with, and the better it is the fewer leaves there
are. Once they gain little, several turns in a row, half of the time goes to the root of the tree,
where many ways to branch are tried. From its first split on the tree has all the time: what it
raises the bound to passes alone would have to come to first. They go on once it has ended.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from autoshard.solve.branch.tree import AHEAD, Tree
from autoshard.solve.dual import DualAscent

PASSES = 300
"""Passes at a time, in turns of the ascent that end when they gain little."""
SECONDS = 3.0
"""Seconds that splits have at a time."""
SLOW, IN_A_ROW = 5e-3, 3
"""A turn of passes gains little if it closes less than this part of the gap; passes are slow once
so many turns in a row gain little, as some do before another way gains much."""
WIDEST = 0.03
"""A gap counts as no wider than this part of the bound: a plan that is poor says nothing of it."""


@dataclass(slots=True, eq=False)
class Beside:
    """The ascent and the tree, where there is one, of one level."""

    dual: DualAscent
    tree: Tree | None
    _slow: bool = False
    _little: int = 0
    """Turns of passes in a row that gained little."""
    _turn_from: tuple[int, float] = (0, -math.inf)
    """The passes and the bound where the present turn of passes began."""
    _seconds_before_splits: float = 0.0
    """Of the tree, less those of passes since they became slow."""

    def stop(self) -> None:
        """End a run that is under way in another thread; to be undone by `go_on`."""
        self.dual.stopped = True
        if self.tree is not None:
            self.tree.stopped = True

    def go_on(self) -> None:
        self.dual.stopped = False
        if self.tree is not None:
            self.tree.stopped = False

    def run(self, upper: float, known: float, deadline: float) -> None:
        """Passes and splits until stopped, until `deadline`, or until neither has more to do.

        `upper` is what the best plan known costs, `known` what no plan costs less than.
        """
        dual, more = self.dual, self.tree is not None
        while not dual.stopped and dual.bound <= dual.worst and time.monotonic() < deadline:
            if dual.settled and not more:
                return
            began = time.monotonic()
            if more and self._split_is_due:
                more = self._split(min(deadline, began + SECONDS))
                self._seconds_before_splits += time.monotonic() - began
            else:
                self._pass_on(upper, known, deadline)
                self._seconds_before_splits -= time.monotonic() - began if self._slow else 0.0

    @property
    def _split_is_due(self) -> bool:
        if self.dual.settled or self.tree is None or self.tree.splits > 0:
            return True
        return self._slow and self._seconds_before_splits <= 0.0

    def _split(self, until: float) -> bool:
        """Splits for some time; whether there is more to split."""
        tree = self.tree
        if tree is None or tree.full:
            return False
        tree.run(self.dual, until)
        return tree.stopped or time.monotonic() >= until

    def _pass_on(self, upper: float, known: float, deadline: float) -> None:
        """Passes, in another way where a turn of them gains little, windows or not."""
        dual = self.dual
        dual.run(upper, deadline, PASSES)
        passes, before = self._turn_from
        if dual.passes - passes < PASSES:
            return
        self._turn_from = dual.passes, dual.bound
        gap = min(upper - dual.bound, WIDEST * abs(dual.bound))
        little = dual.bound - before < SLOW * gap
        self._little = self._little + 1 if little else 0
        self._slow = self._little >= IN_A_ROW and known - dual.bound <= AHEAD * (upper - dual.bound)
        if not dual.has_gained(before, upper):
            dual.turn(upper)
