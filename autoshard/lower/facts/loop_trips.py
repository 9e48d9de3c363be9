"""How often the loops of a lowered module run, where only the program that was planned says so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from autoshard.program.trace import Program


@dataclass(frozen=True, slots=True)
class LoopTrips:
    """A `while` loop of a program: where it stands, and how often it runs when it is reached."""

    scope: str
    line: str
    trips: int

    def may_be(self, scope: str) -> bool:
        """Whether a loop of a module, which adds parts to the scope, may be this one."""
        parts = iter(scope.split("/"))
        return all(part in parts for part in self.scope.split("/") if part)


def loop_trips(program: Program) -> list[LoopTrips]:
    """The `while` loops of a program, in program order."""
    found = []
    for region in program.regions:
        if region.kind == "while":
            entry = program.ops[region.start]  # the first of its boundary ops
            trips = region.trips // max(program.regions[region.parent].trips, 1)
            found.append(LoopTrips(entry.scope, entry.line, trips))
    return found


class LoopsOfModule:
    """Finds the loops of a module among those of its program, in the order of both."""

    def __init__(self, loops: Sequence[LoopTrips]) -> None:
        self.loops = loops
        self.met: Counter[tuple[str, str]] = Counter()

    def trips(self, scope: str, line: str) -> int | None:
        """The trip count of a loop; None if the program has none there."""
        inside = [one for one in self.loops if one.may_be(scope)]
        # Where a library calls deep, the line of a module is one of the library's: JAX writes ten.
        fitting = [one for one in inside if one.line == line] or inside
        if not fitting or (fitting is inside and any(one.line == line for one in self.loops)):
            return None
        deepest = max(fitting, key=lambda one: one.scope.count("/")).scope
        fitting = [one for one in fitting if one.scope == deepest]
        number = self.met[deepest, line]
        self.met[deepest, line] += 1
        return fitting[number % len(fitting)].trips
