"""Compute the exposed communication of a step, in the order in which the compiler runs a plan.

The model has two streams, as in the timeline of a compiled module
(`autoshard.compiler.hlo.timeline`). Kernels run on one stream, in order. A collective starts on the
other stream at its begin, as soon as that stream is free. Its end blocks the first stream until the
collective is done. A loop has an order of its own, and starts when the collectives before it are
done.

Transfers to the host's memory and from it have a stream for each direction, beside the others. One
starts as soon as its array is there and its stream is free. Kernels wait for what comes from the
host where they read it, and for all else at the end of the region; meanwhile they have less of the
device's memory (`autoshard.cost.transfers.memory_share`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from autoshard.cost.transfers import HostLink, memory_share
from autoshard.machine.host import Direction
from autoshard.plan.evaluate import op_seconds
from autoshard.plan.transfers import seconds_of_transfers
from autoshard.program.graph import Op, Region
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
      ahead: of those, what a turn of a loop takes for the next one (`pipelined`), which the last
        turn does not.
    """

    kernels: Sequence[Kernel]
    tasks: Sequence[Task]
    flights: Mapping[Task, float]
    ahead: float = 0.0


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
    coming: dict[int, float] = {}  # when values are there that come from the host
    for task in run.tasks:
        for number in task.kernels:
            kernel = run.kernels[number]
            if coming:
                ready = _arrival(ops, kernel, coming)
                waited, now = waited + max(ready - now, 0.0), max(ready, now)
            if kernel.inner is None:
                op = ops[kernel.first]
                if op.index in transfers:
                    source = values[op.inputs[0]].producer if op.inputs[0] >= 0 else -1
                    until = link.send(op, source, transfers[op.index])
                    direction = cast("Direction", op.primitive)
                    busy = transfers[op.index] * memory_share(decided.prices, direction)
                    waited, now = waited + busy, now + busy
                    if op.primitive == "from_host":
                        coming[op.outputs[0]] = until
                    continue
                now += _kernel_seconds(decided, kernel)
                if transfers:
                    made = (op.index for op in ops[kernel.first : kernel.last] if not op.boundary)
                    link.made.update(dict.fromkeys(made, now))
                continue
            seconds, waits = _of_region(decided, runs, kernel.inner, one_at_a_time, transfers)
            times = kernel.inner.trips / region.trips
            start = max(now, free) if task.role is Role.LOOP else now
            spared = min(waits, runs[kernel.inner.index].ahead)
            waited += start - now + waits * times - spared
            now = start + seconds * times - spared
        if task.role is Role.BEGIN:
            done[task] = (max(now, free) if one_at_a_time else now) + run.flights[task]
            free = max(free, done[task])
        elif task.role is Role.END:
            ready = max((done[one] for one in task.before if one in done), default=now)
            waited += max(ready - now, 0.0)
            now = max(ready, now)
    end = link.end(now)
    return end, waited + end - now


def _arrival(ops: Sequence[Op], kernel: Kernel, coming: Mapping[int, float]) -> float:
    """When all is there that a kernel, or the loop that it is, reads of what is `coming`."""
    inner = kernel.inner
    first, last = (kernel.first, kernel.last) if inner is None else (inner.start, inner.stop)
    read = (value for op in ops[first:last] for value in op.inputs)
    return max((coming[value] for value in read if value in coming), default=0.0)


def _kernel_seconds(decided: Decided, kernel: Kernel) -> float:
    prices, decisions = decided.prices, decided.decisions
    return sum(
        op_seconds(prices, op, decided.chosen(op)) * op.weight
        for op in prices.program.ops[kernel.first : kernel.last]
        if decisions.assignment[op.index] is not None
    )
