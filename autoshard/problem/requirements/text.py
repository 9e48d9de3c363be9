"""Requirements as text: one statement each, on the command line, in Python and in TOML files.

    pin TARGET LAYOUT                    pin params.layers[*].w1 [data, model?]
    replicate TARGET over AXES           replicate opt_state.** over pod
    forbid TARGET LAYOUT                 forbid scope **/attention [?, model, ...]
    tie TARGET with TARGET ...           tie params.embed with params.unembed
    limit memory SIZE                    limit memory 60GiB
    limit KIND [in SCOPE] [over AXES] count N      limit all_gather over data count 3
    limit KIND [in SCOPE] [over AXES] bytes SIZE   limit collectives in layers/mlp bytes 2GB

with a strength before it, if it is not to hold in every plan: `p1: pin ...`, `2ms: pin ...`.
A TOML file has a list of them, and tables of logical axis rules:

    requirements = [
        "pin batch.** [data, ...]",
        "limit memory 60GiB",
    ]

    [[logical]]
    names = { "params.**.wq" = ["embed", "heads"], "params.**.wo" = ["heads", "embed"] }
    rules = { embed = "fsdp", heads = ["tensor"] }      # left out: the best ones are found

A logical table may have a `priority` or a `price` in seconds.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autoshard.files import Count, NotNegative, read_toml, typed
from autoshard.problem.requirements.records import (
    ChangeLimit,
    CollectiveLimit,
    Forbid,
    LogicalRules,
    MemoryLimit,
    Pin,
    Requirement,
    Tie,
)
from autoshard.program.layout_pattern import LayoutPattern, PatternError, parse_pattern
from autoshard.program.select import RequirementError

_STRENGTH = re.compile(r"\s*(?:p(\d+)|([\d.]+(?:e[+-]?\d+)?)\s*(s|ms|us))\s*:\s*")
_SIZES = {
    "": 1, "b": 1, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
_LIMIT = re.compile(r"(?:in\s+(\S+)\s+)?(?:over\s+(.*?)\s+)?(count|bytes)\s+(.+)")
_FORMS = (
    "write `pin TARGET LAYOUT`, `replicate TARGET over AXES`, `forbid TARGET LAYOUT`, "
    "`tie TARGET with TARGET`, `limit memory SIZE` or "
    "`limit KIND [in SCOPE] [over AXES] count N`"
)


@dataclass(frozen=True, slots=True)
class WrittenLogical:
    """A table of logical axis rules."""

    names: dict[str, tuple[str | None, ...]] = field(default_factory=dict)
    rules: dict[str, str | tuple[str, ...]] | None = None
    priority: Count | None = None
    price: NotNegative | None = None


@dataclass(frozen=True, slots=True)
class WrittenChanges:
    """At most how many inputs may lie otherwise than in these layouts."""

    layouts: dict[str, str]
    count: Count
    target: str


def parse(statement: str, *, source: str = "") -> Requirement:
    """Read one statement.

    Raises:
      RequirementError: it is none.

    >>> str(parse("2ms: pin params.w1 [data, model?]"))
    '2ms: pin params.w1 [data, model?]'
    """
    strength: dict[str, Any] = {"source": source}
    rest = statement
    if match := _STRENGTH.match(statement):
        rest = statement[match.end() :]
        if match[1] is not None:
            strength["priority"] = int(match[1])
        else:
            strength["price"] = float(match[2]) * _SECONDS[match[3]]
    verb, _, body = rest.strip().partition(" ")
    body = body.strip()
    try:
        if verb in ("pin", "forbid"):
            target, layout = _target_and_layout(body)
            return (Pin if verb == "pin" else Forbid)(target, layout, **strength)
        if verb == "replicate":
            target, _, axes = body.rpartition(" over ")
            if target and _names(axes):
                layout = LayoutPattern((), more=True, replicated=_names(axes))
                return Pin(target.strip(), layout, **strength)
        if verb == "tie":
            targets = tuple(part.strip() for part in re.split(r"\s+with\s+", body))
            if targets != ("",):
                return Tie(targets, **strength)
        if verb == "limit":
            return _limit(body, strength)
    except (PatternError, RequirementError) as error:
        raise RequirementError(f"{statement!r}: {error}") from error
    raise RequirementError(f"{statement!r} is not a requirement: {_FORMS}")


def read_file(path: str | os.PathLike[str]) -> tuple[Requirement, ...]:
    """Read a TOML file; every requirement knows the file as its source.

    Raises:
      RequirementError: the file cannot be read, or holds something else; all faults are listed.
    """
    name = os.fspath(path)
    data = read_toml(path, "the requirements", error=RequirementError)
    found: list[Requirement] = []
    faults = [f"{key!r} is neither `requirements` nor `logical`" for key in data
              if key not in ("requirements", "logical")]  # fmt: skip
    for entry in _list(data.get("requirements", [])):
        try:
            found.append(parse(str(entry), source=name))
        except RequirementError as error:
            faults.append(str(error))
    for table in _list(data.get("logical", [])):
        try:
            found.append(_logical(table, name))
        except (RequirementError, TypeError, AttributeError) as error:
            faults.append(f"logical: {error}")
    if faults:
        raise RequirementError("\n  - ".join([f"requirements {name!r}:", *faults]))
    return tuple(found)


def requirements_of(given: Sequence[Requirement | str]) -> tuple[Requirement, ...]:
    """Records as they are, statements read.

    Raises:
      RequirementError: some are not statements; all of them are listed.
    """
    found: list[Requirement] = []
    faults: list[str] = []
    for one in given:
        try:
            found.append(parse(one) if isinstance(one, str) else one)
        except RequirementError as error:
            faults.append(str(error))
    if faults:
        raise RequirementError("\n  - ".join(["some requirements cannot be read:", *faults]))
    return tuple(found)


def to_json(requirement: Requirement) -> dict[str, Any]:
    """Plain data from which `from_json` makes the requirement again."""
    data: dict[str, Any] = {"source": requirement.source}
    if isinstance(requirement, ChangeLimit):
        layouts = {path: str(layout) for path, layout in requirement.layouts.items()}
        return {
            **data,
            "changes": {
                "layouts": layouts,
                "count": requirement.count,
                "target": requirement.target,
            },
        }
    if not isinstance(requirement, LogicalRules):
        return {**data, "statement": str(requirement)}
    rules = requirement.rules
    names = {target: list(names) for target, names in requirement.names.items()}
    logical: dict[str, Any] = {"names": names}
    if rules is not None:
        logical["rules"] = {name: list(axes) for name, axes in rules.items()}
    for key in ("priority", "price"):
        if getattr(requirement, key) is not None:
            logical[key] = getattr(requirement, key)
    return {**data, "logical": logical}


def from_json(data: Mapping[str, Any]) -> Requirement:
    """The inverse of `to_json`.

    Raises:
      RequirementError: the data is something else.
    """
    source = str(data.get("source", ""))
    if "logical" in data:
        return _logical(data["logical"], source)
    if "changes" in data:
        changes = typed(data["changes"], WrittenChanges, name="changes", error=RequirementError)
        try:
            layouts = {path: parse_pattern(text) for path, text in changes.layouts.items()}
        except PatternError as error:
            raise RequirementError(f"changes: {error}") from error
        return ChangeLimit(layouts, changes.count, changes.target, source=source)
    return parse(str(data.get("statement", "")), source=source)


def _target_and_layout(body: str) -> tuple[str, LayoutPattern]:
    """`TARGET LAYOUT`; the layout is the last thing in brackets that stands behind a space."""
    starts = [match.end() - 1 for match in re.finditer(r"\s\[", body)]
    for start in starts:
        target = body[:start].strip()
        if target:
            return target, parse_pattern(body[start:])
    raise RequirementError("it needs a target and a layout, such as `params.w1 [data, None]`")


def _limit(body: str, strength: Mapping[str, Any]) -> Requirement:
    what, _, rest = body.partition(" ")
    if what == "memory":
        return MemoryLimit(_size(rest), **strength)
    match = re.fullmatch(_LIMIT, rest.strip())
    if match is None:
        raise RequirementError(
            "write `limit memory SIZE`, or `limit KIND [in SCOPE] [over AXES] count N`"
        )
    kind = None if what in ("collective", "collectives") else what
    inside, over = match[1] or "", _names(match[2] or "")
    if match[3] == "bytes":
        return CollectiveLimit(kind, over, bytes=_size(match[4]), inside=inside, **strength)
    if not match[4].strip().isdigit():
        raise RequirementError(f"{match[4]!r} is not a count; write a whole number, such as 4")
    return CollectiveLimit(kind, over, count=int(match[4]), inside=inside, **strength)


def _logical(table: Mapping[str, Any], source: str) -> LogicalRules:
    written = typed(table, WrittenLogical, error=RequirementError)
    if not written.names:
        raise RequirementError("it needs `names`: from targets to the names of their dimensions")
    names = {
        target: tuple(name or None for name in entries) for target, entries in written.names.items()
    }
    rules = None
    if written.rules is not None:
        rules = {
            name: (axes,) if isinstance(axes, str) else axes for name, axes in written.rules.items()
        }
    return LogicalRules(names, rules, priority=written.priority, price=written.price, source=source)


def _size(text: str) -> float:
    match = re.fullmatch(r"([\d.]+(?:e\+?\d+)?)\s*([a-z]*)", text.strip().lower())
    if match is None or match[2] not in _SIZES:
        raise RequirementError(f"{text.strip()!r} is not a size; write 60GiB, 80GB or bytes")
    try:
        return float(match[1]) * _SIZES[match[2]]
    except ValueError as error:
        raise RequirementError(f"{text.strip()!r} is not a size; write 60GiB") from error


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in re.split(r"[,\s]+", text.strip()) if name)


def _list(entries: Any) -> list[Any]:
    return list(entries) if isinstance(entries, list) else [entries]
