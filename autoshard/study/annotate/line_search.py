"""The search for the fewest lines that leave nothing otherwise than planned.

Lines are added one by one: of those about the places where something is otherwise than planned, the
one that leaves the least mismatch, perhaps in the place of others at its spots. Where none helps,
all that is planned at other spots is added, and what is not needed of it left out; else two at a
time are tried. At the end what can be left out is, and one line about many arrays (all arguments of
a block, say) takes the place of several.

Where that does not reach the plan with few lines in a block, or its steps are dear, the search goes
the other way: all that is planned everywhere, what derivatives read included, makes the plan; of
this halves are left out, quarters, and so on, while it still does, and the lines about arrays of
one function become one (`autoshard.study.annotate.function_lines`).

Lines that say something else of each shape are tried last. Of the lines that remain none can be
left out, although another set might be smaller still.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence

from autoshard.interrupts import acknowledge
from autoshard.study.annotate.function_lines import in_functions
from autoshard.study.annotate.line_checks import LineChecks, Mismatch
from autoshard.study.annotate.lines import Line
from autoshard.study.annotate.sites import Sites
from autoshard.study.annotate.source_lines import line_of

TOLERANCE = 0.01
"""So much of the planned step may collectives take that differ: as much as the default `--gap`."""
PARTS = (1.0, 1 / 2, 1 / 4)
"""Of what may be left beyond that which all that is planned leaves, so much, one after the other:
traced alone, lines may leave a little more."""
BREADTH = 24
"""So many lines are tried at a time."""
MOST = 3
"""So many times as many in all, where none helps."""
LARGE = 10_000
"""In a step of more operations, those of all that is planned are reduced before any are added."""
PATIENCE = 200
"""After so many checks no more lines are added one by one."""
FEW = 2
"""Where a repeated block has more lines, fewer are looked for that only reach the plan."""
NEAR = 8
"""So many of the lines about what differs most are tried in pairs with others."""


class _LateError(Exception):
    """The time limit has passed."""


class LineSearch:
    """Adds and drops lines; remembers what every set of lines leaves.

    Attributes:
      ended: `time` or `interrupted` where that ended it, so that fewer lines might do.
    """

    def __init__(
        self,
        checks: LineChecks,
        sites: Sites,
        heard: Callable[[int, bool], None] | None,
        until: float = math.inf,
    ) -> None:
        self.checks, self.sites, self.heard = checks, sites, heard
        self.until, self.ended = until, ""
        self.known: dict[frozenset[Line], Mismatch] = {}
        self.plain = tuple(
            line
            for line in sites.lines
            if not line.inward and not any(constraint.in_turn for constraint in line.says)
        )
        self.offered = tuple(line for line in self.plain if not line.table)
        self.calls = tuple(
            line
            for line in sites.lines
            if len(line.says) > 1 and not (line.inward or line.table or line.arguments)
        )

    def mismatch(self, lines: Sequence[Line]) -> Mismatch:
        """What these lines leave otherwise than planned."""
        key = frozenset(lines)
        if key not in self.known:
            if self.known and time.monotonic() > self.until:
                raise _LateError
            self.known[key] = self.checks.mismatch(key)
            if self.heard is not None:
                self.heard(len(key), self.known[key].none)
        return self.known[key]

    def share(self, lines: Sequence[Line]) -> float:
        """How much of the step that is; 0 only where all is as planned."""
        return self.mismatch(lines).share

    def found(self) -> list[Line]:
        """Lines of which none can be left out, and which leave the least that was found.

        When the time is over, or on an interrupt (Ctrl-C), they are the best that were tried.
        """
        try:
            return self._found()
        except _LateError:
            self.ended = "time"
        except KeyboardInterrupt as interrupt:
            acknowledge(interrupt)
            if not self.known:
                raise
            self.ended = "interrupted"
        return self._best_known()

    def _best_known(self) -> list[Line]:
        """Of all sets that were tried and can be written, the one of which least is left."""
        every = (*self.sites.lines, *self.sites.planned, *self.sites.scoped)
        order = {line: number for number, line in reversed([*enumerate(every)])}
        said = (key for key in self.known if not any(line.inward for line in key))
        known = (sorted(key, key=order.__getitem__) for key in said)
        return min(known, key=self.left, default=[])

    def _found(self) -> list[Line]:
        large = self.checks.operations > LARGE
        chosen = self.from_planned() if large else None
        if chosen is not None and self.few(chosen):
            return chosen
        begun = self.grown([])
        begun = self.finished(begun) if self.close(begun) else begun
        if self.few(begun):
            return begun
        chosen = chosen if large else self.from_planned()
        if chosen is not None and self.few(chosen):
            return chosen
        begun = self.finished(begun)
        if len(self.offered) < len(self.plain):
            self.offered = self.plain
            other = self.finished(self.grown([])) if not self.close(begun) else begun
            begun = self.finished(min(begun, other, key=self.left))
        begun = self.in_functions(begun)
        return min(begun, chosen, key=self.left) if chosen is not None else begun

    def left(self, chosen: Sequence[Line]) -> tuple[bool, float, float]:
        """What is to be least: of lines that reach the plan those in a block, else what is left."""
        lines, share = max(per_block(chosen), FEW), self.share(chosen)
        return (False, lines, share) if self.close(chosen) else (True, share, lines)

    def in_functions(self, chosen: list[Line], *, close: bool = False) -> list[Line]:
        """With one line about a function in the place of several, where they are too many."""
        return in_functions(
            chosen,
            self.sites.visits,
            many=lambda lines: per_block(lines) > FEW,
            as_good=lambda lines, others: self.as_good(lines, others, close=close),
        )

    def from_planned(self) -> list[Line] | None:
        """Lines with which the plan is reached, of those that say all that is planned everywhere.

        What is about few bytes is left out first: it is needless more often.

        None where the plan is not reached with all of these, or not with what can be written.
        """
        every = map(list, (self.sites.planned, self.sites.scoped))
        planned = next((lines for lines in every if lines and self.close(lines)), None)
        if planned is None:
            return None
        planned = sorted(planned, key=lambda line: line.weight)
        named = [line for line in planned if not any(spot.inlined for spot in line.spots)]
        found: list[list[Line]] = []
        least = self.share(planned)
        for tolerance in (least + part * (TOLERANCE - least) for part in PARTS):

            def close(some: Sequence[Line], tolerance: float = tolerance) -> bool:
                return self.close(some, tolerance)

            if not any(map(self.few, found)):
                lines = self.needed(named if close(named) else planned, close)
                lines = self.in_functions(self.needed(lines, close), close=True)
                lines = self.joined(lines, self.calls, close=True)
                found += [lines] * (not any(line.inward for line in lines))
        return min(found, key=lambda lines: (not self.few(lines), _count(lines)), default=None)

    def few(self, chosen: Sequence[Line]) -> bool:
        """Whether the plan is reached with few lines, in a step that is traced with them alone."""
        if per_block(chosen) > FEW or not self.close(chosen):
            return False
        alone = self.checks.truth(chosen)
        return not alone.products and alone.share <= TOLERANCE

    def grown(self, chosen: list[Line]) -> list[Line]:
        """With lines added as long as one, all or two of them help.

        What all that is planned leaves is not looked for line by line: there it is enough to be
        close.
        """
        most = self.checks.checks + PATIENCE
        while self.share(chosen) and self.checks.checks < most:
            more = self.one_more(chosen)
            if not more and not self.close(chosen):
                more = self.many_more(chosen)
                if more and self.close(more):
                    return more
                more = more or self.two_more(chosen)
            if not more:
                break
            chosen = more
        return chosen

    def finished(self, chosen: list[Line]) -> list[Line]:
        """Without what can be left out, and with one line in the place of several."""
        chosen = self.fewer(self.without_needless(self.joined(chosen, self.offered)))
        if per_block(chosen) > FEW and not self.share(chosen):
            about = self.fewer(self.without_needless(chosen, close=True), close=True)
            chosen = about if _count(about) < _count(chosen) else chosen
        return chosen

    def close(self, chosen: Sequence[Line], tolerance: float = TOLERANCE) -> bool:
        """Whether the plan is reached with these lines."""
        left = self.mismatch(chosen)
        return not left.products and left.share <= tolerance

    def one_more(self, chosen: list[Line]) -> list[Line]:
        """With the line that leaves least; empty where none leaves less."""
        left = self.mismatch(chosen)
        lines, after = min(
            self.better(chosen, left),
            key=lambda one: (one[1].share, one[1].arrays),
            default=(chosen, left),
        )
        return lines if after.share < left.share else []

    def many_more(self, chosen: list[Line]) -> list[Line]:
        """With lines of all that is planned at other spots; empty where they do not help."""
        taken = {spot for line in chosen for spot in line.spots}
        more = [
            line for line in self.sites.planned if taken.isdisjoint(line.spots) and not line.inward
        ]
        share = self.share([*chosen, *more])
        if share >= self.share(chosen):
            return []
        return [*chosen, *self.needed(more, lambda some: self.share([*chosen, *some]) <= share)]

    def needed(self, lines: list[Line], good: Callable[[list[Line]], bool]) -> list[Line]:
        """Some of the lines that are good: halves are left out while the others are, then quarters,
        down to single lines."""
        part = len(lines)
        while part:
            part = (part + 1) // 2 if part > 1 else 0
            start = 0
            while part and start < len(lines):
                rest = lines[:start] + lines[start + part :]
                if good(rest):
                    lines = rest
                else:
                    start += part
        return lines

    def two_more(self, chosen: list[Line]) -> list[Line]:
        """With two lines that only together make fewer things differ; or empty."""
        left = self.mismatch(chosen)
        taken = {spot for line in chosen for spot in line.spots}
        free = [line for line in self.offered if taken.isdisjoint(line.spots)]
        for one in self.near(free, left)[:NEAR]:
            for other in free[:BREADTH]:
                if set(one.spots).isdisjoint(other.spots):
                    lines = [*chosen, one, other]
                    if self.share(lines) < left.share:
                        return lines
        return []

    def better(self, chosen: list[Line], left: Mismatch) -> list[tuple[list[Line], Mismatch]]:
        """What is left where a line is added, in the place of those at the same spots.

        Lines about what differs most are tried first: where some of `BREADTH` make fewer
        differences, the others are not tried.
        """
        found = []
        lines = [line for line in self.offered if line not in chosen]
        for number, line in enumerate(self.near(lines, left)[: MOST * BREADTH]):
            if number % BREADTH == 0 and any(after.share < left.share for _, after in found):
                break
            kept = [one for one in chosen if set(one.spots).isdisjoint(line.spots)]
            found.append(([*kept, line], self.mismatch([*kept, line])))
            if found[-1][1].none:
                break
        return found

    def fewer(self, chosen: list[Line], *, close: bool = False) -> list[Line]:
        """With one line about many arrays, several others may be needless."""
        broad = [line for line in self.offered if len(line.places) > 1]
        for line in sorted(broad, key=lambda line: -len(line.places))[:BREADTH]:
            if per_block(chosen) < FEW and len(chosen) <= FEW:
                break
            kept = [one for one in chosen if set(one.spots).isdisjoint(line.spots)]
            if line not in chosen and self.as_good([*kept, line], chosen, close):
                rest = self.without_needless([*kept, line], close=close)
                if _count(rest) < _count(chosen):
                    chosen = rest
        return chosen

    def as_good(self, lines: Sequence[Line], chosen: Sequence[Line], close: bool) -> bool:
        """Whether these lines leave no more than those chosen, or little enough."""
        share = self.share(chosen)
        return self.share(lines) <= share or (bool(close or share) and self.close(lines))

    def joined(
        self, chosen: list[Line], offered: Sequence[Line], *, close: bool = False
    ) -> list[Line]:
        """One line in the place of several at its spots, where no more differs then."""
        for line in offered:
            spots = set(line.spots)
            kept = [one for one in chosen if spots.isdisjoint(one.spots)]
            if len(chosen) - len(kept) > 1 and self.as_good([*kept, line], chosen, close):
                chosen = [*kept, line]
        return chosen

    def near(self, lines: Sequence[Line], left: Mismatch) -> list[Line]:
        """Lines of the user's code about products that are cut otherwise first, then those about
        collectives that are missing, then about those that are not planned."""
        missing = {at.rpartition(" ")[2] for one in left.tallies for at in one.planned_at}
        odd = {at.rpartition(" ")[2] for one in left.tallies for at in one.found_at}

        def hits(line: Line) -> int:
            own = {line_of(frame) for spot in line.spots for frame in spot.user}
            return (
                4 * (not own.isdisjoint(left.lines))
                + 2 * (not own.isdisjoint(missing))
                + (not own.isdisjoint(odd))
            )

        return sorted(lines, key=lambda line: -hits(line))

    def without_needless(self, chosen: list[Line], *, close: bool = False) -> list[Line]:
        """Leave out what can be left out, one by one, until nothing can.

        With `close`, what is exact need only stay close. Propagation is not monotone: with fewer
        lines one that was needed may be needless.
        """
        while True:
            for line in sorted(chosen, key=lambda one: not one.block):
                rest = [other for other in chosen if other is not line]
                if self.as_good(rest, chosen, close):
                    chosen = rest
                    break
            else:
                return chosen


def per_block(lines: Sequence[Line]) -> int:
    """How many lines are in the repeated block that has most of them."""
    return max(Counter(block for line in lines for block in line.blocks).values(), default=0)


def _count(lines: Sequence[Line]) -> tuple[int, int]:
    """How many lines are in one block at most, and how many there are."""
    return per_block(lines), len(lines)
