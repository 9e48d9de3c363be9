"""All rows of a sweep, ranked, with what they cost; as a table, as JSON, as CSV, as a DataFrame."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from autoshard.files import csv_text
from autoshard.study.whatif.prices import Prices
from autoshard.study.whatif.row import SCHEMA_VERSION, Row

if TYPE_CHECKING:
    from pandas import DataFrame

HOUR = 3600.0
DAY = 24 * HOUR


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The rows of a sweep, in the order of the question.

    Attributes:
      program: its name.
      rows: those that were answered.
      objective: what rows are ranked by, one of `OBJECTIVES`.
      prices: what chips cost.
      asked: how many rows the sweep has.
      interrupted: whether it was ended before all of them were answered.
      train_tokens: of a whole training run, or None.
      latency: seconds that a step may take at most, or None.
      ended: what ended it before, in a sentence.
    """

    program: str
    rows: tuple[Row, ...]
    objective: str
    prices: Prices = field(default_factory=Prices)
    asked: int = 0
    interrupted: bool = False
    train_tokens: float | None = None
    latency: float | None = None
    ended: str = ""

    def days(self, row: Row) -> float | None:
        """Days of the training run, without a pause; None where its tokens are not known."""
        if self.train_tokens is None or not row.tokens_per_second:
            return None
        return self.train_tokens / row.tokens_per_second / DAY

    def run_cost(self, row: Row) -> float | None:
        """What the training run costs."""
        days, hourly = self.days(row), self.cost_per_hour(row)
        return None if days is None or hourly is None else days * DAY / HOUR * hourly

    def cost_per_hour(self, row: Row) -> float | None:
        """What the row's machine costs an hour."""
        price = self.prices.of(row.chip).chip_hour
        return None if price is None else price * row.chips

    def cost_per_million_tokens(self, row: Row) -> float | None:
        """What a million tokens cost."""
        hourly = self.cost_per_hour(row)
        if hourly is None or not row.tokens_per_second:
            return None
        return hourly / HOUR / row.tokens_per_second * 1e6

    def joules_per_token(self, row: Row) -> float | None:
        """Energy of a token, of the chips at the watts that the prices give them."""
        watts = self.prices.of(row.chip).watts
        if watts is None or not row.tokens_per_second_per_chip:
            return None
        return watts / row.tokens_per_second_per_chip

    def ranked(self) -> tuple[Row, ...]:
        """The rows that fit and are no slower than `latency`, the best by the objective first."""
        score = OBJECTIVES[self.objective]
        most = float("inf") if self.latency is None else self.latency
        quick = [row for row in self.rows if row.step_seconds is not None]
        quick = [row for row in quick if (row.step_seconds or 0.0) <= most]
        return tuple(sorted(quick, key=lambda row: score(self, row)))

    @property
    def best(self) -> Row | None:
        """The best row by the objective; None where nothing fits."""
        return next(iter(self.ranked()), None)

    def records(self) -> list[dict[str, Any]]:
        """One flat record per row: fields, sizes by name, costs, and whether it is efficient."""
        from autoshard.study.whatif.answers import efficient

        front = efficient(self)
        found = []
        for number, row in enumerate(self.rows):
            record = row.to_json()
            sizes, saved = record.pop("sizes"), record.pop("saved_seconds")
            found.append(
                {
                    **sizes,
                    **record,
                    **{f"saved_by_{name.replace(' ', '_')}": s for name, s in saved.items()},
                    "cost_per_hour": self.cost_per_hour(row),
                    "cost_per_million_tokens": self.cost_per_million_tokens(row),
                    "joules_per_token": self.joules_per_token(row),
                    "train_days": self.days(row),
                    "train_cost": self.run_cost(row),
                    "pareto": number in front,
                }
            )
        return found

    def frame(self) -> DataFrame:
        """A `pandas.DataFrame` with one line per row: see `records`."""
        from pandas import DataFrame

        return DataFrame.from_records(self.records())

    def to_csv(self) -> str:
        """The records as CSV."""
        return csv_text(self.records())

    def to_json(self) -> dict[str, Any]:
        """Plain data with a schema version: the records, and the answers drawn from them."""
        from autoshard.study.whatif.answers import answers

        return {
            "schema_version": SCHEMA_VERSION,
            "program": self.program,
            "objective": self.objective,
            "currency": self.prices.currency,
            "asked": self.asked,
            "interrupted": self.interrupted,
            "train_tokens": self.train_tokens,
            "latency_seconds": self.latency,
            "rows": self.records(),
            "answers": answers(self),
        }

    def __str__(self) -> str:
        from autoshard.study.whatif.show import format_sweep

        return format_sweep(self)

    def save(self, path: str) -> None:
        """Write the JSON to a file."""
        from autoshard.files import write_whole

        write_whole(path, (json.dumps(self.to_json(), indent=1) + "\n").encode())


def _known(number: float | None) -> float:
    return float("inf") if number is None else number


OBJECTIVES: dict[str, Callable[[WhatIf, Row], float]] = {
    "step": lambda sweep, row: _known(row.step_seconds),
    "tokens-per-second": lambda sweep, row: -(row.tokens_per_second or 0.0),
    "tokens-per-dollar": lambda sweep, row: _known(sweep.cost_per_million_tokens(row)),
    "energy": lambda sweep, row: _known(sweep.joules_per_token(row)),
}
"""Objectives and their scores; less is better."""
