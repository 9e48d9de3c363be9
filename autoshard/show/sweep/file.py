"""A sweep read back from what `autoshard whatif` writes: the JSON of -o and --json, or the CSV.

The rows are enough: prices of chips follow from what a row's machine costs, and all answers from
rows and prices. Columns that are not known here are passed over. A CSV does not name the program,
the objective or the currency.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from autoshard.files import Count, FileError, NotNegative, json_of, typed
from autoshard.study.whatif.prices import ChipPrice, Prices
from autoshard.study.whatif.row import SCHEMA_VERSION, Row
from autoshard.study.whatif.table import WhatIf

SAVED = "saved_by_"
KNOWN = tuple(one.name for one in fields(Row))
NEEDED = ("chip", "chips", "machine", "limit_bytes", "status", "step_seconds")
WHOLE = ("chips", "peak_bytes", "tokens")
TEXT = ("chip", "machine", "status", "why", "mesh", "layouts", "binds", "copies", "key")


class SweepFileError(FileError):
    """A file that holds no sweep; the message says what it lacks."""


@dataclass(frozen=True, slots=True)
class WrittenSweep:
    """What is written around the rows, and the rows as they are; see `WhatIf`."""

    rows: tuple[dict[str, Any], ...]
    schema_version: Literal[1] = SCHEMA_VERSION
    program: str = "a sweep"
    objective: Literal["step", "tokens-per-second", "tokens-per-dollar", "energy"] = "step"
    currency: str = "USD"
    asked: Count | None = None
    interrupted: bool = False
    train_tokens: NotNegative | None = None
    latency_seconds: NotNegative | None = None
    answers: Any = None


@dataclass(frozen=True, slots=True)
class Costs:
    """The columns of a row that follow from prices."""

    cost_per_hour: NotNegative | None = None
    joules_per_token: NotNegative | None = None
    train_days: NotNegative | None = None


def is_sweep(text: str) -> bool:
    """Whether a file looks like a sweep rather than like a plan."""
    if text.lstrip().startswith("{"):
        try:
            written = json_of(text, "the sweep")
        except FileError:
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
        try:
            records = [_record(row) for row in csv.DictReader(io.StringIO(text))]
        except csv.Error as error:
            raise SweepFileError(f"this is not a sweep: {error}") from error
        return sweep_of(WrittenSweep(tuple(records)))
    written = json_of(text, "the sweep", error=SweepFileError)
    require_version(written)
    return sweep_of(typed(written, WrittenSweep, name="the sweep", error=SweepFileError))


def require_version(written: Mapping[str, Any]) -> None:
    """Refuse what another version has written.

    Raises:
      SweepFileError: it has another schema version, or none.
    """
    if written.get("schema_version") != SCHEMA_VERSION:
        raise SweepFileError(
            f"the sweep has schema version {written.get('schema_version')!r}, this autoshard reads "
            f"{SCHEMA_VERSION}: sweep again"
        )


def sweep_of(written: WrittenSweep) -> WhatIf:
    """The sweep of what is written around rows, and the rows.

    Raises:
      SweepFileError: it has no rows, or some that lack a column or do not fit.
    """
    records = written.rows
    if not records:
        raise SweepFileError(
            "the sweep has no rows; sweep again, over one machine and one size at least"
        )
    lacking = [name for name in NEEDED if any(name not in record for record in records)]
    if lacking:
        raise SweepFileError(
            f"this is not a sweep: its rows lack {', '.join(lacking)}; give what "
            "`autoshard whatif -o` or --csv wrote"
        )
    rows = tuple(_row(record, number) for number, record in enumerate(records))
    for number, row in enumerate(rows):
        if list(row.sizes) != list(rows[0].sizes):
            raise SweepFileError(
                f"rows[{number}] has other sizes than rows[0]: {list(row.sizes)}, not "
                f"{list(rows[0].sizes)}; sweep again"
            )
    costs = [_costs(record, number) for number, record in enumerate(records)]
    prices: dict[str, ChipPrice] = {}
    for one, row in zip(costs, rows, strict=True):
        rate, joules = row.tokens_per_second_per_chip, one.joules_per_token
        known = prices.get(row.chip, ChipPrice())
        prices[row.chip] = ChipPrice(
            known.chip_hour if one.cost_per_hour is None else one.cost_per_hour / row.chips,
            known.watts if joules is None or not rate else joules * rate,
        )
    tokens = written.train_tokens
    return WhatIf(
        program=written.program,
        rows=rows,
        objective=written.objective,
        prices=Prices(tuple(prices.items()), written.currency),
        asked=len(rows) if written.asked is None else written.asked,
        interrupted=written.interrupted,
        train_tokens=_train_tokens(costs, rows) if tokens is None else tokens,
        latency=written.latency_seconds,
    )


def _row(record: Mapping[str, Any], number: int) -> Row:
    """A row; what stands before the chip are the sizes of the program."""
    names = list(record)
    sizes = {name: record[name] for name in names[: names.index("chip")]}
    saved = {
        name.removeprefix(SAVED).replace("_", " "): value
        for name, value in record.items()
        if name.startswith(SAVED) and value is not None
    }
    plain = {name: record[name] for name in KNOWN if name in record and record[name] is not None}
    parts = {**plain, "sizes": sizes, "saved_seconds": saved}
    return typed(parts, Row, name=f"the sweep: rows[{number}]", error=SweepFileError)


def _costs(record: Mapping[str, Any], number: int) -> Costs:
    parts = {one.name: record.get(one.name) for one in fields(Costs)}
    return typed(parts, Costs, name=f"the sweep: rows[{number}]", error=SweepFileError)


def _train_tokens(costs: Sequence[Costs], rows: Sequence[Row]) -> float | None:
    """Of the training run, from the days that it takes."""
    for one, row in zip(costs, rows, strict=True):
        if one.train_days is not None and row.tokens_per_second:
            return one.train_days * 86400.0 * row.tokens_per_second
    return None


def _record(row: Mapping[str | None, Any]) -> dict[str, Any]:
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
    if not math.isfinite(number) or abs(number) >= 2**63:
        return number if math.isfinite(number) and name not in WHOLE else text
    if number.is_integer() and (name in WHOLE or text.lstrip("-").isdigit()):
        return int(number)
    return number
