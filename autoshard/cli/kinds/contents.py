"""What a file holds, as far as its kind shows: keys of JSON, columns of a table, the text."""

from __future__ import annotations

import csv
import os
import re
from dataclasses import dataclass

MOST_BYTES = 2**26
"""Longer files are not looked into: of what commands write none is so long."""
_NAME = re.compile(r"\w[\w.%/-]{0,39}")
NONE: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Contents:
    """The marks of a file.

    Attributes:
      path: of the file.
      text: all of it.
      keys: of its JSON object.
      own: what that says of itself as its `kind`.
      rows: keys of the first of its `rows`, or of the first entry of a JSON list.
      columns: names in the first line of a table.
    """

    path: str
    text: str
    keys: frozenset[str] = NONE
    own: str = ""
    rows: frozenset[str] = NONE
    columns: frozenset[str] = NONE


def contents(path: str) -> Contents | None:
    """What stands in a file; None where it is not text, is very long, or cannot be read."""
    try:
        if os.path.getsize(path) > MOST_BYTES:
            return None
        with open(path, encoding="utf-8-sig", newline="") as file:
            text = file.read()
    except (OSError, ValueError):
        return None
    return contents_of(text, path)


def contents_of(text: str, path: str = "") -> Contents:
    """The marks of a text."""
    bare = text.lstrip()
    if bare.startswith("{"):
        return _object(text, path)
    if bare.startswith("["):
        return Contents(path, text, rows=_first(text))
    return Contents(path, text, columns=_columns(bare))


def _object(text: str, path: str) -> Contents:
    import msgspec

    try:
        found = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        rows = _first(bytes(found.get("rows", msgspec.Raw(b"[]"))))
        own = msgspec.json.decode(found.get("kind", msgspec.Raw(b'""')))
    except (msgspec.DecodeError, RecursionError):
        return Contents(path, text)
    return Contents(path, text, frozenset(found), own if isinstance(own, str) else "", rows)


def _first(text: str | bytes) -> frozenset[str]:
    """The keys of the first entry of a list; none where it is not a list of objects."""
    import msgspec

    try:
        entries = msgspec.json.decode(text, type=list[dict[str, msgspec.Raw]])
    except (msgspec.DecodeError, RecursionError):
        return NONE
    return frozenset(entries[0]) if entries else NONE


def _columns(text: str) -> frozenset[str]:
    """The names that a table begins with; none where it is not a table."""
    lines = text.splitlines()
    try:
        rows = list(csv.reader(lines[:2]))
    except csv.Error:
        return NONE
    names = [name.strip() for name in rows[0]] if rows else []
    alike = len(rows) < 2 or len(rows[1]) == len(names)
    is_table = len(names) > 1 and alike and all(map(_NAME.fullmatch, names))
    return frozenset(names) if is_table else NONE
