"""Which neighbours of an order become one program: fewer dispatches, and what that delays.

A merged program starts when all that its tasks read has come, and what it makes is there at its
end. A rule says which neighbours of a mesh are merged, as in Shardy:MPMD: a predicate over two
fragments, or the tasks of each merge. Without a rule they are merged where it pays:

    step = max(makespan, sum over meshes of programs x seconds to dispatch one)

as one controller enqueues all programs, ahead of the meshes as long as it is quick enough. F, B and
W of one microbatch are merged, stage by stage, where that makes the step no longer: always the last
stage's forward with the backward that follows it, for which nobody else waits.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence

from autoshard.solve.schedule.comparators import Comparator, Fragment
from autoshard.solve.schedule.faults import ScheduleError
from autoshard.solve.schedule.instance import Instance, Number
from autoshard.solve.schedule.task import Order, Task
from autoshard.solve.schedule.timeline import simulate

SAME = 1e-9
"""Times that differ by no larger share are equal."""

Merge = tuple[Task, ...]
"""Tasks that follow each other on a mesh and become one program."""

MergeRule = Comparator | Sequence[Sequence[Task]]
"""Whether two neighbours of a mesh are merged; or the merges."""


def forward_with_backward(stage: int) -> Comparator:
    """The rule that merges a stage's forward with the backward of the same microbatch after it."""

    def rule(left: Fragment, right: Fragment) -> bool:
        same = (left.stage, left.microbatch) == (right.stage, right.microbatch)
        return same and left.stage == stage and (left.transpose, right.transpose) == (0, 1)

    return rule


def merges_by(rule: MergeRule, order: Order) -> tuple[Merge, ...]:
    """The merges that a rule asks for.

    Raises:
      ScheduleError: tasks that are not in the order, not of one mesh, in several merges, or that do
        not follow each other; names all of them.
    """
    if callable(rule):
        return _merges_of(rule, order)
    merges = tuple(tuple(Task(*task) for task in merge) for merge in rule)
    faults = [fault for merge in merges for fault in _faults(merge, order)]
    counts: dict[Task, int] = {}
    for task in itertools.chain.from_iterable(merges):
        counts[task] = counts.get(task, 0) + 1
    faults += [f"{task} is in {count} merges" for task, count in counts.items() if count > 1]
    if faults:
        raise ScheduleError("these merges", faults)
    return tuple(merge for merge in merges if len(merge) > 1)


def enqueued(order: Order, merges: Sequence[Merge], dispatch: Sequence[Number]) -> Number:
    """When the controller has enqueued all programs.

    Args:
      dispatch: of one program, by mesh; none: it takes no time.
    """
    inside = {task for merge in merges for task in merge[1:]}
    counts = [sum(task not in inside for task in row) for row in order]
    return sum(n * spent for n, spent in zip(counts, dispatch, strict=True)) if dispatch else 0


def paying_merges(
    instance: Instance, order: Order, *, dispatch: Sequence[Number] = ()
) -> tuple[Merge, ...]:
    """The merges of one microbatch's neighbours that make the step no longer.

    Args:
      instance: the schedule problem of the order.
      dispatch: of the controller for one program, by mesh, in the instance's unit of time; none: it
        takes no time.
    """
    known: tuple[Merge, ...] = ()

    def prices(merges: Sequence[Merge]) -> tuple[Number, Number]:
        makespan = _makespan(instance, order, merges)
        return max(makespan, enqueued(order, merges, dispatch)), makespan

    best = prices(known)
    chosen: set[tuple[int, str, str]] = set()
    for group in _kinds_of_neighbours(order):
        tried = chosen | {group}
        merges = tuple(
            merge
            for row in order
            for merge in _chains(row, lambda a, b, tried=tried: _neighbours(a, b) in tried)
        )
        found = prices(merges)
        shorter = found[0] < best[0] * (1 - SAME)
        if shorter or all(a <= b * (1 + SAME) < math.inf for a, b in zip(found, best, strict=True)):
            chosen, known, best = tried, merges, found
    return known


def _merges_of(rule: Comparator, order: Order) -> tuple[Merge, ...]:
    merges: list[Merge] = []
    for mesh, tasks in enumerate(order):

        def together(left: Task, right: Task, mesh: int = mesh) -> bool:
            return rule(Fragment.of(left, mesh), Fragment.of(right, mesh))

        merges += _chains(tasks, together)
    return tuple(merges)


def _neighbours(left: Task, right: Task) -> tuple[int, str, str] | None:
    """What sort of neighbours two tasks are; None unless they are of one stage and microbatch."""
    if left[1:] != right[1:]:
        return None
    return left.stage, left.kind, right.kind


def _kinds_of_neighbours(order: Order) -> list[tuple[int, str, str]]:
    pairs = (_neighbours(a, b) for row in order for a, b in itertools.pairwise(row))
    return sorted({pair for pair in pairs if pair is not None}, reverse=True)


def _chains(tasks: Iterable[Task], together: Callable[[Task, Task], bool]) -> list[Merge]:
    """The longest runs of neighbours, each of which is merged with the one before it."""
    chains: list[list[Task]] = []
    for task in tasks:
        if chains and together(chains[-1][-1], task):
            chains[-1].append(task)
        else:
            chains.append([task])
    return [tuple(chain) for chain in chains if len(chain) > 1]


def _faults(merge: Merge, order: Order) -> list[str]:
    places = {task: (mesh, at) for mesh, row in enumerate(order) for at, task in enumerate(row)}
    missing = [f"{task} is not a task of the order" for task in merge if task not in places]
    if missing:
        return missing
    faults = []
    for left, right in itertools.pairwise(merge):
        (a, start), (b, stop) = places[left], places[right]
        if a != b:
            faults.append(f"{left} is on mesh {a} and {right} on mesh {b}")
        elif stop <= start:
            faults.append(f"{left} runs after {right} on mesh {a}")
        elif stop > start + 1:
            between = ", ".join(map(str, order[a][start + 1 : stop]))
            faults.append(f"between {left} and {right} mesh {a} runs {between}")
    return faults


def _makespan(instance: Instance, order: Order, merges: Sequence[Merge]) -> Number:
    """When the last task ends; infinity where merged tasks wait for each other."""
    try:
        return simulate(instance, order, limited=False, merges=merges).makespan
    except ScheduleError:
        return math.inf
