"""Named schedules for two stages a mesh, placed down the meshes and up again: ZB-V and DualPipe-V.

Mesh d has stage d, its first, and stage 2 p - 1 - d, its second. Both schedules are given as the
phases of each mesh: how often a group of tasks is run, each for the next microbatch of its kind.
"""

from __future__ import annotations

from collections.abc import Callable

from autoshard.solve.schedule.faults import ScheduleError
from autoshard.solve.schedule.instance import Instance, vee_faults
from autoshard.solve.schedule.task import Kind, Order, Task

Phase = tuple[int, str]
"""How often, and which: "F0 B1 W1", kinds with 0 for the first and 1 for the second stage."""


def zb_v(instance: Instance) -> Order:
    """ZB-V (https://arxiv.org/abs/2405.15362): no bubble in the memory of 1F1B where F, B and W
    take the same.

    It is laid out for at least 2 p - 1 microbatches; of fewer, the tasks that are there keep
    their order.
    """
    p = instance.meshes
    rounds = max(2 * p - 1, instance.microbatches)

    def phases(d: int) -> list[Phase]:
        warm = 2 * (p - d) - 1 + d  # forwards of the first stage before the steady phase
        return [
            (2 * (p - d) - 1, "F0"),
            (d, "F1 F0"),
            (p - d, "F1 B1 W1"),
            (rounds - warm, "F0 B0 W0 F1 B1 W1"),
            (warm - p, "B0 W0 F1 B1 W1"),
            (d, "B0 B1"),
            (p - d, "B0 W0"),
            (d, "W1"),
            (d, "W0"),
        ]

    return _by_phases(instance, "ZB-V", phases)


def dualpipe_v(instance: Instance) -> Order:
    """DualPipe-V (https://github.com/deepseek-ai/DualPipe), for at least 2 p microbatches.

    Its pairs of a forward and a backward that share their time are run one after the other here.
    """
    p, m = instance.meshes, instance.microbatches
    if m < 2 * p:
        raise ScheduleError("DualPipe-V", [f"{m} microbatches are less than twice the {p} meshes"])

    def phases(d: int) -> list[Phase]:
        rest = p - d - 1
        half = (d + 1) // 2  # backwards after which W is kept for later
        return [
            (2 * rest, "F0"),
            (d + 1, "F0 F1"),
            (rest, "B1 W1 F1"),
            (m - 2 * p + d + 1, "F0 BW1 F1 BW0"),
            (rest, "BW1 F1 BW0"),
            (half, "BW1 BW0"),
            (d + 1 - half, "B1 B0"),
            (rest, "W B0"),
            (2 * (d + 1 - half), "W"),
        ]

    return _by_phases(instance, "DualPipe-V", phases)


def _by_phases(instance: Instance, what: str, phases: Callable[[int], list[Phase]]) -> Order:
    p = instance.meshes
    if faults := vee_faults(instance):
        raise ScheduleError(what, faults)
    return tuple(_laid_out(instance, phases(d), (d, 2 * p - 1 - d)) for d in range(p))


def _laid_out(instance: Instance, phases: list[Phase], stages: tuple[int, int]) -> tuple[Task, ...]:
    """The tasks of one mesh; those of microbatches beyond the last are left out."""
    done: dict[str, int] = {}
    waiting: list[tuple[int, int]] = []  # stage and microbatch whose B ran and whose W did not
    tasks = []
    for times, group in phases:
        for _ in range(times):
            for word in group.split():
                if word == "W":  # the oldest that waits
                    stage, microbatch = waiting.pop(0)
                    tasks.append(Task("W", stage, microbatch))
                    continue
                kind: Kind = word[:-1]  # pyright: ignore[reportAssignmentType]
                stage = stages[int(word[-1])]
                counter = f"{kind[0]}{stage}"
                microbatch = done.get(counter, 0)
                done[counter] = microbatch + 1
                tasks.append(Task(kind, stage, microbatch))
                if kind == "B":
                    waiting.append((stage, microbatch))
                elif kind == "W":
                    waiting.remove((stage, microbatch))
    return tuple(task for task in tasks if task.microbatch < instance.microbatches)
