"""The memory limit of a mesh in the model for CP-SAT, over which task comes before which.

The memory of a mesh grows only when a forward starts. So for each forward x, with a literal y < x
for each other forward, and for each gradient that gives memory back,

    take(x) + sum of take(y) where y < x - sum of give(y) where y < x  <=  limit

y < x means that y ends before x starts; as the tasks of a mesh do not overlap, else x ends before y
starts. Forwards of the same stage run in the order of the microbatches. Where windows leave one
order only, there is no literal. If y < x, then so is each earlier task of y's letter, and y comes
before each later one of x's. Over these literals CP-SAT learns far more, and faster, than over a
cumulative constraint on intervals of variable size.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from autoshard.solve.schedule.question import Question

Place = tuple[int, int]
"""A letter and a microbatch."""


def limit_memory(
    model: Any, question: Question, mesh: int, mine: list[int], starts: list[list[Any]]
) -> None:
    """Add the limit of a mesh that runs the letters `mine`."""
    arrays = question.arrays
    limit, count = int(arrays.limit[mesh]), arrays.microbatches
    if int(arrays.take[mine].sum()) * count <= limit:
        return
    order = _Order(model, question, starts)
    takers = [letter for letter in mine if arrays.take[letter]]
    givers = [letter for letter in mine if arrays.give[letter]]
    for x in takers:
        others = [letter for letter in takers if letter != x] + givers
        for k in range(count):
            taken: Any = (k + 1) * int(arrays.take[x])
            for y in others:
                change = int(arrays.take[y] - arrays.give[y])
                taken += sum(change * order.before((y, n), (x, k)) for n in range(count))
            model.Add(taken <= limit)
        for y in others:
            order.chain(y, x)


class _Order:
    """Literals for which of two tasks of a mesh comes first; each pair has one."""

    def __init__(self, model: Any, question: Question, starts: list[list[Any]]) -> None:
        self.model, self.starts = model, starts
        self.heads, self.latest = question.heads, question.latest
        self.times: np.ndarray = question.arrays.time
        self.known: dict[tuple[Place, Place], Any] = {}

    def before(self, y: Place, x: Place) -> Any:
        """Whether y ends before x starts: a literal, or 0 or 1."""
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
        first, second = self.starts[y[0]][y[1]], self.starts[x[0]][x[1]]
        self.model.Add(second >= first + int(self.times[y[0]])).OnlyEnforceIf(literal)
        self.model.Add(first >= second + int(self.times[x[0]])).OnlyEnforceIf(literal.Not())
        return literal
