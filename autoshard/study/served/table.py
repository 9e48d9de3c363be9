"""The table of published points of serving engines: one row, one configuration.

A point needs an id, a model, a chip and how many, a batch, and the lengths of what goes in and
comes out. It is held to whatever of these was published: the time to the first token, the time of
each token after it, and tokens made in a second.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal

from autoshard.study.measured.table import TableError, read_rows

Arrival = Literal["together", "one by one"]
ARRIVALS = ("together", "one by one")
PRECISIONS = {
    "fp16": "bfloat16",
    "bf16": "bfloat16",
    "fp8": "float8_e4m3fn",
    "fp4": "float4_e2m1fn",
    "int8": "int8",
}
"""What tables call dtypes; products of sixteen bits take the same time in both formats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One configuration of an engine, as it was published; None stands for what was not.

    Attributes:
      id, group, quality, engine, model, chip: in the words of the table.
      chips: that serve one copy of the model.
      tp: ranks that share heads and widths.
      ep: ranks, among these, that share experts; 1 where experts are cut as all else is.
      weights, cache, experts: keys of `PRECISIONS`; `experts` is "" where they are as the rest.
      batch: sequences that are served at once.
      arrival: whether they come "together", so that all prompts are read at once, or "one by one".
      input, output: tokens of a prompt, and of what is made of it.
      ttft_ms: milliseconds until the first token is there.
      tpot_ms: of each token after it.
      tokens_per_s: made by all chips.
      memory_gb: 1e9 bytes of a chip, at most.
      repo, path, commit, notes: of the source.
    """

    id: str
    model: str
    chip: str
    chips: int
    batch: int
    input: int
    output: int
    arrival: Arrival = "together"
    group: str = ""
    quality: str = ""
    engine: str = ""
    tp: int = 1
    ep: int = 1
    weights: str = "bf16"
    cache: str = "bf16"
    experts: str = ""
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    tokens_per_s: float | None = None
    memory_gb: float | None = None
    repo: str = ""
    path: str = ""
    commit: str = ""
    notes: str = ""


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError(text)
    return value


def _arrival(text: str) -> str:
    if text not in ARRIVALS:
        raise ValueError(text)
    return text


def _precision(text: str) -> str:
    if text not in PRECISIONS:
        raise ValueError(text)
    return text


_COUNT = (_count, "a whole number of 1 or more")
_NUMBER = (_positive, "a number above 0")
_DTYPE = (_precision, f"one of {', '.join(PRECISIONS)}")
_READ: dict[str, tuple[Callable[[str], Any], str]] = {
    **dict.fromkeys(("chips", "batch", "input", "output", "tp", "ep"), _COUNT),
    **dict.fromkeys(("ttft_ms", "tpot_ms", "tokens_per_s", "memory_gb"), _NUMBER),
    **dict.fromkeys(("weights", "cache", "experts"), _DTYPE),
    "arrival": (_arrival, f"one of {', '.join(ARRIVALS)}"),
}
"""How the cells of a column are read, and what they should be; all others are words."""
NEEDED = ("id", "model", "chip", "chips", "batch", "input", "output")
MEASURED = ("ttft_ms", "tpot_ms", "tokens_per_s")


def read_points(path: str) -> list[Point]:
    """The points of a CSV file, in its order; columns that `Point` does not have are left out.

    Raises:
      OSError: the file cannot be read.
      TableError: a needed column is missing, a cell cannot be read, nothing was measured, or an id
        stands twice; the message has one line for each.
    """
    rows = read_rows(path, "point")
    faults = [f"the column {name!r} is missing" for name in NEEDED if name not in rows[0]]
    points: dict[str, Point] = {}
    for number, row in enumerate(rows, start=1):
        where = row.get("id") or f"row {number}"
        values, wrong = _cells(row)
        wrong += [f"{name} is empty" for name in NEEDED if name in row and name not in values]
        if None in row:
            wrong.append("it has more cells than there are columns")
        if not any(name in values for name in MEASURED):
            wrong.append(f"nothing was measured; give one of {', '.join(MEASURED)}")
        if where in points:
            wrong.append("its id stands twice")
        faults += [f"{where}: {one}" for one in wrong]
        if not faults:
            points[where] = Point(**values)
    if faults:
        raise TableError("\n  ".join([f"{path} cannot be read:", *faults]))
    return list(points.values())


def _cells(row: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The fields of a point, and what is wrong with its cells."""
    values: dict[str, Any] = {}
    faults = []
    for name in (entry.name for entry in fields(Point)):
        text = (row.get(name) or "").strip()
        if not text:
            continue
        read, form = _READ.get(name, (str, ""))
        try:
            values[name] = read(text)
        except ValueError:
            # a cell that cannot be read is not an empty one
            values[name] = None
            faults.append(f"{name} is {text!r}; it should be {form}")
    return values, faults
