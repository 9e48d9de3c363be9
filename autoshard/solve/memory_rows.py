"""The memory side of a problem under reduction: usages, fixed load, and the rows that matter.

A usage is `scale * vectors[vector]` bytes per choice of its node while start <= t < stop. Vectors
are normalised, each by its least entry (which becomes fixed load) and by the greatest common
divisor of the others, so that usages of one node mostly share one vector and differ in scale: their
sum is a step function of time, with one row of the limit per step. `refresh` then

* finds what every node takes at least and at most at every time, all its usages together;
* keeps the rows where the sum of the most exceeds the limit, and of those none that a row nearby
  covers (no node and no fixed load takes more there than in the other row);
* drops choices that exceed the limit even when all other nodes take their least;
* writes the usages anew, as few boxes in time over the rows that are left.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from autoshard.solve.evaluate import LOAD_TOLERANCE
from autoshard.solve.interned import Interned, distinct, starts_of
from autoshard.solve.problem import Floats, Integers, Problem
from autoshard.solve.reduction_loops import RESIDUE, boxes, covered_rows
from autoshard.solve.trail import InfeasibleError

# A row is compared with so many rows before and after it.
WINDOW = 64
# Integers up to here are exact as doubles.
EXACT = 2.0**53
# Nodes with several vectors are added up over so many entries at most.
ENTRIES = 20_000_000
# Equal levels of a node's vectors are looked for when there are more than so many.
FEW_LEVELS = 50


def _none(kind: type = np.int64) -> np.ndarray:
    return np.zeros(0, dtype=kind)


@dataclass(slots=True, eq=False)
class Memory:
    """Usages as parallel arrays; `base_jumps` of the fixed load at `base_times` (sorted)."""

    limit: float | None
    vectors: Interned
    node: Integers = field(default_factory=_none)
    start: Integers = field(default_factory=_none)
    stop: Integers = field(default_factory=_none)
    vector: Integers = field(default_factory=_none)
    scale: Floats = field(default_factory=lambda: _none(float))
    base_times: Integers = field(default_factory=_none)
    base_jumps: Floats = field(default_factory=lambda: _none(float))
    rows: Integers = field(default_factory=_none)
    _by_node: tuple[Integers, Integers] | None = None
    _normal: dict[int, tuple[int, float, float]] = field(default_factory=dict)

    @classmethod
    def of(cls, problem: Problem) -> Memory:
        memory = cls(problem.limit, Interned(np.float64))
        if problem.limit is None:
            return memory
        usages = [usage for usage in problem.usages if usage.start < usage.stop]
        memory.node = np.array([usage.node for usage in usages], dtype=np.int64)
        memory.start = np.array([usage.start for usage in usages], dtype=np.int64)
        memory.stop = np.array([usage.stop for usage in usages], dtype=np.int64)
        memory.vector = memory.vectors.add_all([usage.amounts for usage in usages])
        memory.scale = np.ones(len(usages))
        return memory

    def remap(self, to: Integers, through: Integers, maps: Interned) -> None:
        """Node i becomes node to[i], whose choice c stands for choice map[c]; map -1: unchanged."""
        moved = np.flatnonzero(through[self.node] >= 0)
        if moved.size:
            nodes = self.node[moved]
            self.vector[moved] = self.vectors.compose(self.vector[moved], through[nodes], maps)
            self.node[moved] = to[nodes]
            self._by_node = None

    def vectors_by_node(self, count: int) -> tuple[Integers, Integers]:
        """Distinct vectors of all nodes, and where those of node i begin (count + 1 entries)."""
        if self._by_node is None:
            pairs, _ = distinct(self.node, self.vector)
            columns = np.array(pairs, dtype=np.int64).reshape(-1, 2)
            self._by_node = columns[:, 1], starts_of(np.bincount(columns[:, 0], minlength=count))
        return self._by_node

    def has_usage(self, count: int) -> np.ndarray:
        """Whether node i takes memory that matters."""
        return np.bincount(self.node, minlength=count) > 0

    def base_load(self, times: Integers) -> Floats:
        """The fixed bytes at the given times."""
        loads = np.concatenate([[0.0], np.cumsum(self.base_jumps)])
        return loads[np.searchsorted(self.base_times, times, side="right")]

    # -- refresh ------------------------------------------------------------------------------

    def refresh(self) -> list[tuple[int, np.ndarray]]:
        """Find the rows that matter and rewrite the usages over them.

        Returns nodes with masks of the choices that fit beside the least of all others. Raises
        InfeasibleError when even the least does not fit.
        """
        if self.limit is None:
            return []
        self._by_node = None
        self._normalise()
        allowed = self.limit * (1 + LOAD_TOLERANCE)
        times = np.unique(np.concatenate([self.start, self.base_times]))
        profile = _Profile.of(self, times)
        low, high = self.base_load(times), self.base_load(times)
        mixtures = profile.mixtures(self.vectors)
        for total, part in zip((low, high), profile.bounds(self.vectors, mixtures), strict=True):
            total += part
        if (low > allowed).any():
            worst = int(low.argmax())
            raise InfeasibleError(
                f"memory: at time {times[worst]} even the smallest choices take "
                f"{low[worst]:.0f} bytes, limit {self.limit:.0f}"
            )
        rounding = LOAD_TOLERANCE * self.limit
        heavy = profile.heavy(self.vectors, mixtures, allowed - low, rounding)
        kept = np.flatnonzero(high > allowed)
        profile = profile.at(kept)
        kept = kept[~profile.covered(self.base_load(times[kept]))]
        self.rows = times[kept]
        _Profile.of(self, self.rows).write(self)
        self._by_node = None
        self._clip_base()
        return heavy

    def _normalise(self) -> None:
        """Subtract the least entry of every vector, divide by the common divisor of the rest."""
        numbers, place = np.unique(self.vector, return_inverse=True)
        found = [self._normal_form(number) for number in numbers.tolist()]
        table = np.array(found, dtype=np.float64).reshape(-1, 3)[place]
        fixed = np.flatnonzero(table[:, 1])
        if fixed.size:
            amounts = self.scale[fixed] * table[fixed, 1]
            self._add_base(
                np.concatenate([self.start[fixed], self.stop[fixed]]),
                np.concatenate([amounts, -amounts]),
            )
        live = np.flatnonzero(table[:, 0] >= 0)
        self.node, self.start, self.stop = self.node[live], self.start[live], self.stop[live]
        self.scale = self.scale[live] * table[live, 2]
        self.vector = table[live, 0].astype(np.int64)

    def _normal_form(self, number: int) -> tuple[int, float, float]:
        """(number of the normal vector or -1 when it is zero, least entry, divisor)."""
        found = self._normal.get(number)
        if found is None:
            vector = self.vectors.items[number]
            least = float(vector.min())
            rest = vector - least
            largest = float(rest.max())
            if largest == 0.0:
                found = (-1, least, 1.0)
            else:
                unit = 1.0
                if largest < EXACT and (rest == np.floor(rest)).all():
                    unit = float(np.gcd.reduce(rest.astype(np.int64)))
                found = (self.vectors.add(rest / unit), least, unit)
            self._normal[number] = found
        return found

    def _add_base(self, times: Integers, jumps: Floats) -> None:
        times = np.concatenate([self.base_times, times])
        jumps = np.concatenate([self.base_jumps, jumps])
        self.base_times, place = np.unique(times, return_inverse=True)
        total = np.bincount(place, jumps, minlength=self.base_times.size)
        self.base_jumps = total.astype(np.float64)

    def _clip_base(self) -> None:
        """Keep the fixed load at the rows only."""
        if self.rows.size == 0:
            self.base_times, self.base_jumps = _none(), _none(float)
            return
        loads = self.base_load(self.rows)
        jumps = np.diff(loads, prepend=0.0, append=0.0)
        times = np.append(self.rows, self.rows[-1] + 1)
        turns = np.flatnonzero(jumps)
        self.base_times, self.base_jumps = times[turns], jumps[turns]


@dataclass(slots=True, eq=False)
class _Profile:
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
    def of(cls, memory: Memory, times: Integers) -> _Profile:
        pairs, place = distinct(memory.node, memory.vector)
        columns = np.array(pairs, dtype=np.int64).reshape(-1, 2)
        group = np.concatenate([place, place])
        row = np.searchsorted(times, np.concatenate([memory.start, memory.stop]))
        jump = np.concatenate([memory.scale, -memory.scale])
        profile = cls(times.size, columns[:, 0], columns[:, 1], group, row, jump)
        return profile._merged()

    def _merged(self) -> _Profile:
        """The profile with one jump per group and row."""
        code = self.group * (self.count + 1) + self.row
        keys, place = np.unique(code, return_inverse=True)
        jump = np.bincount(place, self.jump, minlength=keys.size).astype(np.float64)
        size = np.bincount(place, np.abs(self.jump), minlength=keys.size)
        turns = np.flatnonzero(np.abs(jump) > RESIDUE * size)
        group, row = np.divmod(keys[turns], self.count + 1)
        return _Profile(self.count, self.node, self.vector, group, row, jump[turns])

    def at(self, kept: Integers) -> _Profile:
        """The profile over some of its rows."""
        row = np.searchsorted(kept, self.row)
        part = _Profile(kept.size, self.node, self.vector, self.group, row, self.jump)
        return part._merged()

    def _segments(self) -> tuple[Integers, Integers, Integers, Floats]:
        """(group, first row, row after the last, amount) of every stretch of even amount."""
        if self.group.size == 0:
            return _none(), _none(), _none(), _none(float)
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

    def bounds(self, vectors: Interned, mixtures: list[_Mixture]) -> tuple[Floats, Floats]:
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

    def mixtures(self, vectors: Interned) -> list[_Mixture]:
        """The joint loads of every node that has several vectors."""
        several = np.flatnonzero(self._several())
        begins = several[np.flatnonzero(np.diff(self.node[several], prepend=-1))]
        ends = np.searchsorted(self.node, self.node[begins], side="right")
        spans = np.searchsorted(self.group, np.stack([begins, ends])).T.tolist()
        return [
            self._mixture(begin, end, span[0], span[1], vectors)
            for begin, end, span in zip(begins.tolist(), ends.tolist(), spans, strict=True)
        ]

    def _mixture(self, first: int, last: int, begin: int, end: int, vectors: Interned) -> _Mixture:
        """The node of groups `first` to `last`, whose jumps stand from `begin` to `end`."""
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
        return _Mixture(node, rows[:-1], rows[1:], which.reshape(-1), loads, ends, joint)

    def heavy(
        self, vectors: Interned, mixtures: list[_Mixture], slack: Floats, rounding: float
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

    def write(self, memory: Memory) -> None:
        """Make the profile, over the rows of `memory`, its usages."""
        size = self.group.size
        begins, ends, amounts = np.zeros(size, np.int64), np.zeros(size, np.int64), np.zeros(size)
        held_rows, held_amounts = np.zeros(size, np.int64), np.zeros(size)
        count = boxes(
            self.group, self.row, self.jump, held_rows, held_amounts, begins, ends, amounts
        )
        begins, ends = begins[:count], ends[:count]
        memory.node = self.node[self.group[begins]]
        memory.vector = self.vector[self.group[begins]]
        memory.start = memory.rows[self.row[begins]]
        memory.stop = memory.rows[ends - 1] + 1
        memory.scale = amounts[:count]


@dataclass(frozen=True, slots=True, eq=False)
class _Mixture:
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
