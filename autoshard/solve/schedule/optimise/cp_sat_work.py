"""The work of a mesh in the model for CP-SAT, over which task comes before which.

A mesh does one task at a time. So for each task x, with a literal y < x for each other task y of
its mesh (`autoshard.solve.schedule.optimise.cp_sat_order`),

    start[x] >= first + sum of time[y] where y < x
    start[x] <= last - time[x] - sum of time[y] where x < y

where no task of the mesh starts before `first` or ends after `last`. That no two tasks overlap says
the same of every pair; but where a schedule leaves a mesh less time to wait than a task takes, only
these sums tell which tasks can fill the time before x without a rest.
"""

from __future__ import annotations

from typing import Any

from autoshard.solve.schedule.optimise.cp_sat_order import TaskOrder
from autoshard.solve.schedule.optimise.question import Question

MOST_TASKS = 64
"""Of a mesh; the literals grow as the square."""


def share_time(
    model: Any, question: Question, mine: list[int], order: TaskOrder, starts: list[list[Any]]
) -> None:
    """Add what the work of a mesh that runs the letters `mine` says of its starts."""
    times, heads, latest = order.times, question.heads, question.latest
    tasks = [(letter, k) for letter in mine if times[letter] for k in range(heads.shape[1])]
    if len(tasks) > MOST_TASKS:
        return
    total = sum(int(times[letter]) for letter, _ in tasks)
    first = min((int(heads[task]) for task in tasks), default=0)
    last = max((int(latest[task] + times[task[0]]) for task in tasks), default=0)
    if last - first - total >= max((int(times[letter]) for letter, _ in tasks), default=0):
        return
    for task in tasks:
        before: Any = 0
        for other in tasks:
            if other != task:
                before += int(times[other[0]]) * order.before(other, task)
        start = starts[task[0]][task[1]]
        model.Add(start >= first + before)
        model.Add(start <= last - total + before)
