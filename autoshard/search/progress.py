"""The progress that a running search reports."""

from __future__ import annotations

import math
from dataclasses import dataclass

from autoshard.units import format_gap, format_seconds


@dataclass(frozen=True, slots=True)
class SearchProgress:
    """The state of a search: the incumbent's seconds per step, the bound, and the time left."""

    mesh: str
    phase: str
    objective: float
    bound: float
    gap: float
    seconds: float
    seconds_left: float

    @property
    def words(self) -> str:
        """What is done, and what is known by now."""
        known = "no plan yet"
        if math.isfinite(self.objective):
            known = f"best {format_seconds(self.objective)}"
        if self.bound > 0.0:
            known += f", bound {format_seconds(self.bound)}"
        if math.isfinite(self.gap):
            known += f", gap {format_gap(self.gap)}"
        return f"mesh {self.mesh}: {self.phase}: {known}"

    def __str__(self) -> str:
        left = f"{self.seconds:.1f} s, {self.seconds_left:.0f} s left"
        return f"[{left}] {self.words}"
