"""What a fit found, parameter by parameter and kind by kind.

Errors are `|predicted / measured - 1|` over the rows behind a parameter: those whose predicted time
it moves. Before is with the machine that was given, after with the fitted one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from autoshard.machine.numbers import unit_of
from autoshard.terminal import aligned
from autoshard.units import format_percent, format_unit


@dataclass(frozen=True, slots=True)
class Errors:
    """Median and 90th percentile of the relative errors of some rows; nan where there are none."""

    median: float
    percentile90: float

    def __str__(self) -> str:
        if math.isnan(self.median):
            return "-"
        return f"{100 * self.median:.1f} / {format_percent(self.percentile90)}"


@dataclass(frozen=True, slots=True)
class ParameterReport:
    """One parameter of the machine.

    Attributes:
      name: its path in a machine file.
      label: what it belongs to: the name of a network level, or nothing.
      unit: "s" for seconds, else nothing.
      before, after: its values; equal where it stayed as it was.
      rows: how many rows of the table tell of it.
      errors_before, errors_after: of those rows.
      note: why it stayed, or that it met a bound; or nothing.
    """

    name: str
    label: str
    unit: str
    before: float
    after: float
    rows: int
    errors_before: Errors
    errors_after: Errors
    note: str

    @property
    def fitted(self) -> bool:
        """Whether the table decided its value."""
        return not self.note.startswith("stays")


@dataclass(frozen=True, slots=True)
class KindReport:
    """The rows of one kind."""

    kind: str
    rows: int
    errors_before: Errors
    errors_after: Errors


@dataclass(frozen=True, slots=True)
class Report:
    """A fit: every parameter of the machine, and every kind of row."""

    parameters: tuple[ParameterReport, ...]
    kinds: tuple[KindReport, ...]

    def to_frame(self) -> pd.DataFrame:
        """The parameters as a frame, one row each, errors as fractions."""
        return pd.DataFrame([_flat(asdict(parameter)) for parameter in self.parameters])

    def to_json(self) -> dict[str, list[dict[str, object]]]:
        """Plain data; what is not a number is None."""
        return {
            "parameters": [_plain(_flat(asdict(entry))) for entry in self.parameters],
            "kinds": [_plain(_flat(asdict(entry))) for entry in self.kinds],
        }

    def __str__(self) -> str:
        heading = ("parameter", "before", "after", "rows", "error before", "after", "")
        rows: list[tuple[str, ...]] = [heading]
        for entry in self.parameters:
            name = f"{entry.name} ({entry.label})" if entry.label else entry.name
            rows.append(
                (
                    name,
                    format_unit(entry.before, unit_of(entry.name)),
                    format_unit(entry.after, unit_of(entry.name)),
                    str(entry.rows),
                    str(entry.errors_before),
                    str(entry.errors_after),
                    entry.note,
                )
            )
        rows.append(("",) * len(heading))
        rows.append(("rows of kind", "", "", "rows", "error before", "after", ""))
        for kind in self.kinds:
            errors = str(kind.errors_before), str(kind.errors_after)
            rows.append((kind.kind, "", "", str(kind.rows), *errors, ""))
        rows.append(("",) * len(heading))
        lines = aligned(rows, right=range(1, len(heading) - 1), indent=0)
        lines.append("errors: median / 90th percentile of |predicted / measured - 1|")
        return "\n".join(lines)


def errors(
    predicted: NDArray[np.float64],
    measured: NDArray[np.float64],
    chosen: NDArray[np.bool_] | Sequence[int],
) -> Errors:
    """The errors of the chosen rows."""
    off = np.abs(predicted[chosen] / measured[chosen] - 1.0)
    if not off.size:
        return Errors(math.nan, math.nan)
    return Errors(float(np.median(off)), float(np.percentile(off, 90)))


def _flat(entry: dict[str, object]) -> dict[str, object]:
    """`errors_before: {median, percentile90}` as `median_error_before`, ..."""
    flat: dict[str, object] = {}
    for key, cell in entry.items():
        if isinstance(cell, dict):
            when = key.removeprefix("errors_")
            flat[f"median_error_{when}"] = cell["median"]
            flat[f"percentile90_error_{when}"] = cell["percentile90"]
        else:
            flat[key] = cell
    return flat


def _plain(entry: dict[str, object]) -> dict[str, object]:
    return {
        key: None if isinstance(cell, float) and not math.isfinite(cell) else cell
        for key, cell in entry.items()
    }
