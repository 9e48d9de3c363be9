"""The memory limit of a mesh in the model for CP-SAT, over which task comes before which.

The memory of a mesh grows only when a forward starts. So for each forward x, with a literal y < x
for each other forward, and for each gradient that gives memory back,

    take(x) + sum of take(y) where y < x - sum of give(y) where y < x  <=  limit

Forwards of the same stage run in the order of the microbatches. Over these literals
(`autoshard.solve.schedule.optimise.cp_sat_order`) CP-SAT learns far more, and faster, than over a
cumulative constraint on intervals of variable size.
"""

from __future__ import annotations

from typing import Any

from autoshard.solve.schedule.optimise.cp_sat_order import TaskOrder
from autoshard.solve.schedule.optimise.question import Question


def limit_memory(
    model: Any, question: Question, mesh: int, mine: list[int], order: TaskOrder
) -> None:
    """Add the limit of a mesh that runs the letters `mine`, in that order."""
    arrays = question.arrays
    limit, count = int(arrays.limit[mesh]), arrays.microbatches
    if int(arrays.take[mine].sum()) * count <= limit:
        return
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
