"""What follows from the rows: who is efficient, what fits, and where two choices are even.

Only rows of the same work are compared: all sizes but `batch` must be equal. Where chips have
prices, the cost of a token is compared across chips; where they have none, chip-seconds of one
token are, among chips of one kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from autoshard.study.whatif.row import Row
from autoshard.study.whatif.table import WhatIf

HOUR = 3600.0
THROUGHPUT = "batch"
"""The size that changes how much of the work is done at once, and not what the work is."""


def work_of(row: Row) -> tuple[tuple[str, Any], ...]:
    """What must be equal for two rows to be compared."""
    return tuple((name, value) for name, value in row.sizes.items() if name != THROUGHPUT)


def efficient(sweep: WhatIf) -> frozenset[int]:
    """Numbers of the rows that no other one beats: on the Pareto front of time and cost.

    Time is that of a token (of a step, where tokens are not known, among equal batches); the cost
    is the money, or the chip-seconds, of the same.
    """
    groups: dict[object, list[tuple[int, float, float]]] = {}
    for number, row in enumerate(sweep.rows):
        if row.step_seconds is None:
            continue
        units = row.tokens or 1
        seconds = row.step_seconds / units
        hourly = sweep.cost_per_hour(row)
        key = [work_of(row), "" if hourly is not None else row.chip]
        if row.tokens is None:
            key.append(row.sizes.get(THROUGHPUT))
        cost = seconds * (row.chips if hourly is None else hourly / HOUR)
        groups.setdefault(tuple(key), []).append((number, seconds, cost))
    return frozenset(number for points in groups.values() for number in _front(points))


def _front(points: list[tuple[int, float, float]]) -> list[int]:
    """Those for which no other point is as good in both and better in one."""
    found, cheapest = [], float("inf")
    at = (float("inf"), float("inf"))
    for number, seconds, cost in sorted(points, key=lambda point: (point[1], point[2])):
        if cost < cheapest or (seconds, cost) == at:
            found.append(number)
            cheapest, at = cost, (seconds, cost)
    return found


def smallest_clusters(sweep: WhatIf) -> list[dict[str, Any]]:
    """For every chip, work, batch and limit: the fewest chips on which there is a plan."""

    def rest(row: Row) -> tuple[Any, ...]:
        return row.chip, tuple(row.sizes.items()), row.limit_bytes

    found = []
    for rows in _grouped(sweep.rows, rest):
        fits = [row for row in rows if row.fits]
        least = min(fits, key=lambda row: row.chips, default=None)
        found.append(
            {
                "chip": rows[0].chip,
                "sizes": dict(rows[0].sizes),
                "limit_bytes": rows[0].limit_bytes,
                "chips": None if least is None else least.chips,
                "machine": None if least is None else least.machine,
                "most_tried": max(row.chips for row in rows),
            }
        )
    return found


def largest_sizes(sweep: WhatIf) -> list[dict[str, Any]]:
    """For every size that is swept over numbers: the largest value that fits, all else equal."""
    names = [
        name
        for name in (sweep.rows[0].sizes if sweep.rows else ())
        if len({row.sizes[name] for row in sweep.rows}) > 1
        and all(isinstance(row.sizes[name], int | float) for row in sweep.rows)
    ]
    found = []
    for name in names:

        def rest(row: Row, name: str = name) -> tuple[Any, ...]:
            others = tuple((n, v) for n, v in row.sizes.items() if n != name)
            return row.machine, others, row.limit_bytes

        for rows in _grouped(sweep.rows, rest):
            fits: list[Any] = [row.sizes[name] for row in rows if row.fits]
            tried: list[Any] = [row.sizes[name] for row in rows]
            found.append(
                {
                    "size": name,
                    "machine": rows[0].machine,
                    "sizes": {n: v for n, v in rows[0].sizes.items() if n != name},
                    "limit_bytes": rows[0].limit_bytes,
                    "largest": max(fits, default=None),
                    "most_tried": max(tried),
                }
            )
    return found


def break_even(sweep: WhatIf) -> list[dict[str, Any]]:
    """For every work, what a chip-hour of each kind is worth, each kind at its best.

    `worth` is in chip-hours of the first kind that is named: at that ratio of prices both cost the
    same for a token. `chip_hour` is the price at which a kind is even with the cheapest one.
    """
    found = []
    known = [row for row in sweep.rows if row.tokens_per_second_per_chip]
    for rows in _grouped(known, work_of):
        best: dict[str, Row] = {}
        for row in rows:
            if row.chip not in best or _rate(row) > _rate(best[row.chip]):
                best[row.chip] = row
        unit = next(iter(best.values()))
        priced = [row for row in best.values() if sweep.prices.of(row.chip).chip_hour]
        cheapest = min(priced, key=lambda row: _hour(sweep, row) / _rate(row), default=None)
        for row in best.values():
            even = None
            if cheapest is not None:
                even = _hour(sweep, cheapest) * _rate(row) / _rate(cheapest)
            found.append(
                {
                    "work": dict(work_of(row)),
                    "chip": row.chip,
                    "machine": row.machine,
                    "batch": row.sizes.get(THROUGHPUT),
                    "tokens_per_second_per_chip": _rate(row),
                    "worth": _rate(row) / _rate(unit),
                    "in_hours_of": unit.chip,
                    "chip_hour": even,
                }
            )
    return found


def answers(sweep: WhatIf) -> dict[str, Any]:
    """All of these, as plain data."""
    return {
        "best": None if sweep.best is None else str(sweep.best),
        "smallest_clusters": smallest_clusters(sweep),
        "largest_sizes": largest_sizes(sweep),
        "break_even": break_even(sweep),
    }


def _rate(row: Row) -> float:
    return row.tokens_per_second_per_chip or 0.0


def _hour(sweep: WhatIf, row: Row) -> float:
    return sweep.prices.of(row.chip).chip_hour or 0.0


def _grouped(rows: Iterable[Row], key: Callable[[Row], object]) -> list[list[Row]]:
    groups: dict[object, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return list(groups.values())
