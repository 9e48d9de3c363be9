"""Planned collectives, put together for reading: what they are called, and which are alike."""

from __future__ import annotations

import re
from collections.abc import Sequence

from autoshard.plan.plan import Move
from autoshard.program.subaxes import joined


def collective_name(kind: str, axes: Sequence[str], names: Sequence[str]) -> str:
    """A kind of collective with its axes, as `all_gather@(x,y)`; parts of an axis are joined."""
    shown = joined(axes, names)
    return f"{kind}@{shown[0]}" if len(shown) == 1 else f"{kind}@({','.join(shown)})"


def shared_scope(scopes: Sequence[str]) -> str:
    """Scopes that differ in numbers alone as one; numbers that differ are stars."""
    columns = zip(*(re.split(r"(\d+)", scope) for scope in scopes), strict=True)
    return "".join(column[0] if len(set(column)) == 1 else "*" for column in columns)


def alike_moves(moves: Sequence[Move]) -> list[list[Move]]:
    """Moves that differ only in numbers of their scopes together; the most exposed first."""
    merged: dict[tuple[object, ...], list[Move]] = {}
    for move in moves:
        scope = re.sub(r"\d+", "*", move.scope)  # the layers of an unrolled model
        key = (move.kind, move.axes, move.bytes, move.line, scope, move.value)
        merged.setdefault(key, []).append(move)
    return sorted(
        merged.values(),
        key=lambda group: (
            -sum(move.exposed_seconds for move in group),
            -sum(move.seconds for move in group),
        ),
    )
