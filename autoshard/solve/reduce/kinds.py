"""Kinds of links: a table of pair costs with the projections of both ends, each kind known once.

Links that share table and projections are of one kind, and whatever holds for one holds for all:

* its *shrunk* form: unused rows and columns gone, equal ones merged;
* *support*: choices of one end that no choice of the other can accompany (they cost +inf);
* *separable*: T[g, h] = f[g] + k[h], so that the link is costs of both ends and can go;
* *determined*: every choice of one end leaves the other a single choice.

Kinds also have a small algebra: seen through maps of their ends, flipped, scaled, and summed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from autoshard.solve.allowed import Allowed
from autoshard.solve.problem import Edge, Floats, Integers
from autoshard.solve.reduce.interned import Interned, distinct
from autoshard.solve.reduce.tables import equal_rows, separate

# A summed table may hold this many entries, or `GROWTH` times what it replaces.
TABLE_ENTRIES = 4096
GROWTH = 2


@dataclass(frozen=True, slots=True, eq=False)
class Fact:
    """What a kind says of its ends.

    `kind` is its shrunk form; `to_u` and `to_v` are costs that the ends get (None: none; +inf where
    no partner is left), and `spent` says that they are all that the link amounts to. `v_of_u` is
    the map from the choices of u to the one choice of v that goes along, or -1; so is `u_of_v`.
    """

    kind: int
    to_u: Floats | None = None
    to_v: Floats | None = None
    spent: bool = False
    v_of_u: int = -1
    u_of_v: int = -1


class UsedRows(NamedTuple):
    """The rows that edges use of a table, written out, and where each row went."""

    written: Floats
    place: Integers


def _used_rows(edges: Sequence[Edge]) -> dict[int, UsedRows]:
    """Of tables that only say what is allowed, by identity."""
    marks: dict[int, tuple[Allowed, np.ndarray]] = {}
    for edge in edges:
        if isinstance(edge.costs, Allowed):
            if id(edge.costs) not in marks:
                marks[id(edge.costs)] = edge.costs, np.zeros(edge.costs.shape[0], dtype=bool)
            marks[id(edge.costs)][1][edge.left] = True
    return {
        key: UsedRows(table.rows(np.flatnonzero(mark)), np.cumsum(mark) - 1)
        for key, (table, mark) in marks.items()
    }


class Kinds:
    """All kinds met so far, by number: `table`, `left` and `right` are numbers too."""

    def __init__(self, maps: Interned) -> None:
        self.maps = maps
        self.tables: list[Floats] = []
        self.digests: list[bytes] = []  # of the tables and their shapes
        self.table: list[int] = []
        self.left: list[int] = []
        self.right: list[int] = []
        self.facts: list[Fact | None] = []
        self._numbers: dict[tuple[int, int, int], int] = {}
        self._tables: dict[bytes, int] = {}
        self._results: dict[str, dict[tuple[int, ...], int]] = {}
        self._diagonals: dict[int, Floats] = {}
        self._support: dict[int, np.ndarray | None] = {}
        self._parts: dict[int, tuple[Floats, Floats] | None] = {}
        self._masks: dict[tuple[int, int], bytes] = {}
        self._distinct: set[int] = set()  # tables whose rows differ, and so do their columns
        self._shrunk: dict[tuple[int, bytes, bytes], tuple[int, Integers, Integers]] = {}

    def add(self, table: int, left: int, right: int) -> int:
        """The number of a kind."""
        key = (table, left, right)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.table)
            self.table.append(table)
            self.left.append(left)
            self.right.append(right)
            self.facts.append(None)
        return number

    def add_table(self, table: Floats) -> int:
        """The number of a table; equal tables have one number."""
        table = np.ascontiguousarray(table)
        hashed = hashlib.blake2b(table.tobytes(), digest_size=16)
        hashed.update(str(table.shape).encode())
        key = hashed.digest()
        number = self._tables.get(key)
        if number is None:
            number = self._tables[key] = len(self.tables)
            self.tables.append(table)
            self.digests.append(key)
        return number

    def of_edges(self, edges: tuple[Edge, ...]) -> Integers:
        """The kinds of the edges of a problem, weights included."""
        used = _used_rows(edges)
        right = self.maps.add_all([edge.right for edge in edges])
        seen: dict[int, int] = {}
        tables, sides = [], []
        for edge in edges:
            key, rows = id(edge.costs), used.get(id(edge.costs))
            if key not in seen:
                written = edge.table if rows is None else rows.written
                seen[key] = self.add_table(written)
            tables.append(seen[key])
            sides.append(edge.left if rows is None else rows.place[edge.left])
        left = self.maps.add_all(sides)
        rows, place = distinct(np.array(tables, dtype=np.int64), left, right)
        kinds = np.array([self.add(*row) for row in rows], dtype=np.int64)[place]
        weights = np.array([edge.weight for edge in edges])
        heavy = np.flatnonzero(weights != 1.0)
        kinds[heavy] = self.scaled(kinds[heavy], weights[heavy])
        return kinds

    def left_side(self, kind: int) -> Integers:
        """The row of every choice of u."""
        return self.maps.items[self.left[kind]]

    def right_side(self, kind: int) -> Integers:
        """The column of every choice of v."""
        return self.maps.items[self.right[kind]]

    def costs(self, kind: int) -> Floats:
        """The table of a kind."""
        return self.tables[self.table[kind]]

    def parts(self, kinds: Integers) -> tuple[Integers, Integers, Integers]:
        """The numbers of table, left and right of many kinds."""
        used, place = np.unique(kinds, return_inverse=True)
        rows = [(self.table[k], self.left[k], self.right[k]) for k in used.tolist()]
        table, left, right = np.array(rows, dtype=np.int64).reshape(-1, 3).T
        return table[place], left[place], right[place]

    # -- the algebra of kinds -----------------------------------------------------------------

    def moved(self, kinds: Integers, left: Integers, right: Integers) -> Integers:
        """The kinds seen through maps of u and of v (-1: as they are)."""
        return self._each(self._moved, kinds, left, right)

    def _moved(self, kind: int, of_u: int, of_v: int) -> int:
        left, right = self.left[kind], self.right[kind]
        if of_u >= 0:
            left = self.maps.composed(left, of_u, self.maps)
        if of_v >= 0:
            right = self.maps.composed(right, of_v, self.maps)
        return self.add(self.table[kind], left, right)

    def flipped(self, kinds: Integers) -> Integers:
        """The kinds with u and v exchanged."""
        return self._each(self._flipped, kinds)

    def _flipped(self, kind: int) -> int:
        table = self.add_table(self.costs(kind).T)
        return self.add(table, self.right[kind], self.left[kind])

    def scaled(self, kinds: Integers, weights: Floats) -> Integers:
        """The kinds with their costs multiplied."""
        amounts, place = np.unique(weights, return_inverse=True)
        rows, where = distinct(kinds, place)
        found = []
        for kind, weight in rows:
            table = self.add_table(self.costs(kind) * amounts[weight])
            found.append(self.add(table, self.left[kind], self.right[kind]))
        return np.array(found, dtype=np.int64)[where]

    def summed(self, first: Integers, second: Integers) -> Integers:
        """One kind for each two between the same ends; -1 where its table would be too large."""
        return self._each(self._summed, first, second)

    def _summed(self, first: int, second: int) -> int:
        left, right = self.left[first], self.right[first]
        if left == self.left[second] and right == self.right[second]:
            # Rows and columns beyond the projections, which no choice takes, may be more in one.
            one, two = self.costs(first), self.costs(second)
            rows, columns = np.minimum(one.shape, two.shape)
            table = one[:rows, :columns] + two[:rows, :columns]
            return self.add(self.add_table(table), left, right)
        first, second = self._shrink(first), self._shrink(second)
        one, two = self.costs(first), self.costs(second)
        key = self.left_side(first) * two.shape[0] + self.left_side(second)
        groups_u, left = np.unique(key, return_inverse=True)
        key = self.right_side(first) * two.shape[1] + self.right_side(second)
        groups_v, right = np.unique(key, return_inverse=True)
        entries = groups_u.size * groups_v.size
        if entries > max(TABLE_ENTRIES, GROWTH * (one.size + two.size)):
            return -1
        rows_one, rows_two = np.divmod(groups_u, two.shape[0])
        columns_one, columns_two = np.divmod(groups_v, two.shape[1])
        table = one[np.ix_(rows_one, columns_one)] + two[np.ix_(rows_two, columns_two)]
        return self.add(self.add_table(table), self.maps.add(left), self.maps.add(right))

    def _each(self, operation: Callable[..., int], *columns: Integers) -> Integers:
        """The operation on every row of the columns, done once per distinct row ever."""
        rows, place = distinct(*columns)
        known = self._results.setdefault(operation.__name__, {})
        found = np.empty(len(rows), dtype=np.int64)
        for position, row in enumerate(rows):
            number = known.get(row)
            if number is None:
                number = known[row] = operation(*row)
            found[position] = number
        return found[place]

    def diagonal(self, kind: int) -> Floats:
        """What the choices of a node cost when it is both ends of a link."""
        found = self._diagonals.get(kind)
        if found is None:
            table, left, right = self.costs(kind), self.left_side(kind), self.right_side(kind)
            found = self._diagonals[kind] = table[left, right]
        return found

    # -- what a kind says ---------------------------------------------------------------------

    def examine(self, kind: int) -> Fact:
        """What a kind says of its ends; found once."""
        fact = self.facts[kind]
        if fact is None:
            fact = self.facts[kind] = self._examine(kind)
        return fact

    def _examine(self, kind: int) -> Fact:
        kind = self._shrink(kind)
        number = self.table[kind]
        left, right = self.left_side(kind), self.right_side(kind)
        support = self._support_of(number)
        if support is None:
            parts = self._parts_of(number)
            if parts is None:
                return Fact(kind)
            return Fact(kind, parts[0][left], parts[1][right], spent=True)
        rows, columns = np.asarray(support.any(axis=1)), np.asarray(support.any(axis=0))
        if not (rows.all() and columns.all()):
            to_u = np.where(rows[left], 0.0, np.inf)
            to_v = np.where(columns[right], 0.0, np.inf)
            return Fact(kind, to_u, to_v)
        return Fact(
            kind,
            v_of_u=self._determined(support, left, right),
            u_of_v=self._determined(support.T, right, left),
        )

    def _determined(self, support: np.ndarray, leader: Integers, follower: Integers) -> int:
        """The map from the leader's choices to the follower's only ones, or -1."""
        members = np.bincount(follower, minlength=support.shape[1])
        if not (support @ members == 1).all():
            return -1
        choice_of_group = np.empty(support.shape[1], dtype=np.int64)
        choice_of_group[follower] = np.arange(follower.size)
        return self.maps.add(choice_of_group[support.argmax(axis=1)][leader])

    def _support_of(self, number: int) -> np.ndarray | None:
        """Boolean matrix of the allowed pairs of a table, or None when every pair is allowed."""
        if number not in self._support:
            finite = self.tables[number] < np.inf
            self._support[number] = None if finite.all() else finite
        return self._support[number]

    def _parts_of(self, number: int) -> tuple[Floats, Floats] | None:
        """(f, k) with table = f[:, None] + k[None, :], or None when there are none."""
        if number not in self._parts:
            self._parts[number] = separate(self.tables[number])
        return self._parts[number]

    def _shrink(self, kind: int) -> int:
        """The kind over used and distinct rows and columns only."""
        number, left, right = self.table[kind], self.left[kind], self.right[kind]
        height, width = self.tables[number].shape
        key = (number, self._used(left, height), self._used(right, width))
        found = self._shrunk.get(key)
        if found is None:
            found = self._shrunk[key] = self._shrunk_table(*key)
        small, row_map, column_map = found
        if small == number:
            return kind
        maps = self.maps
        left = maps.add(row_map[maps.items[left]])
        return self.add(small, left, maps.add(column_map[maps.items[right]]))

    def _used(self, side: int, count: int) -> bytes:
        """Which of so many groups a map uses, as bytes of a mask."""
        found = self._masks.get((side, count))
        if found is None:
            mask = np.zeros(count, dtype=bool)
            mask[self.maps.items[side]] = True
            found = self._masks[side, count] = mask.tobytes()
        return found

    def _shrunk_table(
        self, number: int, used_rows: bytes, used_columns: bytes
    ) -> tuple[int, Integers, Integers]:
        """The number of the table over the used rows and columns, and where the old ones went."""
        small = self.tables[number]
        rows, columns = (
            np.frombuffer(used_rows, dtype=bool),
            np.frombuffer(used_columns, dtype=bool),
        )
        all_rows, all_columns = bool(rows.all()), bool(columns.all())
        small = small if all_rows else small[rows]
        small = small if all_columns else small[:, columns]
        # Rows that differ go on to differ while all columns are there.
        known = number in self._distinct
        row_labels = None if known and all_columns else equal_rows(small)
        column_labels = None if known and all_rows else equal_rows(small.T)
        if all_rows and all_columns and row_labels is None and column_labels is None:
            self._distinct.add(number)
            return number, rows, columns
        row_map, column_map = np.cumsum(rows) - 1, np.cumsum(columns) - 1
        if row_labels is not None:
            small = small[np.unique(row_labels, return_index=True)[1]]
            row_map = row_labels[row_map]
        if column_labels is not None:
            small = small[:, np.unique(column_labels, return_index=True)[1]]
            column_map = column_labels[column_map]
        result = self.add_table(small)
        self._distinct.add(result)
        return result, row_map, column_map
