"""How a schedule problem or an order is refused: all that is wrong with it, at once."""

from __future__ import annotations

from collections.abc import Sequence

MOST_LISTED = 20
"""Faults that a message lists; of more it says how many."""


class ScheduleError(ValueError):
    """A record that contradicts itself, or two that do not fit.

    Attributes:
      faults: what is wrong, each with its values and the repair.
    """

    def __init__(self, what: str, faults: Sequence[str]) -> None:
        self.faults = tuple(faults)
        listed = list(self.faults[:MOST_LISTED])
        if len(self.faults) > MOST_LISTED:
            listed.append(f"and {len(self.faults) - MOST_LISTED} more")
        super().__init__("\n  ".join([f"{what} cannot be used:", *listed]))
