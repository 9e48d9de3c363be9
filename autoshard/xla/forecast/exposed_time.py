"""Compute the exposed communication of a step, in the order in which the compiler runs a plan.

The model has two streams, as in the timeline of a compiled module
(`autoshard.compiler.hlo.timeline`). Kernels run on one stream, in order. A collective starts on the
other stream at its begin, as soon as that stream is free. Its end blocks the first stream until the
collective is done. A loop has an order of its own, and starts when the collectives before it are
done.

Transfers to the host's memory and from it have a stream for each direction, beside the others. One
starts as soon as its array is there and its stream is free. Kernels wait for what comes from the
host, and for all else at the end of the region.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autoshard.cost.transfers import HostLink
from autoshard.plan.evaluate import op_seconds
from autoshard.plan.transfers import seconds_of_transfers
from autoshard.program.graph import Region
from autoshard.xla.forecast.planned_collectives import Decided
from autoshard.xla.kernel_orders import Kernel
from autoshard.xla.latency_hiding import Role, Task


@dataclass(frozen=True, slots=True)
class Run:
    """The schedule of one region.

    Attributes:
      kernels: the kernels of the region, by number.
      tasks: the tasks in their order; each lists the numbers of its kernels.
      flights: by task that begins a collective, the seconds that the collective takes.
    """

    kernels: Sequence[Kernel]
    tasks: Sequence[Task]
    flights: Mapping[Task, float]


def waited_seconds(
    decided: Decided, runs: Mapping[int, Run], *, one_at_a_time: bool = True
) -> float:
    """Return the seconds of a step in which kernels wait for collectives and none runs.

    Args:
      decided: the plan.
      runs: the schedule of each region, by region index.
      one_at_a_time: whether a collective begins only after the previous one has ended.
    """
    seconds = seconds_of_transfers(decided.prices, decided.decisions)
    first = decided.prices.program.regions[0]
    return _of_region(decided, runs, first, one_at_a_time, seconds)[1]


def _of_region(
    decided: Decided,
    runs: Mapping[int, Run],
    region: Region,
    one_at_a_time: bool,
    transfers: Mapping[int, float],
) -> tuple[float, float]:
    """Return the seconds of one run of a region, and how many of them are spent waiting."""
    run, ops = runs[region.index], decided.prices.program.ops
    values, link = decided.prices.program.values, HostLink()
    now = waited = free = 0.0
    done: dict[Task, float] = {}
    for task in run.tasks:
        for number in task.kernels:
            kernel = run.kernels[number]
            if kernel.inner is None:
                op = ops[kernel.first]
                if op.index in transfers:
                    source = values[op.inputs[0]].producer if op.inputs[0] >= 0 else -1
                    until = link.send(op, source, transfers[op.index])
                    if op.primitive == "from_host" and until > now:
                        waited, now = waited + until - now, until
                    continue
                now += _kernel_seconds(decided, kernel)
                if transfers:
                    link.made.update(dict.fromkeys(range(kernel.first, kernel.last), now))
                continue
            seconds, waits = _of_region(decided, runs, kernel.inner, one_at_a_time, transfers)
            times = kernel.inner.trips / region.trips
            start = max(now, free) if task.role is Role.LOOP else now
            waited += start - now + waits * times
            now = start + seconds * times
        if task.role is Role.BEGIN:
            done[task] = (max(now, free) if one_at_a_time else now) + run.flights[task]
            free = max(free, done[task])
        elif task.role is Role.END:
            ready = max((done[one] for one in task.before if one in done), default=now)
            waited += max(ready - now, 0.0)
            now = max(ready, now)
    end = link.end(now)
    return end, waited + end - now


def _kernel_seconds(decided: Decided, kernel: Kernel) -> float:
    prices, decisions = decided.prices, decided.decisions
    return sum(
        op_seconds(prices, op, decided.chosen(op)) * op.weight
        for op in prices.program.ops[kernel.first : kernel.last]
        if decisions.assignment[op.index] is not None
    )
