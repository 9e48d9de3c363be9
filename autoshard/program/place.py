"""Where a walk over a jaxpr stands: what is true of every equation there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from autoshard import compat


@dataclass(frozen=True, slots=True)
class Place:
    """Where the walk stands: the region, how often it runs, the scope and the source line."""

    region: int
    trips: int
    scope: str
    backward: bool
    recomputed: bool
    line: str = ""

    def at(self, equation: Any) -> Place:
        """The place of an equation in the jaxpr that is walked over."""
        stack = str(equation.source_info.name_stack)
        scope = "/".join(part for part in (self.scope, stack) if part)
        recomputed = self.recomputed or "rematted_computation" in stack
        backward = self.backward or recomputed or is_backward(equation)
        line = compat.source_line(equation) or self.line
        return Place(self.region, self.trips, scope, backward, recomputed, line)

    def within(self, region: int, trips: int) -> Place:
        """The same place in a region that runs so often."""
        return replace(self, region=region, trips=trips)


def is_backward(equation: Any) -> bool:
    """Whether an equation itself, and not only what it stands in, is of the backward pass."""
    stack = str(equation.source_info.name_stack)
    return "transpose(" in stack or "rematted_computation" in stack
