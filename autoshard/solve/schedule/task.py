"""What a mesh does, one after another: tasks, and orders of them.

A stage runs three kinds of task for each microbatch:

    F   forward
    B   gradient with respect to the stage's input, which the stage before waits for
    W   gradient with respect to the stage's weights, which nobody waits for
    BW  B and W as one task, the ordinary backward

An order has one tuple of tasks for each mesh. It says nothing of time: a mesh starts its next task
as soon as it is free and what the task reads has arrived (`autoshard.solve.schedule.timeline`). In
JSON it is {"0": [["F", stage, microbatch], ...], "1": ...}.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple, get_args

from autoshard.files import Count
from autoshard.solve.schedule.faults import ScheduleError

Kind = Literal["F", "B", "W", "BW"]
KINDS: tuple[Kind, ...] = get_args(Kind)


class Task(NamedTuple):
    """One task of one stage for one microbatch, both counted from 0."""

    kind: Kind
    stage: int
    microbatch: int

    def __str__(self) -> str:
        return f"{self.kind}{self.microbatch}@{self.stage}"


WrittenOrder = dict[str, tuple[tuple[Kind, Count, Count], ...]]
"""As JSON has it."""

Order = tuple[tuple[Task, ...], ...]
"""The tasks of every mesh, in the order in which it runs them."""


def order_to_json(order: Order) -> dict[str, list[list[Any]]]:
    """The order as JSON has it: meshes by number, tasks as [kind, stage, microbatch]."""
    return {str(mesh): [list(task) for task in tasks] for mesh, tasks in enumerate(order)}


def order_from_json(written: Mapping[str, Any], meshes: int) -> Order:
    """The order that `order_to_json` wrote; meshes that are not named run nothing.

    Raises:
      ScheduleError: a mesh or a task is none; all are listed.
    """
    faults = [
        f"{name!r} is none of the meshes 0 to {meshes - 1}"
        for name in written
        if name not in map(str, range(meshes))
    ]
    order = []
    for mesh in range(meshes):
        tasks = written.get(str(mesh), [])
        faults += [f"mesh {mesh}: {fault}" for fault in _faults_of(tasks)]
        order.append(tasks)
    if faults:
        raise ScheduleError("this order", faults)
    return tuple(tuple(Task(kind, stage, batch) for kind, stage, batch in row) for row in order)


def _faults_of(tasks: Any) -> Iterator[str]:
    if not isinstance(tasks, list | tuple):
        yield f"{tasks!r} is not a list of tasks"
        return
    for task in tasks:
        if not (isinstance(task, list | tuple) and len(task) == 3 and task[0] in KINDS):
            yield f"{task!r} is not a task; write [kind, stage, microbatch], kind F, B, W or BW"
        elif any(isinstance(number, bool) or not isinstance(number, int) for number in task[1:]):
            yield f"{task!r} has a stage or microbatch that is not whole"
