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
from typing import Any

from autoshard.program.layout import Layout

Assignment = tuple[int, ...]
State = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Reshard:
    """The sequence of collectives that makes a copy: the states it goes through, the last included.

    A state lists, per dimension, the mesh axes that shard it, major first.
    """

    shape: tuple[int, ...]
    itemsize: int
    before: Layout
    after: Layout
    states: tuple[State, ...]

    @classmethod
    def from_json(cls, data: Any) -> Reshard:
        """The inverse of `dataclasses.asdict` through JSON."""
        return cls(
            tuple(data["shape"]),
            int(data["itemsize"]),
            tuple(data["before"]),
            tuple(data["after"]),
            tuple(tuple(tuple(axes) for axes in state) for state in data["states"]),
        )


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

    @classmethod
    def from_json(cls, data: Any) -> Decisions:
        """The inverse of `to_json`.

        Raises:
          ValueError: the data is not of that form.
        """
        try:
            table = [tuple(int(x) for x in row) for row in data["tuples"]]

            def decode(items: Sequence[int]) -> tuple[tuple[int, ...] | None, ...]:
                return tuple(None if i < 0 else table[i] for i in items)

            return cls(
                decode(data["stored"]),
                decode(data["copy"]),
                tuple(int(m) for m in data["mode"]),
                decode(data["assignment"]),
            )
        except (KeyError, IndexError, TypeError) as error:
            raise ValueError(f"decisions are damaged: {type(error).__name__}: {error}") from error
