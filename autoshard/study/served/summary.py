"""Bounds held to what was measured.

A ratio is what is predicted over what was measured, of times; of tokens a second it is the
measured over the predicted rate. Either is at most 1 where the bound holds. First tokens are held
to prefills only where no request waits for another: where prompts come together, or one is served
alone.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autoshard.units import counted

MEASURES = {
    "ttft": "time to the first token",
    "tpot": "time of each further token",
    "rate": "tokens a second",
}
"""What is measured, by the name of its ratio."""
SLACK = 1.005
"""Of numbers that were rounded, a ratio that still is a bound."""


@dataclass(frozen=True, slots=True)
class Ratios:
    """Ratios of several points.

    Attributes:
      count: of them.
      holding: where the bound holds.
      median, least, most: of all.
    """

    count: int
    holding: int
    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Ratios | None:
        """Of values; None where there are none."""
        if not values:
            return None
        holding = sum(value <= SLACK for value in values)
        return cls(len(values), holding, statistics.median(values), min(values), max(values))

    def __str__(self) -> str:
        return (
            f"{counted(self.count, 'point')}, of which the bound holds for {self.holding}; median "
            f"{self.median:.2f}, {self.least:.2f} to {self.most:.2f}"
        )


def waits(row: Mapping[str, Any]) -> bool:
    """Whether the first token of a point waits for other requests."""
    return row["arrival"] != "together" and int(row["batch"]) > 1


def ratio(row: Mapping[str, Any], measure: str) -> float | None:
    """The ratio of one measure of a row; None where it was not published or is not priced."""
    if measure == "rate":
        names = ("tokens_per_s", "predicted_tokens_per_s")
    else:
        names = (f"predicted_{measure}_ms", f"{measure}_ms")
    above, below = (row.get(name) for name in names)
    if not above or not below or (measure == "ttft" and waits(row)):
        return None
    return float(above) / float(below)


def ratios(rows: Sequence[Mapping[str, Any]], measure: str) -> list[float]:
    """Of all rows that have one."""
    return [found for row in rows if (found := ratio(row, measure)) is not None]


def memory_ratios(rows: Sequence[Mapping[str, Any]]) -> list[float]:
    """Weights and cache over the measured peak, where that was published."""
    return [
        float(row["predicted_memory_gb"]) / float(row["memory_gb"])
        for row in rows
        if row.get("predicted_memory_gb") and row.get("memory_gb")
    ]


def lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What all rows come to, a line for each measure."""
    for measure, words in MEASURES.items():
        found = Ratios.of(ratios(rows, measure))
        if found is not None:
            yield f"{words}: {found}"
    found = Ratios.of(memory_ratios(rows))
    if found is not None:
        yield f"weights and cache over the peak of memory: {found}"
