"""The numbers of a contest file as arrays, and whether they make sense.

The file repeats few different rows very often (one cost matrix belongs to hundreds of edges), so
a row is kept once, and questions are asked once per distinct row. All faults are told at once, the
first of them in words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from autoshard.solve.problem import Floats, Integers, ProblemError
from autoshard.units import counted

FORBIDDEN = 1e18
SHOWN = 20


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Many rows of numbers of which few differ: row i is `distinct[which[i]]`."""

    distinct: tuple[Floats, ...]
    which: Integers

    def __len__(self) -> int:
        return self.which.size

    def __getitem__(self, position: int) -> Floats:
        return self.distinct[self.which[position]]

    def sizes(self) -> Integers:
        """How many numbers each row holds."""
        return self.of_distinct(lambda row: row.size, np.int64)

    def of_distinct(self, ask: Callable[[Floats], Any], kind: type) -> np.ndarray:
        """One answer per row, asked once per distinct row."""
        answers = np.array([ask(row) for row in self.distinct], dtype=kind)
        return answers[self.which]

    def pick(self, columns: Integers) -> Floats:
        """The number at `columns[i]` of each row i."""
        if not len(self):
            return np.zeros(0)
        starts = np.cumsum([0] + [row.size for row in self.distinct])
        return np.concatenate(self.distinct)[starts[self.which] + columns]


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """The numbers of a contest file of n nodes and m edges, as they stand in it.

    `costs` and `usages` have n rows with one number per choice, `intervals` is [n, 2] (start and
    stop of each node's usage), `ends` is [m, 2] (the nodes of each edge), `pairs` has m rows: the
    cost matrices, row by row. `limit` is the usage limit, None where there is none.
    """

    name: str
    costs: Rows
    usages: Rows
    intervals: Integers
    ends: Integers
    pairs: Rows
    limit: float | None


@dataclass(slots=True)
class Faults:
    """Complaints about one file: the first of them in words, and how many there are."""

    source: str
    lines: list[str] = field(default_factory=list)
    count: int = 0

    def add(self, line: str) -> None:
        self.add_all([line], str)

    def add_all(self, offenders: Iterable[Any], describe: Callable[[Any], str]) -> None:
        """Complain of every offender; only those that are shown are described."""
        for offender in offenders:
            if len(self.lines) < SHOWN:
                self.lines.append(describe(offender))
            self.count += 1

    def listed(self, headline: str) -> str:
        """The message: a headline, the faults shown, and how many there are besides."""
        more = self.count - len(self.lines)
        return (
            f"{headline}:\n  - "
            + "\n  - ".join(self.lines)
            + (f"\n  and {more:,} more" if more else "")
        )

    def complain(self) -> None:
        """Raise ProblemError if there is anything to complain of."""
        if self.count:
            raise ProblemError(
                self.listed(f"{self.source} is not a choice problem in the contest's format")
            )


def check_values(tables: Tables, source: str) -> None:
    """Refuse numbers that contradict each other or have no meaning.

    Costs may be of any size and sign: at least 1e18, or infinity, forbids; NaN and minus infinity
    mean nothing. Usages are finite and not negative, intervals start at 0 or later and do not
    stop before they start, the limit is not negative.

    Raises:
      ProblemError: names every node and edge at fault, its values and the repair.
    """
    faults = Faults(source)
    sizes = tables.costs.sizes()
    _check_nodes(tables, sizes, faults)
    _check_edges(tables, sizes, faults)
    if tables.limit is not None and not tables.limit >= 0:
        faults.add(f"usage_limit is {tables.limit:g}; give 0 or more, or leave it out for no limit")
    faults.complain()


def _check_nodes(tables: Tables, sizes: Integers, faults: Faults) -> None:
    costs, usages = tables.costs, tables.usages
    faults.add_all(
        np.flatnonzero(sizes == 0), lambda i: f"node {i} has no choices; give at least one cost"
    )
    faults.add_all(
        np.flatnonzero(sizes != usages.sizes()),
        lambda i: (
            f"node {i} has {counted(costs[i].size, 'cost')} but "
            f"{counted(usages[i].size, 'usage')}; give one of each "
            "per choice"
        ),
    )
    start, stop = tables.intervals.T
    faults.add_all(
        np.flatnonzero((start < 0) | (stop < start)),
        lambda i: (
            f"node {i} has the interval [{start[i]}, {stop[i]}); give 0 <= start <= stop (both "
            "0 for never)"
        ),
    )
    faults.add_all(
        np.flatnonzero(costs.of_distinct(_meaningless_cost, np.bool_)),
        lambda i: (
            f"node {i}: {_offending(costs[i], _bad_costs(costs[i]))}; give finite costs, or at "
            "least 1e18 to forbid a choice"
        ),
    )
    faults.add_all(
        np.flatnonzero(usages.of_distinct(lambda row: bool(_bad_usages(row).any()), np.bool_)),
        lambda i: (
            f"node {i}: {_offending(usages[i], _bad_usages(usages[i]), 'uses')}; give finite "
            "usages of 0 or more"
        ),
    )


def _check_edges(tables: Tables, sizes: Integers, faults: Faults) -> None:
    ends, pairs, count = tables.ends, tables.pairs, sizes.size
    there = ((ends >= 0) & (ends < count)).all(axis=1)
    known = f"nodes 0 to {count - 1}" if count else "no nodes"
    faults.add_all(
        np.flatnonzero(~there),
        lambda e: f"{_edge(tables, e)} joins a node that is not there; the file has {known}",
    )
    of_ends = np.zeros_like(ends)
    of_ends[there] = sizes[ends[there]]
    rows, columns = of_ends.T
    faults.add_all(
        np.flatnonzero(there & (pairs.sizes() != rows * columns)),
        lambda e: (
            f"{_edge(tables, e)}: {counted(pairs[e].size, 'cost')} for {rows[e]} x {columns[e]} "
            "choices; "
            f"give {rows[e] * columns[e]}, row by row"
        ),
    )
    faults.add_all(
        np.flatnonzero(pairs.of_distinct(_meaningless_cost, np.bool_)),
        lambda e: (
            f"{_edge(tables, e)}: {_offending(pairs[e], _bad_costs(pairs[e]), 'costs', 'entry')}; "
            "give finite costs, or at least 1e18 to forbid a pair"
        ),
    )


def _edge(tables: Tables, position: int) -> str:
    u, v = tables.ends[position]
    return f"edge {u}-{v} (edges.nodes[{position}])"


def _bad_costs(row: Floats) -> np.ndarray:
    return ~(row > -np.inf)


def _meaningless_cost(row: Floats) -> bool:
    return bool(_bad_costs(row).any())


def _bad_usages(row: Floats) -> np.ndarray:
    return ~((row >= 0) & (row < np.inf))


def _offending(row: Floats, bad: np.ndarray, verb: str = "costs", kind: str = "choice") -> str:
    places = np.flatnonzero(bad)
    shown = ", ".join(f"{kind} {i} {verb} {row[i]:g}" for i in places[:3])
    return shown + (f" and {places.size - 3} more" if places.size > 3 else "")
