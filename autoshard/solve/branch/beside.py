"""What goes on beside a window: passes on the whole problem, and a tree of splits, in turns.

Passes come first: what they find all leaves begin with. Once they gain little, time goes to
whichever of the two has lately raised the bound more per second (`autoshard.solve.turns`).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from autoshard.solve.branch.tree import AHEAD, Tree
from autoshard.solve.dual import DualAscent
from autoshard.solve.turns import Kind, Turns

PASSES = 300
"""Passes at a time, in turns of the ascent that end when they gain little."""
SECONDS = 3.0
"""Seconds that splits have at a time."""
SLOW = 3e-3
"""Passes gain little once a turn of theirs closes less than this part of the gap."""


@dataclass(slots=True, eq=False)
class Beside:
    """The ascent and the tree, where there is one, of one level."""

    dual: DualAscent
    tree: Tree | None
    _slow: bool = False
    _turns: Turns = field(default_factory=lambda: Turns(Kind(), Kind()))

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
        while not dual.stopped and (more or not dual.settled) and time.monotonic() < deadline:
            began, before, grown = time.monotonic(), self._bound(), self._has_grown
            splits = more and (dual.settled or (self._slow and self._split_is_due))
            if splits:
                more = self._split(min(deadline, began + SECONDS))
            else:
                self._pass_on(upper, known, deadline)
            gain = max(self._bound() - before, 0.0) / max(abs(before), 1e-300)
            kind = self._turns.second if splits else self._turns.first
            kind.add(gain, time.monotonic() - began)
            if splits and not grown and self._has_grown:
                self._turns = Turns(Kind(), Kind())

    @property
    def _has_grown(self) -> bool:
        """Whether the tree has split: what it spends until then is not yet to gain anything."""
        return self.tree is not None and self.tree.splits > 0

    @property
    def _split_is_due(self) -> bool:
        turns = self._turns
        if not self._has_grown:
            return turns.second.seconds <= turns.first.seconds
        return turns.second_is_due

    def _bound(self) -> float:
        begun = self.tree is not None and self.tree.begun
        return max(self.dual.bound, self.tree.bound) if begun and self.tree else self.dual.bound

    def _split(self, until: float) -> bool:
        """Splits for some time; whether there is more to split."""
        tree = self.tree
        if tree is None or tree.full:
            return False
        tree.run(self.dual, until)
        return tree.stopped or time.monotonic() >= until

    def _pass_on(self, upper: float, known: float, deadline: float) -> None:
        """Passes, in another way where they gain little."""
        dual, before = self.dual, self.dual.bound
        dual.run(upper, deadline, PASSES)
        if not dual.stopped:
            little = dual.bound - before < SLOW * (upper - dual.bound)
            self._slow = little and known - dual.bound <= AHEAD * (upper - dual.bound)
            if not dual.has_gained(before, upper):
                dual.turn(upper)
