"""A sweep read back from what `autoshard whatif` writes: the JSON of -o and --json, or the CSV.

The rows are enough: prices of chips follow from what a row's machine costs, and all answers from
rows and prices. Columns that are not known here are passed over. A CSV does not name the program,
the objective or the currency.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from autoshard.study.whatif.prices import ChipPrice, Prices
from autoshard.study.whatif.row import SCHEMA_VERSION, Row
from autoshard.study.whatif.table import OBJECTIVES, WhatIf

SAVED = "saved_by_"
KNOWN = tuple(one.name for one in fields(Row))
NEEDED = ("chip", "chips", "machine", "limit_bytes", "status", "step_seconds")
WHOLE = ("chips", "peak_bytes", "tokens")
TEXT = ("chip", "machine", "status", "why", "mesh", "layouts", "binds", "key")


class SweepFileError(ValueError):
    """A file that holds no sweep; the message says what it lacks."""


def is_sweep(text: str) -> bool:
    """Whether a file looks like a sweep rather than like a plan."""
    if text.lstrip().startswith("{"):
        try:
            written = json.loads(text)
        except ValueError:
            return False
        return isinstance(written, dict) and "rows" in written
    heading = text.partition("\n")[0].split(",")
    return {"chip", "machine", "limit_bytes"} <= {name.strip() for name in heading}


def read_sweep(text: str) -> WhatIf:
    """The sweep in a file.

    Raises:
      SweepFileError: it holds none, or one of another version.
    """
    if not text.lstrip().startswith("{"):
        return _sweep({}, [_typed(row) for row in csv.DictReader(io.StringIO(text))])
    try:
        written = json.loads(text)
        rows = written["rows"]
    except (ValueError, KeyError, TypeError) as error:
        raise SweepFileError(f"this is no sweep: {error}") from error
    return sweep_of(written, rows)


def sweep_of(written: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> WhatIf:
    """The sweep of what is written around rows, and the rows.

    Raises:
      SweepFileError: as `read_sweep`.
    """
    if written.get("schema_version") != SCHEMA_VERSION:
        raise SweepFileError(
            f"the sweep has schema version {written.get('schema_version')!r}, this autoshard reads "
            f"{SCHEMA_VERSION}: sweep again"
        )
    return _sweep(written, rows)


def _sweep(written: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> WhatIf:
    if not records:
        raise SweepFileError("the sweep has no rows")
    lacking = [name for name in NEEDED if any(name not in record for record in records)]
    if lacking:
        raise SweepFileError(f"this is no sweep: its rows lack {', '.join(lacking)}")
    try:
        rows = tuple(_row(record) for record in records)
    except (TypeError, ValueError) as error:
        raise SweepFileError(f"the sweep is damaged: {error}") from error
    prices: dict[str, ChipPrice] = {}
    for record, row in zip(records, rows, strict=True):
        hourly, joules = record.get("cost_per_hour"), record.get("joules_per_token")
        rate = row.tokens_per_second_per_chip
        known = prices.get(row.chip, ChipPrice())
        prices[row.chip] = ChipPrice(
            known.chip_hour if hourly is None else hourly / row.chips,
            known.watts if joules is None or not rate else joules * rate,
        )
    objective = written.get("objective", "step")
    return WhatIf(
        program=str(written.get("program", "a sweep")),
        rows=rows,
        objective=objective if objective in OBJECTIVES else "step",
        prices=Prices(tuple(prices.items()), str(written.get("currency", "USD"))),
        asked=int(written.get("asked", len(rows))),
        interrupted=bool(written.get("interrupted", False)),
        train_tokens=written.get("train_tokens", _train_tokens(records, rows)),
        latency=written.get("latency_seconds"),
    )


def _row(record: Mapping[str, Any]) -> Row:
    """A row; what stands before the chip are the sizes of the program."""
    names = list(record)
    sizes = {name: record[name] for name in names[: names.index("chip")]}
    saved = {
        name.removeprefix(SAVED).replace("_", " "): float(value)
        for name, value in record.items()
        if name.startswith(SAVED) and value is not None
    }
    plain = {name: record[name] for name in KNOWN if name in record and record[name] is not None}
    return Row(**{**plain, "sizes": sizes, "saved_seconds": saved})


def _train_tokens(records: Sequence[Mapping[str, Any]], rows: Sequence[Row]) -> float | None:
    """Of the training run, from the days that it takes."""
    for record, row in zip(records, rows, strict=True):
        if record.get("train_days") is not None and row.tokens_per_second:
            return record["train_days"] * 86400.0 * row.tokens_per_second
    return None


def _typed(row: Mapping[str | None, Any]) -> dict[str, Any]:
    """A line of a CSV with numbers as numbers, and what is empty as None."""
    return {str(name): _value(str(name), text) for name, text in row.items() if name is not None}


def _value(name: str, text: str | None) -> Any:
    if text is None or text == "":
        return None
    if name in TEXT:
        return text
    if text in ("True", "False"):
        return text == "True"
    try:
        number = float(text)
    except ValueError:
        return text
    if name in WHOLE or (text.lstrip("-").isdigit() and math.isfinite(number)):
        return int(number)
    return number
