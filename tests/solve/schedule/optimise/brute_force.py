"""All schedules of tiny problems, one after the other."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from autoshard.solve.schedule.faults import ScheduleError
from autoshard.solve.schedule.instance import Instance
from autoshard.solve.schedule.task import Kind, Task
from autoshard.solve.schedule.timeline import peak, simulate

AFTER: dict[Kind, Kind | None] = {"F": None, "B": "F", "W": "B"}


def best_value(instance: Instance, objective: str) -> float | None:
    """The least value over all orders, microbatches out of order too; None if none fits."""
    rows = [list(_orders(instance, mesh)) for mesh in range(instance.meshes)]
    best = None
    for order in itertools.product(*rows):
        try:
            value = simulate(instance, order).value(objective)
        except ScheduleError:
            continue
        best = value if best is None else min(best, value)
    return best


def _orders(instance: Instance, mesh: int) -> Iterator[tuple[Task, ...]]:
    """The orders of one mesh's tasks in which F, B and W of a microbatch follow each other."""
    tasks = [
        Task(kind, stage, microbatch)
        for stage in instance.on(mesh)
        for microbatch in range(instance.microbatches)
        for kind in AFTER
    ]
    limit = None if instance.memory_limit is None else instance.memory_limit[mesh]

    def grow(done: tuple[Task, ...]) -> Iterator[tuple[Task, ...]]:
        if len(done) == len(tasks):
            yield done
        for task in tasks:
            need = AFTER[task.kind]
            if task in done or (need and task._replace(kind=need) not in done):
                continue
            if limit is None or peak(instance, (*done, task)) <= limit:
                yield from grow((*done, task))

    yield from grow(())
