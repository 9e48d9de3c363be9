"""A table of measured runs: CSV, one run a row, in the columns of `COLUMNS`.

`id, model, chip, chips` are needed; a cell that is empty says that nothing was published. Degrees
of parallelism are whole numbers, or several that multiply, as `16 x 8 (fsdp_transpose)`.
"""

from __future__ import annotations

import csv
import math
import re
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

HALVES = "seen", "blind"
NEEDED = ("id", "model", "chip", "chips")


class TableError(ValueError):
    """A table that cannot be read; the message names every column and cell that is at fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run as it was published; None stands for what was not.

    Attributes:
      id, group, quality, framework, model, chip: as the table calls them.
      chips: as their vendor counts them.
      units: slices of a TPU, or hosts of GPUs, that are joined by a slower network.
      topology: the machine in words.
      batch, sequence: tokens of a step are their product.
      microbatch: sequences of one microbatch on one data-parallel rank.
      accumulate: microbatches of a step.
      dp, fsdp, tp, pp, vpp, cp, ep: degrees of parallelism; `fsdp` 0 for sharded optimizer state
        alone, -1 for all chips.
      schedule, precision, remat, settings, notes: in the words of the source.
      path: of the source.
      step_seconds: measured.
      tflops, mfu: TFLOP/s of one chip, and per cent of its peak, by the source's own count.
      token_rate: tokens/s of one chip.
      memory_gib: peak of one chip.
    """

    id: str
    model: str
    chip: str
    chips: int
    group: str = ""
    quality: str = ""
    task: str = ""
    framework: str = ""
    units: int | None = None
    topology: str = ""
    batch: float | None = None
    sequence: int | None = None
    microbatch: float | None = None
    accumulate: float | None = None
    dp: int | None = None
    fsdp: int | None = None
    tp: int | None = None
    pp: int | None = None
    vpp: int | None = None
    cp: int | None = None
    ep: int | None = None
    schedule: str = ""
    precision: str = ""
    remat: str = ""
    settings: str = ""
    notes: str = ""
    path: str = ""
    step_seconds: float | None = None
    tflops: float | None = None
    mfu: float | None = None
    token_rate: float | None = None
    memory_gib: float | None = None


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value) or value < 0:
        raise ValueError(text)
    return value


def _whole(text: str) -> int:
    value = _number(text)
    if value != int(value):
        raise ValueError(text)
    return int(value)


def _degree(text: str) -> int:
    """A degree, the product of several, `no`, or -1 for `all`."""
    if text in ("no", "all"):
        return {"no": 0, "all": -1}[text]
    found = re.fullmatch(r"(\d+(?:\s*x\s*\d+)*)(?:\s*\(\w+\))?", text)
    if found is None:
        raise ValueError(text)
    return math.prod(int(part) for part in found[1].split("x"))


_DEGREES = ("dp", "fsdp", "tp", "pp", "vpp", "cp", "ep")
COLUMNS: dict[str, tuple[str, Callable[[str], Any], str]] = {
    **{name: (name, str, "") for name in ("id", "group", "quality", "task", "framework", "model")},
    "chip": ("chip", str, ""),
    "chips": ("chips", _whole, "a whole number"),
    "slices_or_nodes": ("units", _whole, "a whole number"),
    "topology_or_cloud_name": ("topology", str, ""),
    "global_batch_seqs": ("batch", _number, "a number, not negative"),
    "seq": ("sequence", _whole, "a whole number"),
    "microbatch_per_device": ("microbatch", _number, "a number, not negative"),
    "grad_accum": ("accumulate", _number, "a number, not negative"),
    **{name: (name, _degree, "a whole number, or several as 16 x 8") for name in _DEGREES},
    **{name: (name, str, "") for name in ("schedule", "precision", "remat", "notes", "path")},
    "other_settings": ("settings", str, ""),
    "step_seconds": ("step_seconds", _number, "a number, not negative"),
    "tflops_per_s_per_chip": ("tflops", _number, "a number, not negative"),
    "tokens_per_s_per_chip": ("token_rate", _number, "a number, not negative"),
    "mfu_pct": ("mfu", _number, "a number, not negative"),
    "peak_memory_gib": ("memory_gib", _number, "a number, not negative"),
}
"""Columns of a table: the field of `Run`, how a cell is read, and what it should be."""


def read_table(path: str) -> list[Run]:
    """The runs of a CSV file, in its order; columns that `COLUMNS` has not are left out.

    Raises:
      OSError: the file cannot be read.
      TableError: a needed column is missing, a cell cannot be read, or an id stands twice; the
        message has one line for each.
    """
    rows = read_rows(path, "run")
    missing = [name for name in NEEDED if name not in rows[0]]
    faults = [f"the column {name!r} is missing" for name in missing]
    runs = []
    for number, row in enumerate(rows, start=1):
        values, wrong = _cells(row)
        where = row.get("id") or f"row {number}"
        faults += [f"{where}: {fault}" for fault in wrong]
        empty = [
            name for name in NEEDED if name not in missing and not (row.get(name) or "").strip()
        ]
        faults += [f"{where}: {name} is empty" for name in empty]
        if None in row:
            faults.append(f"{where}: it has more cells than there are columns")
        if not wrong and not empty and not missing:
            runs.append(Run(**values))
    faults += _doubled(run.id for run in runs)
    if faults:
        raise TableError("\n  ".join([f"{path} cannot be read:", *faults]))
    return runs


def read_rows(path: str, noun: str) -> list[dict[str, Any]]:
    """The rows of a CSV file, each of which is a `noun`.

    Raises:
      OSError: the file cannot be read.
      TableError: it is not a CSV file, or has no rows.
    """
    try:
        with Path(path).open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except (UnicodeDecodeError, csv.Error) as error:
        raise TableError(f"{path} is not a CSV file in UTF-8: {error}") from error
    if not rows:
        raise TableError(
            f"{path} has no rows; its first line names columns, each other is a {noun}"
        )
    return rows


def _cells(row: dict[str, str | None]) -> tuple[dict[str, Any], list[str]]:
    """The fields of a run, and what is wrong with its cells."""
    values: dict[str, Any] = {}
    faults = []
    for column, (name, read, form) in COLUMNS.items():
        text = (row.get(column) or "").strip()
        if not text:
            continue
        try:
            values[name] = read(text)
        except (ValueError, OverflowError):
            faults.append(f"{column} is {text!r}; it should be {form}")
    return values, faults


def _doubled(ids: Iterable[str]) -> list[str]:
    seen: set[str] = set()
    twice = {}
    for one in ids:
        if one in seen:
            twice[one] = None
        seen.add(one)
    return [f"the id {one!r} stands twice" for one in twice]


def half(run: Mapping[str, Any]) -> str:
    """Which half of all runs one belongs to by a hash of its model and chip: "seen" or "blind".

    While laws are mended, ratios of the first half alone are looked at.
    """
    return HALVES[zlib.crc32(f"{run['model']} {run['chip']}".lower().encode()) % 2]


def cells_of(run: Run) -> dict[str, Any]:
    """The fields of a run as plain data."""
    return {entry.name: getattr(run, entry.name) for entry in fields(run)}
