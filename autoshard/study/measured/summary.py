"""Predictions held to measurements: errors, shares, and the order within a model and chip.

The error of a run is `predicted / measured - 1`. The order is Spearman's rank correlation between
predicted and measured seconds, over configurations of one model on one chip, three or more. Runs of
one configuration, as of several versions of a framework, have one prediction, and count once with
the median of what was measured.

Such runs also say what a measurement is worth: their spread is what lies between the fastest and
the slowest, over their median. Two configurations are apart where their measured seconds differ by
more than the spread of their group, or of all groups in the median where that is more or the group
has none; of those that are apart it is counted how many are predicted in their order.
"""

from __future__ import annotations

import itertools
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autoshard.study.measured.unpublished import UNPUBLISHED
from autoshard.units import counted, format_percent

WITHIN, CLOSE = 0.25, 0.1
LATE = "it took longer than"
"""What a status says of a run that ran out of time."""
UNASKED = "not asked"
"""The status of a run that was not asked before an interrupt."""
LEAST = 3
"""Configurations of a group that have an order."""


@dataclass(frozen=True, slots=True)
class Held:
    """Runs held to their measurements.

    Attributes:
      runs: how many.
      median: of the size of the error.
      bias: median of predicted over measured.
      within: share of the runs whose error is at most 25 %.
      close: share of those whose error is at most 10 %.
    """

    runs: int
    median: float
    bias: float
    within: float
    close: float

    def __str__(self) -> str:
        if not self.runs:
            return "no runs"
        return (
            f"{counted(self.runs, 'run')}, median error {format_percent(self.median)}, predicted "
            f"/ measured {self.bias:.2f}, within 25 %: {format_percent(self.within, '.0f')}"
        )


def held(rows: Iterable[Mapping[str, Any]], *, of: str = "seconds") -> Held:
    """Errors of rows that have both figures, `measured_` and `predicted_` of something."""
    ratios = [
        float(row[f"predicted_{of}"]) / float(row[f"measured_{of}"])
        for row in rows
        if row.get(f"predicted_{of}") and row.get(f"measured_{of}")
    ]
    if not ratios:
        return Held(0, 0.0, 0.0, 0.0, 0.0)
    errors = [abs(ratio - 1) for ratio in ratios]
    within, close = (sum(e <= most for e in errors) / len(errors) for most in (WITHIN, CLOSE))
    return Held(len(ratios), statistics.median(errors), statistics.median(ratios), within, close)


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


def configuration(row: Mapping[str, Any]) -> str:
    """What runs of one configuration have in common: mesh, precision, and their prediction."""
    precision = row.get("precision") or ""
    return f"{row['parallelism']} {precision} {float(row['predicted_seconds']):.6g}"


@dataclass(frozen=True, slots=True)
class Swap:
    """Two configurations that are predicted in the other order.

    Attributes:
      faster, slower: a run of each, as measured.
      measured, predicted: by what share of the faster one's seconds the slower one takes longer.
      spread: by what share runs of one configuration differ, of their group or in the median.
      published: whether the meshes of both are.
    """

    faster: str
    slower: str
    measured: float
    predicted: float
    spread: float
    published: bool


@dataclass(frozen=True, slots=True)
class Order:
    """Configurations of one model on one chip, and how far they are predicted in their order.

    Attributes:
      configurations: how many.
      correlation: of their ranks.
      apart: pairs that differ by more than runs of one configuration do.
      right: those of them that are predicted in their order.
      swaps: all pairs that are not.
    """

    configurations: int
    correlation: float
    apart: int
    right: int
    swaps: tuple[Swap, ...] = ()


def spreads(rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """The largest spread of each model on each chip that has a configuration with several runs."""
    found: dict[str, float] = {}
    for name, same in _configurations(rows).items():
        times = [[float(row["measured_seconds"]) for row in one] for one in same]
        some = [(max(one) - min(one)) / statistics.median(one) for one in times if len(one) > 1]
        if some:
            found[name] = max(some)
    return found


def orders(rows: Iterable[Mapping[str, Any]]) -> dict[str, Order]:
    """The order of each model on each chip that has enough configurations."""
    rows = list(rows)
    known = spreads(rows)
    usual = statistics.median(known.values()) if known else 0.0
    found = {}
    for name, same in _configurations(rows).items():
        if len(same) < LEAST:
            continue
        measured = [
            statistics.median(float(row["measured_seconds"]) for row in one) for one in same
        ]
        predicted = [float(one[0]["predicted_seconds"]) for one in same]
        spread = max(known.get(name, 0.0), usual)
        apart, right, swaps = 0, 0, []
        for i, j in itertools.combinations(range(len(same)), 2):
            fast, slow = (i, j) if measured[i] <= measured[j] else (j, i)
            swap = Swap(
                faster=same[fast][0].get("id", ""),
                slower=same[slow][0].get("id", ""),
                measured=measured[slow] / measured[fast] - 1,
                predicted=predicted[slow] / predicted[fast] - 1,
                spread=spread,
                published=not any(
                    UNPUBLISHED in same[one][0].get("status", "") for one in (fast, slow)
                ),
            )
            apart += swap.measured > spread
            right += swap.measured > spread and swap.predicted > 0
            if swap.measured > 0 and swap.predicted <= 0:
                swaps.append(swap)
        ranks = rank_correlation(measured, predicted)
        found[name] = Order(len(same), ranks, apart, right, tuple(swaps))
    return found


def _configurations(
    rows: Iterable[Mapping[str, Any]],
) -> dict[str, list[list[Mapping[str, Any]]]]:
    """Runs of each model on each chip, by their configurations."""
    both = [row for row in rows if row.get("predicted_seconds") and row.get("measured_seconds")]
    groups = grouped(both, lambda row: f"{row['model']} on {row['chip']}")
    return {name: list(grouped(some, configuration).values()) for name, some in groups.items()}


def beaten(rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Seconds of our own plan over those of the run's configuration, by id.

    Both as one compiler would run them (`own_seconds`).
    """
    return {
        row["id"]: float(row["ours_seconds"])
        / float(row.get("own_seconds") or row["predicted_seconds"])
        for row in rows
        if row.get("ours_seconds")
    }


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
    order = orders(rows).values()
    if order:
        median = statistics.median(one.correlation for one in order)
        good = sum(one.correlation >= 0.9 for one in order)
        lines.append(
            f"order:   rank correlation within a model and chip {median:.2f} in the median of "
            f"{len(order)}, at least 0.9 in {good}; of "
            f"{counted(sum(one.apart for one in order), 'pair')} "
            f"apart {sum(one.right for one in order)} in order"
        )
    ratios = list(beaten(priced).values())
    if ratios:
        faster = sum(ratio < 1 for ratio in ratios)
        tenth = sum(ratio <= 0.9 for ratio in ratios)
        lines.append(
            f"ours:    faster in {faster} of {len(ratios)}, by a tenth in {tenth}, "
            f"{statistics.median(ratios):.2f} of the run's own in the median"
        )
    for name, by in (("chip", lambda row: row["chip"]), ("mesh", kind_of)):
        for word, some in grouped(priced, by).items():
            lines.append(f"  {name} {word}: {held(some)}")
    lost = reasons(rows)
    lines.append(f"not priced: {sum(lost.values())} of {len(rows)}")
    lines += [f"  {count} x {reason}" for reason, count in lost.most_common()]
    return "\n".join(lines)
