"""Small matrices of pair costs, and the questions presolve asks of them.

Tables are shared by many edges, so every answer is remembered per table. Four questions:

* `compress`: keep the rows and columns in use, and merge the equal ones;
* `support`: which pairs are finite (None when all are);
* `regrets`: R[g, h] = max over columns j of T[g, j] - T[h, j], the most one can lose by taking row
  g where row h was taken (columns that row h forbids do not count);
* `separate`: f and k with T[g, h] = f[g] + k[h], if there are such.
"""

from __future__ import annotations

import numpy as np

from autoshard.solve.problem import Floats, Integers

Key = tuple[int, ...]


class TableMemo:
    """Answers about tables, remembered by identity (the memo keeps the tables alive)."""

    def __init__(self) -> None:
        self._alive: dict[int, Floats] = {}
        self._scaled: dict[tuple[int, float], Floats] = {}
        self._compressed: dict[tuple[int, bytes, bytes], tuple[Floats, Integers, Integers]] = {}
        self._support: dict[int, np.ndarray | None] = {}
        self._regrets: dict[tuple[int, bool], Floats] = {}
        self._separate: dict[int, tuple[Floats, Floats] | None] = {}

    def _key(self, table: Floats) -> int:
        key = id(table)
        self._alive[key] = table
        return key

    def scaled(self, table: Floats, weight: float) -> Floats:
        """weight * table, one object per (table, weight)."""
        if weight == 1.0:
            return table
        key = (self._key(table), weight)
        found = self._scaled.get(key)
        if found is None:
            found = self._scaled[key] = table * weight
        return found

    def support(self, table: Floats) -> np.ndarray | None:
        """Boolean matrix of the allowed pairs, or None when every pair is allowed."""
        key = self._key(table)
        if key not in self._support:
            finite = table < np.inf
            self._support[key] = None if finite.all() else finite
        return self._support[key]

    def compress(
        self, table: Floats, used_rows: np.ndarray, used_columns: np.ndarray
    ) -> tuple[Floats, Integers, Integers]:
        """The table over used, distinct rows and columns; old row -> new row; old -> new column.

        `used_rows` and `used_columns` are masks; unused entries map to -1.
        """
        key = (self._key(table), used_rows.tobytes(), used_columns.tobytes())
        found = self._compressed.get(key)
        if found is None:
            small = table
            if not used_rows.all():
                small = small[used_rows]
            if not used_columns.all():
                small = small[:, used_columns]
            rows, first_rows = distinct_rows(small)
            columns, first_columns = distinct_rows(small.T)
            if len(first_rows) < small.shape[0] or len(first_columns) < small.shape[1]:
                small = small[np.ix_(first_rows, first_columns)]
            if small is not table:
                small = np.ascontiguousarray(small)
                self._alive[id(small)] = small
            row_map = np.full(table.shape[0], -1, dtype=np.int64)
            row_map[used_rows] = rows
            column_map = np.full(table.shape[1], -1, dtype=np.int64)
            column_map[used_columns] = columns
            found = self._compressed[key] = (small, row_map, column_map)
        return found

    def regrets(self, table: Floats, by_columns: bool, judges: Integers | None = None) -> Floats:
        """R[g, h] = max_j T[g, j] - T[h, j] over the j that h allows; +inf where g forbids one.

        With `by_columns`, the same for the columns of the table. With `judges`, only the rows
        R[judges] (and nothing is remembered).
        """
        rows = table.T if by_columns else table
        finite = self.support(table) is None
        if judges is not None:
            found = np.empty((judges.size, rows.shape[0]))
            for position, g in enumerate(judges.tolist()):
                found[position] = _largest_excess(rows, rows[g], finite)
            return found
        key = (self._key(table), by_columns)
        found = self._regrets.get(key)
        if found is None:
            found = np.empty((rows.shape[0], rows.shape[0]))
            for g in range(rows.shape[0]):
                found[g] = _largest_excess(rows, rows[g], finite)
            self._regrets[key] = found
        return found

    def separate(self, table: Floats) -> tuple[Floats, Floats] | None:
        """(f, k) with table = f[:, None] + k[None, :], or None when there are none."""
        key = self._key(table)
        if key not in self._separate:
            answer = None
            if self.support(table) is None:
                by_row = table[:, 0].copy()
                by_column = table[0] - table[0, 0]
                error = np.abs(table - by_row[:, None] - by_column).max()
                if error <= 1e-13 * np.abs(table).max():
                    answer = (by_row, by_column)
            self._separate[key] = answer
        return self._separate[key]


def _largest_excess(rows: Floats, judge: Floats, finite: bool) -> Floats:
    """For each row h, max_j judge[j] - row_h[j] over the j that row h allows."""
    if finite:
        return (judge - rows).max(axis=1)
    # inf - inf, where both forbid j, is nan, which fmax passes over: such a j does not count.
    with np.errstate(invalid="ignore"):
        excess = np.fmax.reduce(judge - rows, axis=1)
    return np.where(np.isnan(excess), -np.inf, excess)


def distinct_rows(matrix: Floats) -> tuple[Integers, list[int]]:
    """For each row the number of its class, and the first row of each class."""
    if matrix.shape[0] == 1:
        return np.zeros(1, dtype=np.int64), [0]
    seen: dict[bytes, int] = {}
    first: list[int] = []
    labels = np.empty(matrix.shape[0], dtype=np.int64)
    data = np.ascontiguousarray(matrix + 0.0)  # -0.0 and 0.0 are equal but not the same bytes
    width = data.shape[1] * data.itemsize
    raw = data.tobytes()
    for i in range(matrix.shape[0]):
        row = raw[i * width : (i + 1) * width]
        label = seen.get(row)
        if label is None:
            label = seen[row] = len(first)
            first.append(i)
        labels[i] = label
    return labels, first
