"""The progress that a running search reports."""

from __future__ import annotations

import math
from dataclasses import dataclass


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

    def __str__(self) -> str:
        best = f"{self.objective:.6g} s" if math.isfinite(self.objective) else "none yet"
        gap = f"{self.gap:.2%}" if math.isfinite(self.gap) else "-"
        return (
            f"[{self.seconds:6.1f} s] mesh {self.mesh}: {self.phase}: best {best}, "
            f"bound {max(self.bound, 0.0):.6g} s, gap {gap}, {self.seconds_left:.0f} s left"
        )
