"""Which task of a mesh comes before which, in the model for CP-SAT.

y < x means that y ends before x starts; as the tasks of a mesh do not overlap, else x ends before y
starts. Where windows leave one order only, there is no literal. If y < x, then so is each earlier
task of y's letter, and y comes before each later one of x's.

The W of a mesh that take the same time and give back the same memory are interchangeable: nothing
needs them. So in some best schedule they run in the order of their B. Proof: give the j-th of their
starts to the j-th B that ends; as each start had a B of its own before it, j have ended by then.
Then one literal says for two microbatches which B and which W comes first. Without this CP-SAT
refutes each such exchange by itself.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from autoshard.solve.schedule.optimise.question import Question

Place = tuple[int, int]
"""A letter and a microbatch."""


class TaskOrder:
    """Literals for which of two tasks of a mesh comes first; each pair has one."""

    def __init__(self, model: Any, question: Question, starts: list[list[Any]]) -> None:
        self.model, self.starts = model, starts
        self.heads, self.latest = question.heads, question.latest
        self.arrays = question.arrays
        self.times: np.ndarray = question.arrays.time
        self.known: dict[tuple[Place, Place], Any] = {}

    def before(self, y: Place, x: Place) -> Any:
        """Whether y ends before x starts: a literal, or 0 or 1."""
        if x[0] == y[0]:
            return int(y[1] < x[1])
        if (x, y) in self.known:
            opposite = self.known[x, y]
            return 1 - opposite if isinstance(opposite, int) else opposite.Not()
        if (y, x) not in self.known:
            self.known[y, x] = self._new(y, x)
        return self.known[y, x]

    def chain(self, y: int, x: int) -> None:
        """State what the orders of the letters y and x imply for each other."""
        count = self.heads.shape[1]
        for k in range(count):
            for n in range(count):
                here = self.before((y, n), (x, k))
                if isinstance(here, int):
                    continue
                if n > 0:
                    self._imply(here, self.before((y, n - 1), (x, k)))
                if k + 1 < count:
                    self._imply(here, self.before((y, n), (x, k + 1)))

    def _imply(self, literal: Any, implied: Any) -> None:
        if isinstance(implied, int):
            if implied == 0:
                self.model.Add(literal == 0)
        else:
            self.model.AddImplication(literal, implied)

    def _new(self, y: Place, x: Place) -> Any:
        if self.latest[y] < self.heads[x] + self.times[x[0]]:
            return 1  # x cannot end before y starts
        if self.latest[x] < self.heads[y] + self.times[y[0]]:
            return 0
        literal = self.model.NewBoolVar("")
        self._separate(y, x, literal)
        return literal

    def _separate(self, y: Place, x: Place, first: Any) -> None:
        """State that y ends before x starts where `first`, a literal, 0 or 1, holds; else x."""
        before = self.starts[x[0]][x[1]] >= self.starts[y[0]][y[1]] + int(self.times[y[0]])
        after = self.starts[y[0]][y[1]] >= self.starts[x[0]][x[1]] + int(self.times[x[0]])
        if isinstance(first, int):
            self.model.Add(before if first else after)
        else:
            self.model.Add(before).OnlyEnforceIf(first)
            self.model.Add(after).OnlyEnforceIf(first.Not())

    def weights_follow(self, mine: list[int]) -> None:
        """State that alike W of a mesh, which runs the letters `mine`, run in the order of B."""
        arrays = self.arrays
        weights = [letter for letter in mine if arrays.is_weight[letter] and arrays.time[letter]]
        for v, w in itertools.combinations(weights, 2):
            if arrays.time[v] != arrays.time[w] or arrays.give[v] != arrays.give[w]:
                continue
            first, second = (int(arrays.before[arrays.before_start[x]]) for x in (v, w))
            if not (arrays.time[first] and arrays.time[second]):
                continue  # B that take no time are not kept apart
            for k, n in np.ndindex(self.heads.shape[1], self.heads.shape[1]):
                here = self.before((first, k), (second, n))
                self.known[(v, k), (w, n)] = here
                self._separate((v, k), (w, n), here)
            self.chain(first, second)
