"""What a table of times holds: the columns of every kind of row, as data.

Each row is one timing. `kind` says what was timed, and which other columns it has:

    kind          columns (those in brackets may be empty)
    matmul        m, n, k, dtype, seconds, [batch]     [batch, m, k] @ [batch, k, n]
    compute       flops, bytes, dtype, unit, seconds   one fused operation on "matrix" or "vector"
    elementwise   bytes, seconds                       read and written together
    memory        bytes, seconds                       the same: a copy, an update
    launch        seconds                              an operation with nothing to do
    attention     batch, heads, queries, keys, head_dim, dtype, seconds
    collective    collective, bytes, seconds, and either group_size, [level] or mesh, axes
    step          compute_seconds, collective_seconds, exposed_seconds, [hideable_seconds]

`bytes` of a collective are per device, as in `autoshard.cost.collective`: of the result for
all_gather, of the operand for the others. A group is `group_size` neighbours on the network level
`level` (its name or number; by default the innermost devices of the machine), or the axes `axes`,
as in "data" or "data,model", of the mesh `mesh`, as in "data=8,model=8", over the whole machine.

`exposed_seconds` are what the collectives add to a step beyond its compute, `hideable_seconds` the
part of `collective_seconds` that nothing but overlap keeps from hiding (default: all of them).

The columns `date`, `device` and `note` may stand beside any row and are not looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from autoshard.cost.collective import KINDS as COLLECTIVES

Content = Literal["count", "size", "seconds", "share of time", "dtype", "word", "mesh", "axes"]

SHORTEST = 1e-12
"""Seconds; no clock of a device tells less than a picosecond."""


@dataclass(frozen=True, slots=True)
class Column:
    """What the cells of a column hold.

    Attributes:
      content: "count" (a whole number from 1 on), "size" (a number from 0 on), "seconds" (from
        `SHORTEST` on), "share of time" (seconds from 0 on), "dtype", "word", "mesh" or "axes".
      words: what a word may be; empty where that depends on the machine.
    """

    content: Content
    words: tuple[str, ...] = ()

    @property
    def wanted(self) -> str:
        """What to write, for a message."""
        if self.words:
            return "one of " + ", ".join(self.words)
        return {
            "count": "a whole number from 1 on",
            "size": "a number from 0 on",
            "seconds": f"seconds, {SHORTEST:g} or more",
            "share of time": "seconds, from 0 on",
            "dtype": "a dtype such as bfloat16 or float32",
            "word": "a name or a number",
            "mesh": "axes and sizes such as data=8,model=8",
            "axes": "names of mesh axes such as data or data,model",
        }[self.content]


COLUMNS: Mapping[str, Column] = {
    **dict.fromkeys(("m", "n", "k", "batch", "heads", "queries", "keys"), Column("count")),
    **dict.fromkeys(("head_dim", "group_size"), Column("count")),
    **dict.fromkeys(("flops", "bytes"), Column("size")),
    "seconds": Column("seconds"),
    **dict.fromkeys(
        ("compute_seconds", "collective_seconds", "exposed_seconds", "hideable_seconds"),
        Column("share of time"),
    ),
    "dtype": Column("dtype"),
    "unit": Column("word", ("matrix", "vector")),
    "collective": Column("word", COLLECTIVES),
    "level": Column("word"),
    "mesh": Column("mesh"),
    "axes": Column("axes"),
}

FREE = frozenset({"date", "device", "note"})
"""Columns that every row may have, for people."""


@dataclass(frozen=True, slots=True)
class RowKind:
    """The columns that rows of one kind must have, and those that they may have."""

    required: tuple[str, ...]
    optional: tuple[str, ...] = ()


ROW_KINDS: Mapping[str, RowKind] = {
    "matmul": RowKind(("m", "n", "k", "dtype", "seconds"), ("batch",)),
    "compute": RowKind(("flops", "bytes", "dtype", "unit", "seconds")),
    "elementwise": RowKind(("bytes", "seconds")),
    "memory": RowKind(("bytes", "seconds")),
    "launch": RowKind(("seconds",)),
    "attention": RowKind(("batch", "heads", "queries", "keys", "head_dim", "dtype", "seconds")),
    "collective": RowKind(
        ("collective", "bytes", "seconds"), ("group_size", "level", "mesh", "axes")
    ),
    "step": RowKind(
        ("compute_seconds", "collective_seconds", "exposed_seconds"), ("hideable_seconds",)
    ),
}
