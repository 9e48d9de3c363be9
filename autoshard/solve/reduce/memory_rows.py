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
from autoshard.solve.problem import Floats, Integers, Problem
from autoshard.solve.reduce.interned import Interned, distinct, starts_of
from autoshard.solve.reduce.profile import Profile
from autoshard.solve.reduce.trail import InfeasibleError

# Integers up to here are exact as doubles.
EXACT = 2.0**53


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
        profile = self._profile(times)
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
        self._write(self._profile(self.rows))
        self._by_node = None
        self._clip_base()
        return heavy

    def _profile(self, times: Integers) -> Profile:
        """The usages as jumps at the given times."""
        return Profile.of(times, self.node, self.vector, self.start, self.stop, self.scale)

    def _write(self, profile: Profile) -> None:
        """Make a profile over `rows` the usages."""
        group, first, last, self.scale = profile.boxes()
        self.node, self.vector = profile.node[group], profile.vector[group]
        self.start, self.stop = self.rows[first], self.rows[last - 1] + 1

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
        self.base_jumps = np.zeros(self.base_times.size)
        np.add.at(self.base_jumps, place, jumps)

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
