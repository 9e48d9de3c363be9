"""What a step waits for its collectives, in the order in which the compiler runs a plan.

Two streams, as in the timeline of a compiled module (`autoshard.compiler.hlo.timeline`): kernels
take the one in their order; a collective that begins takes the other as soon as that is free, and
its end waits for it. A loop has an order of its own, and begins when the collectives before it are
done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autoshard.plan.evaluate import op_seconds
from autoshard.program.graph import Region
from autoshard.xla.forecast.planned_collectives import Decided
from autoshard.xla.kernel_orders import Kernel
from autoshard.xla.latency_hiding import Role, Task


@dataclass(frozen=True, slots=True)
class Run:
    """How one region runs.

    Attributes:
      kernels: of the region, by number.
      tasks: in their order; their contents are numbers of kernels.
      flights: by task that begins a collective, the seconds it takes.
    """

    kernels: Sequence[Kernel]
    tasks: Sequence[Task]
    flights: Mapping[Task, float]


def waited_seconds(
    decided: Decided, runs: Mapping[int, Run], *, one_at_a_time: bool = True
) -> float:
    """Seconds of a step in which no kernel runs since all wait for collectives.

    Args:
      decided: the plan.
      runs: by region.
      one_at_a_time: whether a collective begins when the one before it has ended.
    """
    return _of_region(decided, runs, decided.prices.program.regions[0], one_at_a_time)[1]


def _of_region(
    decided: Decided, runs: Mapping[int, Run], region: Region, one_at_a_time: bool
) -> tuple[float, float]:
    """Seconds of one run of a region, and those of them in which it waits."""
    run = runs[region.index]
    now = waited = free = 0.0
    done: dict[Task, float] = {}
    for task in run.tasks:
        for number in task.kernels:
            kernel = run.kernels[number]
            if kernel.inner is None:
                now += _kernel_seconds(decided, kernel)
                continue
            seconds, waits = _of_region(decided, runs, kernel.inner, one_at_a_time)
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
    return now, waited


def _kernel_seconds(decided: Decided, kernel: Kernel) -> float:
    prices, decisions = decided.prices, decided.decisions
    return sum(
        op_seconds(prices, op, decided.chosen(op)) * op.weight
        for op in prices.program.ops[kernel.first : kernel.last]
        if decisions.assignment[op.index] is not None
    )
