"""How often `while` loops run: as literals in them say, else as the user says, else once."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from autoshard.program.place import Place

TripCounts = int | Sequence[int] | Mapping[str, int] | Mapping[int, int]
"""One number for all loops, numbers in program order, or numbers by a loop's number or scope."""


class WhileTrips:
    """The trip counts of the loops of a program, asked for in program order."""

    def __init__(self, given: TripCounts) -> None:
        self.given = checked(given)
        self.seen = 0

    def of_next(self, place: Place, constant: int | None) -> int:
        """The trip count of the next loop; `constant` is what its literals say."""
        number = self.seen
        self.seen += 1
        given = self._given(number, place.scope)
        if constant is not None:
            return constant
        if given is not None:
            return given
        warnings.warn(
            f"while loop {number} at {place.scope or '(top)'} ({place.line}) has no trip count and "
            "is counted once: pass its number of iterations, such as "
            f"trip_counts={{{number}: 100}}",
            stacklevel=2,
        )
        return 1

    def _given(self, number: int, scope: str) -> int | None:
        if isinstance(self.given, int):
            return self.given
        if isinstance(self.given, Mapping):
            if str(number) in self.given:
                return self.given[str(number)]
            parts = (part for part in self.given if not part.isdecimal() and part in scope)
            return next((self.given[part] for part in parts), None)
        return self.given[number] if number < len(self.given) else None

    def check_all_met(self) -> None:
        """Refuse the number of a loop that is not there. Raises ValueError."""
        if isinstance(self.given, Mapping):
            missing = [key for key in self.given if key.isdecimal() and int(key) >= self.seen]
            if missing:
                raise ValueError(
                    f"trip_counts names while loop {', '.join(missing)}, but the program has "
                    f"{self.seen} of them, counted from 0"
                )


def checked(given: Any) -> int | list[int] | dict[str, int]:
    """`trip_counts` in the form in which plans keep it; loops that go by a number have it as text.

    Raises:
      ValueError: a trip count is not a whole number from 0 on.
    """
    if isinstance(given, Mapping):
        return {str(key): _count(one, f"trip_counts[{key!r}]") for key, one in given.items()}
    if isinstance(given, Sequence) and not isinstance(given, str):
        return [_count(one, f"trip_counts[{place}]") for place, one in enumerate(given)]
    return _count(given, "trip_counts")


def _count(value: Any, name: str) -> int:
    try:
        count = operator.index(value)
    except TypeError:
        count = -1
    if count < 0:
        raise ValueError(f"{name} is {value!r}; a trip count is a whole number from 0 on")
    return count
