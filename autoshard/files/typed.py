"""Records of plain data, every field of its type: the one door for what files hold.

A record is a dataclass or a `msgspec.Struct`; its annotations say what is expected, with bounds as
`Annotated[int, msgspec.Meta(ge=0)]`. What does not fit is refused with the path to it, its value
and what is expected there, so that nothing behind the door asks for types.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterator, Mapping
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from autoshard.files.errors import FileError, shown

T = TypeVar("T")

Count = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[float, msgspec.Meta(gt=0)]
NotNegative = Annotated[float, msgspec.Meta(ge=0)]

_FAULT = re.compile(r"(?P<said>.*?)(?: - at (?P<key>`key` in )?`\$(?P<path>.*)`)?", re.DOTALL)
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")
_NOUNS = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "bool": "true or false",
    "object": "an object",
    "array": "a list",
    "null": "null",
}
_BOUNDS = {">=": "of at least", "<=": "of at most", ">": "above", "<": "below"}


def typed(
    data: Any, kind: type[T], *, name: str = "", error: Callable[[str], Exception] = FileError
) -> T:
    """Return a record of plain data.

    Args:
      data: of JSON or TOML.
      kind: the record's class; anything that `msgspec.convert` takes.
      name: of the file, or what it is; the message begins with it.
      error: makes the exception to raise of its message.

    Raises:
      FileError: or `error`, with the path to what does not fit.

    >>> typed({"a": [1, "x"]}, dict[str, list[int]], name="f.json")
    Traceback (most recent call last):
    ...
    autoshard.files.errors.FileError: f.json: a[1] is 'x'; it must be a whole number
    """
    try:
        found = msgspec.convert(data, kind)
    except (msgspec.ValidationError, ValueError, TypeError) as failed:
        said = _message(str(failed), data, kind)
        raise error(f"{name}: {said}" if name else said) from failed
    if (keys := next(_unknown(data, kind), None)) is not None:
        said = f"{_written(list(keys))} is not known"
        raise error(f"{name}: {said}" if name else said)
    return found


def _unknown(data: Any, kind: Any) -> Iterator[tuple[Any, ...]]:
    """The paths to keys that no field of a record has; `data` fits otherwise."""
    if dataclasses.is_dataclass(kind):
        hints = _hints(kind)
        yield from ((key,) for key in data if key not in hints)
        pairs = [(key, data[key], hint) for key, hint in hints.items() if key in data]
    else:
        parts = [part for part in get_args(kind) if part is not ... and _holds_records(part)]
        if not parts or data is None or isinstance(data, str):
            return
        if isinstance(data, Mapping):
            pairs = [(key, one, parts[-1]) for key, one in data.items()]
        else:
            pairs = [(number, one, parts[-1]) for number, one in enumerate(data)]
        if get_origin(kind) in (Union, UnionType, Annotated):
            yield from _unknown(data, parts[-1])
            return
    for key, one, hint in pairs:
        if _holds_records(hint):
            yield from ((key, *rest) for rest in _unknown(one, hint))


@functools.cache
def _holds_records(kind: Any) -> bool:
    return dataclasses.is_dataclass(kind) or any(map(_holds_records, get_args(kind)))


@functools.cache
def _hints(kind: Any) -> Mapping[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _message(complaint: str, data: Any, kind: Any) -> str:
    match = _FAULT.fullmatch(complaint)
    assert match is not None
    said = match["said"]
    steps = [step[1] or step[2] for step in _STEP.finditer(match["path"] or "")]
    keys, value = _found(steps, data, kind, complaint)
    at = _written(keys)
    if missing := re.fullmatch(r"Object missing required field `(.*)`", said):
        return f"{_written([*keys, missing[1]])} is missing"
    if unknown := re.fullmatch(r"Object contains unknown field `(.*)`", said):
        return f"{_written([*keys, unknown[1]])} is not known"
    if match["key"]:
        return f"a key of {at or 'the file'} does not fit: {_wanted(said)}"
    return f"{at or 'the file'} is {shown(value)}; it must be {_wanted(said)}"


def _wanted(said: str) -> str:
    """What msgspec expects, in plain words."""
    if re.match(r"Invalid enum value", said):
        return "one of the words that are known"
    if long := re.match(r"Expected `(\w+)` of length (>= |<= )?(\d+)", said):
        more = {">= ": "at least ", "<= ": "at most "}.get(long[2] or "", "")
        return f"{_NOUNS.get(long[1], long[1])} of {more}{long[3]}"
    match = re.match(r"Expected `([^`]*)`(?: (>=|<=|>|<) (\S+))?", said)
    if match is None:
        return said[:1].lower() + said[1:]
    nouns = " or ".join(_NOUNS.get(one, one) for one in match[1].split(" | "))
    return f"{nouns} {_BOUNDS[match[2]]} {match[3]}" if match[2] else nouns


def _found(steps: list[str], data: Any, kind: Any, complaint: str) -> tuple[list[Any], Any]:
    """The keys on the path of a complaint, and the value there.

    A path says `[...]` for an entry of a mapping; which one it is, is found by leaving out others.
    """
    keys: list[Any] = []
    value: Any = data
    for step in steps:
        if isinstance(value, Mapping):
            named = list(value) if step == "..." else [step]
            key = named[0] if len(named) == 1 else _culprit(named, keys, data, kind, complaint)
            value = value.get(key)
        elif isinstance(value, list | tuple) and step.isdigit():
            key = int(step)
            value = value[key]
        else:
            return keys, value
        keys.append(key)
    return keys, value


def _culprit(names: list[Any], keys: list[Any], data: Any, kind: Any, complaint: str) -> Any:
    """The entry of the mapping at `keys` about which there is this complaint."""
    while len(names) > 1:
        half = names[: len(names) // 2]
        is_there = complaint in _complaints(_only(data, keys, half), kind)
        names = half if is_there else names[len(half) :]
    return names[0]


def _only(data: Any, keys: list[Any], names: list[Any]) -> Any:
    if not keys:
        return {name: data[name] for name in names}
    inner = _only(data[keys[0]], keys[1:], names)
    if isinstance(data, Mapping):
        return {**data, keys[0]: inner}
    return [*data[: keys[0]], inner, *data[keys[0] + 1 :]]


def _complaints(data: Any, kind: Any) -> Iterator[str]:
    try:
        msgspec.convert(data, kind)
    except (msgspec.ValidationError, ValueError, TypeError) as failed:
        yield str(failed)


def _written(keys: list[Any]) -> str:
    words = []
    for key in keys:
        plain = isinstance(key, str) and re.fullmatch(r"\w[\w-]*", key)
        words.append(f".{key}" if plain else f"[{key!r}]")
    return "".join(words).removeprefix(".")
