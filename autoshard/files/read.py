"""Text, JSON and TOML from a file: of bounded size and depth, with numbers that are finite.

What is read here is plain data. `autoshard.files.typed` makes records of it.
"""

from __future__ import annotations

import json
import math
import os
import tomllib
from collections.abc import Callable
from typing import Any

from autoshard.files.errors import FileError, shown
from autoshard.units import with_article

Path = str | os.PathLike[str]
Raised = Callable[[str], Exception]

MOST_BYTES = 2**30
AGAIN = "; copy it again, or make it anew"
"""What to do about a damaged file."""
MOST_STANDING = 24
"""Characters that are shown of what stands where no JSON does."""
DEEPEST = 100
LARGEST = 2**63 - 1
"""Whole numbers from there on are not counts of anything."""


def read_text(path: Path, what: str, *, error: Raised = FileError) -> str:
    """Return the text of a file.

    Args:
      path: of the file; a mark of the byte order is passed over.
      what: what the file should be, for the message: "the plan".
      error: makes the exception to raise of its message.

    Raises:
      FileError: or `error`; the file cannot be read, is longer than a gibibyte, or is not UTF-8.
    """
    name = os.fspath(path)
    try:
        with open(path, "rb") as file:
            data = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as failed:
        reason = getattr(failed, "strerror", None) or failed
        raise error(f"cannot read {what} {name!r}: {reason}") from failed
    if len(data) > MOST_BYTES:
        raise error(
            f"{name!r} is not {with_article(_bare(what))}: it is longer than {MOST_BYTES:,} bytes"
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as failed:
        raise error(
            f"{name!r} is damaged: it is not text (byte {failed.start + 1}){AGAIN}"
        ) from failed


def read_json(path: Path, what: str, *, error: Raised = FileError) -> Any:
    """Return what a JSON file holds; see `read_text` and `json_of`."""
    return json_of(read_text(path, what, error=error), os.fspath(path), error=error)


def json_of(text: str, name: str, *, error: Raised = FileError) -> Any:
    """Return what a JSON text holds.

    Args:
      text: of the file.
      name: of the file.
      error: makes the exception to raise of its message.

    Raises:
      FileError: or `error`; the text is not JSON, is nested too deeply, or has numbers that are not
        finite or beyond 64 bits.
    """
    try:
        data = json.loads(text)
    except json.JSONDecodeError as failed:
        raise error(f"{name!r} is damaged: no JSON {where_json_ends(failed)}{AGAIN}") from failed
    except RecursionError as failed:
        raise error(
            f"{name!r} is damaged: it is nested more than {DEEPEST} deep{AGAIN}"
        ) from failed
    except ValueError as failed:  # Python reads no whole number of thousands of digits
        raise error(f"{name!r} is damaged: a number has too many digits{AGAIN}") from failed
    _require_plain(data, name, error)
    return data


def where_json_ends(failed: json.JSONDecodeError) -> str:
    """The place from which a text is not JSON any more, and what stands there.

    >>> try:
    ...     json.loads('{"a": one}')
    ... except json.JSONDecodeError as failed:
    ...     where_json_ends(failed)
    "at line 1, column 7, where 'one}' stands"
    """
    place = f"at line {failed.lineno}, column {failed.colno}"
    rest = failed.doc[failed.pos :].lstrip()
    if not rest:
        return f"{place}, where the file ends"
    return f"{place}, where {shown(rest.partition(chr(10))[0][:MOST_STANDING])} stands"


def read_toml(path: Path, what: str, *, error: Raised = FileError) -> dict[str, Any]:
    """Return what a TOML file holds; see `read_text` and `toml_of`."""
    return toml_of(read_text(path, what, error=error), os.fspath(path), error=error)


def toml_of(text: str, name: str, *, error: Raised = FileError) -> dict[str, Any]:
    """Return what a TOML text holds.

    Raises:
      FileError: or `error`; the text is not TOML, or as of `json_of`.
    """
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as failed:
        raise error(f"{name} is not TOML: {failed}; mend that line") from failed
    except RecursionError as failed:
        raise error(
            f"{name!r} is damaged: it is nested more than {DEEPEST} deep{AGAIN}"
        ) from failed
    except ValueError as failed:
        raise error(f"{name!r} is damaged: a number has too many digits{AGAIN}") from failed
    _require_plain(data, name, error)
    return data


def _require_plain(data: Any, name: str, error: Raised) -> None:
    """Refuse numbers that are not finite or too large, and what is nested too deeply."""
    pending: list[tuple[Any, tuple[str | int, ...]]] = [(data, ())]
    while pending:
        value, path = pending.pop()
        if len(path) > DEEPEST:
            raise error(f"{name!r} is damaged: it is nested more than {DEEPEST} deep{AGAIN}")
        if isinstance(value, dict):
            entries = value.items()
        elif isinstance(value, list):
            entries = enumerate(value)
        else:
            continue
        for key, one in entries:
            if isinstance(one, dict | list):
                pending.append((one, (*path, key)))
            elif isinstance(one, float) and not math.isfinite(one):
                raise error(f"{name!r}: {_at(*path, key)} is {one}; it must be finite")
            elif isinstance(one, int) and not -LARGEST <= one <= LARGEST:
                raise error(f"{name!r}: {_at(*path, key)} is {shown(one)}; it is too large")


def _at(*path: str | int) -> str:
    words = (f"[{key}]" if isinstance(key, int) else f".{key}" for key in path)
    return "".join(words).removeprefix(".")


def _bare(what: str) -> str:
    return what.removeprefix("the ")
