"""The W of an order put anew: F and B keep their order on each mesh, W fill what is left between.

A W runs before the next F or B of its mesh where

* that F finds no memory, and the W gives some back;
* the mesh would wait for it for as long as the W takes, or longer;
* the mesh would have waited, since it began, for longer than an allowance.

The first two, and to let W fill a gap that they do not fit into only where a mesh has waited more
than others, are the heuristics of the Zero Bubble papers (https://arxiv.org/abs/2401.10241,
https://arxiv.org/abs/2405.15362). With the F and B of ZB-V they suit that schedule to times of F, B
and W that differ. Several allowances are tried.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator

import numpy as np

from autoshard.solve.schedule.optimise.flat import Flat

STEPS_A_MESH = 8
"""Allowances that are tried, a mesh: up to two mean task times of each, in equal steps."""
FEWEST_STEPS, STEP_WORK = 8, 10**5
"""Fewer steps for large problems: so many tasks of all together, but at least so many steps."""


def refilled(flat: Flat, word: np.ndarray) -> Iterator[np.ndarray]:
    """Words with the F and B of `word`, and W put anew; where memory suffices.

    `word` itself may take too much memory.
    """
    arrays = flat.arrays
    unit = float(arrays.time.mean())
    most = 2 * flat.instance.meshes * unit
    steps = STEPS_A_MESH * flat.instance.meshes
    steps = min(steps, max(FEWEST_STEPS, STEP_WORK // max(word.size, 1)))
    for allowance in (math.inf, *np.linspace(0, most, steps + 1).tolist()):
        found = _Filling(flat, word, allowance).run()
        if found is not None:
            yield found


class _Filling:
    """A simulation that puts W where they are wanted."""

    def __init__(self, flat: Flat, word: np.ndarray, allowance: float) -> None:
        arrays, meshes = flat.arrays, flat.instance.meshes
        self.allowance = allowance
        self.times, self.limits = arrays.time.tolist(), arrays.limit.tolist()
        self.take, self.give = arrays.take.tolist(), arrays.give.tolist()
        self.needs = [
            list(zip(arrays.before[a:b].tolist(), arrays.lag[a:b].tolist(), strict=True))
            for a, b in zip(arrays.before_start[:-1], arrays.before_start[1:], strict=True)
        ]
        weights = np.flatnonzero(arrays.is_weight).tolist()
        self.weight_of = {self.needs[weight][0][0]: weight for weight in weights}
        self.rows: list[list[int]] = [
            [letter for letter in word[a:b].tolist() if not arrays.is_weight[letter]]
            for a, b in zip(arrays.word_start[:-1], arrays.word_start[1:], strict=True)
        ]
        self.ends: list[list[int]] = [[] for _ in self.times]
        self.waiting: list[deque[int]] = [deque() for _ in range(meshes)]
        self.word: list[list[int]] = [[] for _ in range(meshes)]
        self.now, self.idle, self.taken, self.at = ([0] * meshes for _ in range(4))

    def run(self) -> np.ndarray | None:
        """The word; None where memory does not suffice."""
        moved = True
        while moved:
            moved = False
            for mesh in range(len(self.rows)):
                while self._next(mesh):
                    moved = True
        if any(at < len(row) for at, row in zip(self.at, self.rows, strict=True)):
            return None
        for row, waiting in zip(self.word, self.waiting, strict=True):
            row.extend(waiting)
        return np.array([letter for row in self.word for letter in row], dtype=np.int64)

    def _next(self, mesh: int) -> bool:
        """Run the next F or B of a mesh, and W before it; whether that could be done."""
        if self.at[mesh] == len(self.rows[mesh]):
            return False
        letter = self.rows[mesh][self.at[mesh]]
        k = len(self.ends[letter])
        if any(len(self.ends[need]) <= k for need, _ in self.needs[letter]):
            return False
        waiting = self.waiting[mesh]
        while self.taken[mesh] + self.take[letter] > self.limits[mesh]:
            if not waiting:
                return False
            self._put(mesh, waiting.popleft())
        ready = max((self.ends[need][k] + lag for need, lag in self.needs[letter]), default=0)
        while waiting and ready > self.now[mesh]:
            gap = ready - self.now[mesh]
            if self.times[waiting[0]] > gap and self.idle[mesh] + gap <= self.allowance:
                break
            self._put(mesh, waiting.popleft())
        if self.word[mesh]:
            self.idle[mesh] += max(0, ready - self.now[mesh])
        self.now[mesh] = max(self.now[mesh], ready)
        self._put(mesh, letter)
        self.ends[letter].append(self.now[mesh])
        self.at[mesh] += 1
        if letter in self.weight_of:
            waiting.append(self.weight_of[letter])
        return True

    def _put(self, mesh: int, letter: int) -> None:
        self.word[mesh].append(letter)
        self.now[mesh] += self.times[letter]
        self.taken[mesh] += self.take[letter] - self.give[letter]
