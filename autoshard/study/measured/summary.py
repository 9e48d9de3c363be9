"""Predictions held to measurements: errors, shares, and the order within a model and chip.

The error of a run is `predicted / measured - 1`. The order is Spearman's rank correlation between
predicted and measured seconds, over runs of one model on one chip, three or more. By the order of
seconds a larger batch is always slower, so it is also given of seconds per token and chip.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

WITHIN = 0.25
LEAST = 3
"""Runs of a group that have an order."""


@dataclass(frozen=True, slots=True)
class Held:
    """Runs held to their measurements.

    Attributes:
      runs: how many.
      median: of the size of the error.
      bias: median of predicted over measured.
      within: share of the runs whose error is at most 25 %.
    """

    runs: int
    median: float
    bias: float
    within: float

    def __str__(self) -> str:
        if not self.runs:
            return "no runs"
        return (
            f"{self.runs} runs, median error {self.median:.1%}, predicted / measured "
            f"{self.bias:.2f}, within 25 %: {self.within:.0%}"
        )


def held(rows: Iterable[Mapping[str, Any]], *, of: str = "seconds") -> Held:
    """Errors of rows that have both figures, `measured_` and `predicted_` of something."""
    ratios = [
        float(row[f"predicted_{of}"]) / float(row[f"measured_{of}"])
        for row in rows
        if row.get(f"predicted_{of}") and row.get(f"measured_{of}")
    ]
    if not ratios:
        return Held(0, 0.0, 0.0, 0.0)
    errors = [abs(ratio - 1) for ratio in ratios]
    within = sum(error <= WITHIN for error in errors) / len(errors)
    return Held(len(ratios), statistics.median(errors), statistics.median(ratios), within)


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Spearman's, with mean ranks for equal values; 0 where either is constant."""
    left, right = _ranks(one), _ranks(other)
    if len(set(left)) == 1 or len(set(right)) == 1:
        return 0.0
    return statistics.correlation(left, right)


def _ranks(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    return [ordered.index(value) + (ordered.count(value) + 1) / 2 for value in values]


def grouped(
    rows: Iterable[Mapping[str, Any]], by: Callable[[Mapping[str, Any]], str]
) -> dict[str, list[Mapping[str, Any]]]:
    """Rows by a word of each, in the order of the words."""
    found: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        found[by(row)].append(row)
    return dict(sorted(found.items()))


def correlations(rows: Iterable[Mapping[str, Any]]) -> dict[str, tuple[int, float]]:
    """Runs and rank correlation of each model on each chip that has enough."""
    found = {}
    both = [row for row in rows if row.get("predicted_seconds") and row.get("measured_seconds")]
    for name, some in grouped(both, lambda row: f"{row['model']} on {row['chip']}").items():
        if len(some) >= LEAST:
            pairs = [
                [float(row[f"{which}_seconds"]) for row in some]
                for which in ("measured", "predicted")
            ]
            found[name] = len(some), rank_correlation(*pairs)
    return found


def reasons(rows: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """Why runs are not priced, and how many each keeps."""
    return Counter(
        row["status"].removeprefix("unreachable: ")
        for row in rows
        if not row.get("predicted_seconds")
    )


def kind_of(row: Mapping[str, Any]) -> str:
    """The kind of parallelism of a run, by the axes of its mesh."""
    axes = [part.split("=")[0] for part in (row.get("parallelism") or "").split(",") if part]
    return " x ".join(axes) or "none"


def summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """The figures of a table of answers, as text."""
    priced = [row for row in rows if row.get("predicted_seconds") and row.get("measured_seconds")]
    lines = [f"seconds: {held(priced)}", f"memory:  {held(rows, of='gib')}"]
    order = correlations(rows)
    if order:
        median = statistics.median(value for _, value in order.values())
        good = sum(value >= 0.9 for _, value in order.values())
        lines.append(
            f"order:   rank correlation within a model and chip {median:.2f} in the median of "
            f"{len(order)}, at least 0.9 in {good}"
        )
    beaten = [
        float(row["ours_seconds"]) / float(row["predicted_seconds"])
        for row in priced
        if row.get("ours_seconds")
    ]
    if beaten:
        faster = sum(ratio < 1 for ratio in beaten)
        tenth = sum(ratio <= 0.9 for ratio in beaten)
        lines.append(
            f"ours:    faster in {faster} of {len(beaten)}, by a tenth in {tenth}, "
            f"{statistics.median(beaten):.2f} of the run's own in the median"
        )
    for name, by in (("chip", lambda row: row["chip"]), ("mesh", kind_of)):
        for word, some in grouped(priced, by).items():
            lines.append(f"  {name} {word}: {held(some)}")
    lost = reasons(rows)
    lines.append(f"not priced: {sum(lost.values())} of {len(rows)}")
    lines += [f"  {count} x {reason}" for reason, count in lost.most_common()]
    return "\n".join(lines)
