"""How much memory each node takes at each memory row, as jumps over time.

A *group* is a node and one of its usage vectors. What a group takes is its vector times an amount
that changes from row to row: a step function of time, written as its jumps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoshard.solve.problem import Floats, Integers
from autoshard.solve.reduce.interned import Interned, distinct
from autoshard.solve.reduce.reduction_loops import RESIDUE, boxes, covered_rows

# A row is compared with so many rows before and after it.
WINDOW = 64
# Nodes with several vectors are added up over so many entries at most.
ENTRIES = 20_000_000
# Equal levels of a node's vectors are looked for when there are more than so many.
FEW_LEVELS = 50


@dataclass(slots=True, eq=False)
class Profile:
    """Jumps of groups (a node and a vector) at memory rows, sorted by group and row.

    `count` is the number of rows; a jump at row `count` ends a usage that lasts to the end.
    """

    count: int
    node: Integers
    vector: Integers
    group: Integers
    row: Integers
    jump: Floats

    @classmethod
    def of(
        cls,
        times: Integers,
        node: Integers,
        vector: Integers,
        start: Integers,
        stop: Integers,
        scale: Floats,
    ) -> Profile:
        """The profile, at these times, of usages of so many times a vector each."""
        pairs, place = distinct(node, vector)
        columns = np.array(pairs, dtype=np.int64).reshape(-1, 2)
        group = np.concatenate([place, place])
        row = np.searchsorted(times, np.concatenate([start, stop]))
        jump = np.concatenate([scale, -scale])
        profile = cls(times.size, columns[:, 0], columns[:, 1], group, row, jump)
        return profile._merged()

    def _merged(self) -> Profile:
        """The profile with one jump per group and row."""
        code = self.group * (self.count + 1) + self.row
        keys, place = np.unique(code, return_inverse=True)
        jump, size = np.zeros(keys.size), np.zeros(keys.size)
        np.add.at(jump, place, self.jump)
        np.add.at(size, place, np.abs(self.jump))
        turns = np.flatnonzero(np.abs(jump) > RESIDUE * size)
        group, row = np.divmod(keys[turns], self.count + 1)
        return Profile(self.count, self.node, self.vector, group, row, jump[turns])

    def at(self, kept: Integers) -> Profile:
        """The profile over some of its rows."""
        row = np.searchsorted(kept, self.row)
        part = Profile(kept.size, self.node, self.vector, self.group, row, self.jump)
        return part._merged()

    def _segments(self) -> tuple[Integers, Integers, Integers, Floats]:
        """(group, first row, row after the last, amount) of every stretch of even amount."""
        if self.group.size == 0:
            return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)
        same = np.flatnonzero(self.group[1:] == self.group[:-1])
        total = np.cumsum(self.jump)
        begins = np.flatnonzero(np.diff(self.group, prepend=-1))
        before = np.repeat(total[begins] - self.jump[begins], np.diff(begins, append=total.size))
        amount = (total - before)[same]
        same, amount = same[amount > 0], amount[amount > 0]
        return self.group[same], self.row[same], self.row[same + 1], amount

    def _several(self) -> np.ndarray:
        """Whether the node of each group has other groups too."""
        return np.bincount(self.node)[self.node] > 1 if self.node.size else np.zeros(0, bool)

    def bounds(self, vectors: Interned, mixtures: list[Mixture]) -> tuple[Floats, Floats]:
        """What all nodes take at least and at most at every row."""
        low, high = np.zeros(self.count + 1), np.zeros(self.count + 1)
        alone = ~self._several()[self.group]
        np.add.at(high, self.row[alone], (self.jump * self._tops(vectors)[self.group])[alone])
        if mixtures:
            first = np.concatenate([mixture.first for mixture in mixtures])
            last = np.concatenate([mixture.last for mixture in mixtures])
            for out, side in ((low, 0), (high, 1)):
                values = np.concatenate([m.ends[side][m.which] for m in mixtures])
                np.add.at(out, first, values)
                np.subtract.at(out, last, values)
        return np.cumsum(low[:-1]), np.cumsum(high[:-1])

    def _tops(self, vectors: Interned) -> Floats:
        """The largest entry of the vector of every group."""
        numbers, place = np.unique(self.vector, return_inverse=True)
        tops = [vectors.items[number].max() for number in numbers.tolist()]
        return np.array(tops, dtype=np.float64)[place]

    def mixtures(self, vectors: Interned) -> list[Mixture]:
        """The joint loads of every node that has several vectors."""
        several = np.flatnonzero(self._several())
        begins = several[np.flatnonzero(np.diff(self.node[several], prepend=-1))]
        ends = np.searchsorted(self.node, self.node[begins], side="right")
        return [
            self._mixture(first, last, vectors)
            for first, last in zip(begins.tolist(), ends.tolist(), strict=True)
        ]

    def _mixture(self, first: int, last: int, vectors: Interned) -> Mixture:
        """The node of groups `first` to `last`."""
        begin, end = np.searchsorted(self.group, (first, last))
        rows, place = np.unique(self.row[begin:end], return_inverse=True)
        amounts = np.zeros((rows.size, last - first))
        amounts[place, self.group[begin:end] - first] = self.jump[begin:end]
        levels, which = amounts.cumsum(axis=0)[:-1], np.arange(rows.size - 1)
        if rows.size > FEW_LEVELS:
            levels, which = np.unique(levels, axis=0, return_inverse=True)
        each = np.array([vectors.items[number] for number in self.vector[first:last].tolist()])
        joint = levels.shape[0] * each.shape[1] <= ENTRIES
        if not joint:
            each = np.stack([each.min(axis=1), each.max(axis=1)], axis=1)
        loads = levels @ each
        ends = loads.min(axis=1), loads.max(axis=1)
        node = int(self.node[first])
        return Mixture(node, rows[:-1], rows[1:], which.reshape(-1), loads, ends, joint)

    def heavy(
        self, vectors: Interned, mixtures: list[Mixture], slack: Floats, rounding: float
    ) -> list[tuple[int, np.ndarray]]:
        """Nodes with masks of the choices that take no more than their least and the slack."""
        found = []
        least = _RangeMinimum(slack)
        group, first, last, amount = self._segments()
        alone = ~self._several()[group]
        group, amount = group[alone], amount[alone]
        room = np.full(self.node.size, np.inf)
        np.minimum.at(room, group, (least(first[alone], last[alone]) + rounding) / amount)
        for number in np.flatnonzero(self._tops(vectors) > room).tolist():
            fits = vectors.items[self.vector[number]] <= room[number]
            found.append((int(self.node[number]), fits))
        if not mixtures:
            return found
        first = np.concatenate([mixture.first for mixture in mixtures])
        last = np.concatenate([mixture.last for mixture in mixtures])
        each = np.split(least(first, last) + rounding, np.cumsum([m.first.size for m in mixtures]))
        for mixture, rooms in zip(mixtures, each[:-1], strict=True):
            low, high = (ends[mixture.which] for ends in mixture.ends)
            tight = np.flatnonzero(high - low > rooms)
            if mixture.joint and tight.size:
                loads = mixture.loads[mixture.which[tight]]
                fits = (loads - low[tight, None] <= rooms[tight, None]).all(axis=0)
                found.append((mixture.node, fits))
        return found

    def covered(self, base: Floats) -> np.ndarray:
        """Which rows another one covers."""
        order = np.argsort(self.row, kind="stable")
        group = self.group[order]
        begin = np.searchsorted(self.row[order], np.arange(self.count + 1))
        covered = np.zeros(self.count, dtype=bool)
        net, touched = np.zeros(self.node.size), np.zeros(group.size, dtype=np.int64)
        covered_rows(begin, group, self.jump[order], base, WINDOW, net, touched, covered)
        return covered

    def boxes(self) -> tuple[Integers, Integers, Integers, Floats]:
        """The profile as few boxes: their groups, first rows, rows after the last, and amounts."""
        size = self.group.size
        begins, ends, amounts = np.zeros(size, np.int64), np.zeros(size, np.int64), np.zeros(size)
        held, left = np.zeros(size, np.int64), np.zeros(size)
        count = boxes(self.group, self.row, self.jump, held, left, begins, ends, amounts)
        begins = begins[:count]
        return self.group[begins], self.row[begins], ends[:count], amounts[:count]


@dataclass(frozen=True, slots=True, eq=False)
class Mixture:
    """A node with several vectors: from row `first` to `last` it takes loads[which], per choice;
    `ends` are the least and the most of those.

    Where that is too much to write out (not `joint`), the two columns are the least and the most
    that the vectors allow apart from each other.
    """

    node: int
    first: Integers
    last: Integers
    which: Integers
    loads: Floats
    ends: tuple[Floats, Floats]
    joint: bool


class _RangeMinimum:
    """Minima of stretches of an array, by minima of stretches of 1, 2, 4, ... entries."""

    def __init__(self, values: Floats) -> None:
        self._levels = [values]
        width = 1
        while 2 * width <= values.size:
            last = self._levels[-1]
            self._levels.append(np.minimum(last[:-width], last[width:]))
            width *= 2

    def __call__(self, first: Integers, last: Integers) -> Floats:
        """The minimum of values[first[k] : last[k]] for every k; no stretch is empty."""
        found = np.empty(first.size)
        level = np.frexp((last - first).astype(np.float64))[1] - 1
        for number in np.unique(level).tolist():
            here = np.flatnonzero(level == number)
            values = self._levels[number]
            found[here] = np.minimum(values[first[here]], values[last[here] - (1 << number)])
        return found
