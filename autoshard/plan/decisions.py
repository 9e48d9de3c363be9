"""What a plan decides, value by value and op by op, on the whole (unfolded) program.

stored[v]       layout of value v (None: the value is free, computed wherever it is needed)
copy[v]         layout of its resharded copy, or None
mode[v]         whom the copy serves: bit 1 first readers, bit 2 second readers, bit 4 when it
                is made anew for the second
assignment[o]   factor of op o's rule that every mesh axis shards, or -1 (None: a free op)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta

from autoshard.files import Count
from autoshard.program.layout import Layout

Assignment = tuple[int, ...]
State = tuple[tuple[int, ...], ...]

Entry = Annotated[int, Meta(ge=-2, le=4095)]
"""A dimension or a factor, or how an axis shards none (`autoshard.program.layout`)."""
TupleNumber = Annotated[int, Meta(ge=-1)]
Mode = Annotated[int, Meta(ge=0, le=7)]


@dataclass(frozen=True, slots=True)
class Reshard:
    """The sequence of collectives that makes a copy: the states it goes through, the last included.

    A state lists, per dimension, the mesh axes that shard it, major first.
    """

    shape: tuple[Count, ...]
    itemsize: Count
    before: Layout
    after: Layout
    states: tuple[State, ...]


@dataclass(frozen=True, slots=True)
class Decisions:
    """See the module docstring."""

    stored: tuple[Layout | None, ...]
    copy: tuple[Layout | None, ...]
    mode: tuple[int, ...]
    assignment: tuple[Assignment | None, ...]

    def to_json(self) -> dict[str, Any]:
        """A compact JSON form: distinct tuples once, then indices (-1 for None)."""
        table: dict[tuple[int, ...], int] = {}

        def encode(items: Sequence[tuple[int, ...] | None]) -> list[int]:
            return [-1 if t is None else table.setdefault(t, len(table)) for t in items]

        body = {
            "stored": encode(self.stored),
            "copy": encode(self.copy),
            "mode": list(self.mode),
            "assignment": encode(self.assignment),
        }
        return {"tuples": [list(t) for t in table], **body}


@dataclass(frozen=True, slots=True)
class WrittenDecisions:
    """Decisions as a file has them: distinct tuples once, then their numbers (-1 for None)."""

    tuples: tuple[tuple[Entry, ...], ...]
    stored: tuple[TupleNumber, ...]
    copy: tuple[TupleNumber, ...]
    mode: tuple[Mode, ...]
    assignment: tuple[TupleNumber, ...]

    def record(self) -> Decisions:
        """The decisions.

        Raises:
          IndexError: a tuple is not there.
        """

        def found(numbers: Sequence[int]) -> tuple[tuple[int, ...] | None, ...]:
            return tuple(None if number < 0 else self.tuples[number] for number in numbers)

        return Decisions(found(self.stored), found(self.copy), self.mode, found(self.assignment))
