"""When the tasks of an order run: the simulator.

Every task starts as soon as its mesh is free and all that it reads has arrived. Meshes are advanced
in turns, each as far as its inputs are known; if all stand still before the end, the order is a
deadlock. Memory is followed along each mesh's own order: F takes at its start, others give at
their end.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from autoshard.solve.schedule.faults import ScheduleError
from autoshard.solve.schedule.instance import Instance, Number
from autoshard.solve.schedule.task import Order, Task
from autoshard.units import counted


class Run(NamedTuple):
    """A task with its start and end."""

    task: Task
    start: Number
    end: Number


@dataclass(frozen=True, slots=True)
class Timeline:
    """When every task of an order runs, in the instance's unit of time.

    Attributes:
      runs: by mesh, in order.
      peak_memory: the most that activations take at once, by mesh; `static_memory` not counted.
    """

    runs: tuple[tuple[Run, ...], ...]
    peak_memory: tuple[Number, ...]

    @property
    def makespan(self) -> Number:
        """The end of the last task."""
        return max(row[-1].end for row in self.runs if row)

    @property
    def spans(self) -> tuple[Number, ...]:
        """From the start of its first to the end of its last task, by mesh."""
        return tuple(row[-1].end - row[0].start if row else 0 for row in self.runs)

    @property
    def span(self) -> Number:
        """The longest of the spans: the time of a step that needs no barrier."""
        return max(self.spans)

    @property
    def busy(self) -> tuple[Number, ...]:
        """Time at work, by mesh."""
        return tuple(sum(run.end - run.start for run in row) for row in self.runs)

    @property
    def bubble(self) -> float:
        """The share of all meshes' time until the makespan in which they wait."""
        return 1 - sum(self.busy) / (len(self.runs) * self.makespan)

    def value(self, objective: str) -> Number:
        """The makespan or the span, by name."""
        return {"makespan": self.makespan, "span": self.span}[objective]


def simulate(
    instance: Instance,
    order: Order,
    *,
    limited: bool = True,
    merges: Iterable[tuple[Task, ...]] = (),
) -> Timeline:
    """When every task runs.

    Args:
      limited: whether to refuse an order that takes more memory than the instance's limit.
      merges: tasks that follow each other on a mesh and are one program: it starts when all that
        they read has come, and what they make is there at its end.

    Raises:
      ScheduleError: a task is missing, twice there or on another mesh than its stage; the order is
        a deadlock; or it takes too much memory. All faults of the first sort that occurs are named.
    """
    faults = list(_misplaced(instance, order))
    if faults:
        raise ScheduleError("this order", faults)
    runs = _runs(instance, order, {merge[0]: merge for merge in merges})
    peaks = tuple(peak(instance, tasks) for tasks in order)
    if limited and instance.memory_limit is not None:
        faults = [
            f"mesh {mesh} takes {most} of memory at once, more than its limit of {limit}"
            for mesh, (most, limit) in enumerate(zip(peaks, instance.memory_limit, strict=True))
            if most > limit + 1e-9
        ]
        if faults:
            raise ScheduleError("this order", faults)
    return Timeline(runs, peaks)


def memory_over_time(
    instance: Instance, runs: tuple[Run, ...]
) -> tuple[tuple[Number, Number], ...]:
    """(time, memory taken from then on) along one mesh, without `static_memory`."""
    taken, points = 0, []
    for task, start, end in runs:
        taken += instance.memory(task.kind, task.stage)
        points.append((start if task.kind == "F" else end, taken))
    return tuple(points)


def peak(instance: Instance, tasks: tuple[Task, ...]) -> Number:
    """The most memory that one mesh takes at once."""
    taken = most = 0
    for task in tasks:
        taken += instance.memory(task.kind, task.stage)
        most = max(most, taken)
    return most


def _misplaced(instance: Instance, order: Order) -> Iterator[str]:
    """Tasks that are not there exactly once, on their mesh."""
    if len(order) != instance.meshes:
        yield f"it has {counted(len(order), 'mesh')} and the instance {instance.meshes}"
        return
    seen: dict[tuple[int, int], list[str]] = {}
    for mesh, tasks in enumerate(order):
        for task in tasks:
            inside = 0 <= task.stage < instance.stages
            if not (inside and 0 <= task.microbatch < instance.microbatches):
                yield f"{task} on mesh {mesh} is not a task of the instance"
                continue
            home = instance.placement[task.stage]
            if home != mesh:
                yield f"{task} is on mesh {mesh}, but its stage is on mesh {home}"
            seen.setdefault((task.stage, task.microbatch), []).append(task.kind)
    for stage in range(instance.stages):
        for microbatch in range(instance.microbatches):
            kinds = sorted(seen.get((stage, microbatch), []))
            if kinds not in (["B", "F", "W"], ["BW", "F"]):
                yield (
                    f"stage {stage}, microbatch {microbatch} has the tasks "
                    f"{', '.join(kinds) or '(none)'}; it needs F, and B and W or BW, each once"
                )


def _runs(
    instance: Instance, order: Order, merged: Mapping[Task, tuple[Task, ...]]
) -> tuple[tuple[Run, ...], ...]:
    ends: dict[tuple[str, int, int], Number] = {}
    free: list[Number] = [0] * instance.meshes
    runs: list[list[Run]] = [[] for _ in order]
    moved = True
    while moved:
        moved = False
        for mesh, tasks in enumerate(order):
            while len(runs[mesh]) < len(tasks):
                first = tasks[len(runs[mesh])]
                program = merged.get(first, (first,))
                ready = _all_ready(instance, program, ends)
                if ready is None:
                    break
                end = max(free[mesh], ready)
                for task in program:
                    start, end = end, end + instance.time(task.kind, task.stage)
                    runs[mesh].append(Run(task, start, end))
                for task in program:
                    for kind in task.kind:  # BW is the end of both
                        ends[kind, task.stage, task.microbatch] = end
                free[mesh] = end
                moved = True
    stuck = [
        f"mesh {mesh} waits forever before {tasks[len(runs[mesh])]}"
        for mesh, tasks in enumerate(order)
        if len(runs[mesh]) < len(tasks)
    ]
    if stuck:
        raise ScheduleError("this order is a deadlock, and", stuck)
    return tuple(map(tuple, runs))


def _all_ready(
    instance: Instance,
    program: tuple[Task, ...],
    ends: Mapping[tuple[str, int, int], Number],
) -> Number | None:
    """When all that a program reads of others has arrived; None where that is not known yet."""
    if len(program) == 1:
        return _ready(instance, program[0], ends)
    inside = {(kind, task.stage, task.microbatch): 0 for task in program for kind in task.kind}
    ready: Number = 0
    for task in program:
        one = _ready(instance, task, ChainMap(inside, ends))  # pyright: ignore[reportArgumentType]
        if one is None:
            return None
        ready = max(ready, one)
    return ready


def _ready(
    instance: Instance, task: Task, ends: Mapping[tuple[str, int, int], Number]
) -> Number | None:
    """When all that a task reads has arrived; None where that is not known yet."""
    kind, stage, microbatch = task
    if kind == "W":
        return ends.get(("B", stage, microbatch))
    if kind == "F":
        ready, givers, wanted = 0, instance.sources(stage), "F"
    else:
        forward = ends.get(("F", stage, microbatch))
        if forward is None:
            return None
        ready, givers, wanted = forward, instance.readers(stage), "B"
    mesh = instance.placement[stage]
    for giver in givers:
        end = ends.get((wanted, giver, microbatch))
        if end is None:
            return None
        ready = max(ready, end + instance.transfer[instance.placement[giver]][mesh])
    return ready
