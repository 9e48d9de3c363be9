"""Whose turn it is: time goes to the kind of move that has lately gained more per second."""

from __future__ import annotations

from dataclasses import dataclass

LEAST = 0.2
"""No kind of move gets less than this part of the time."""
FADES = 0.8
"""What earlier turns count for after each further one."""


@dataclass(slots=True)
class Kind:
    """What one kind of move has gained (relative to the objective), lately; and all its seconds."""

    gained: float = 0.0
    lately: float = 0.0
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        return self.gained / self.lately if self.lately > 0 else 0.0

    def add(self, gain: float, seconds: float) -> None:
        """Count one turn."""
        self.gained = FADES * self.gained + gain
        self.lately = FADES * self.lately + seconds
        self.seconds += seconds


@dataclass(slots=True)
class Turns:
    """Two kinds of moves, first and second."""

    first: Kind
    second: Kind

    @property
    def second_is_due(self) -> bool:
        """Whether the second kind has had less than its share of the time."""
        rates = self.first.rate + self.second.rate
        share = 0.5 if rates == 0 else self.second.rate / rates
        share = min(max(share, LEAST), 1.0 - LEAST)
        return self.second.seconds < share * (self.first.seconds + self.second.seconds)
