"""Tasks that loops add to a schedule: gathers before them, and stacks that are written beside.

Where collectives run in another turn than the one that needs them
(`autoshard.xla.forecast.pipelined`), a loop waits for what its first turn needs. Sums of the last
turn behind the loop are not counted apart; those of all other turns are.

What a turn only copies into a stack XLA:GPU writes beside other kernels. It has no time for such a
copy, and schedules it as a collective of which it knows nothing. So kernels whose results are
stacked run early in a turn, and collectives that depend on none of them find little to run beside.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autoshard.program.graph import Region
from autoshard.xla.forecast.event_marks import FirstTurn
from autoshard.xla.forecast.planned_collectives import region_read_in
from autoshard.xla.kernel_orders import Kernel
from autoshard.xla.latency_hiding import Role, Task

if TYPE_CHECKING:
    from autoshard.xla.forecast.task_graph import TaskGraph

UNKNOWN_SECONDS = 5e-3
"""From the begin of what runs beside kernels to its end, where XLA:GPU knows nothing of it:
`ApproximateLatencyEstimator` in `xla/service/latency_hiding_scheduler.h`."""


def carried() -> Task:
    """Return what a turn of a loop finds of the turn before: nothing has to run for it."""
    return Task(None, Role.NOTHING, 0.0)


def gather_first_turn(graph: TaskGraph, loop: Region, task: Task) -> None:
    """Gather before a loop what its first turn reads of what is gathered a turn ahead."""
    ops = graph.program.ops[loop.start : loop.stop]
    for value in sorted({output for op in ops for output in op.outputs}):
        if region_read_in(graph.program, value) != loop.index:
            continue
        steps = graph.decided.steps_of_copy(value)
        given = graph.pipelined.gathered_of(loop, value, steps)
        lives = enumerate(graph.decided.served(value) if given else ())
        for life in (number for number, readers in lives if readers):
            before = [graph.there(one) for one in sorted(given)]
            for number, step in enumerate(steps):
                begin, end = Task(None, Role.BEGIN), Task(None, Role.END)
                begin.content = None if number else FirstTurn(value, life)
                for one in before:
                    begin.reads(one)
                graph.add_flight(begin, end, step, value)
                before = [end]
            task.reads(before[0])


def write_beside(graph: TaskGraph, kernel: Kernel) -> None:
    """Have what is only copied into a stack written beside other kernels, as XLA:GPU reckons."""
    op = graph.program.ops[kernel.first]
    if op.primitive != "scan_stack" or kernel.inner is not None:
        return
    if not graph.own.denies("gpu.stacks-written-in-turn"):
        return
    value = op.inputs[0]
    readers = graph.decided.prices.dataflow.readers[value]
    copied = len(readers) > 1 or not graph.is_elementwise(value)
    if copied and graph.fusion.materialised[value]:
        start, done = graph.tasks[graph.maker[op.outputs[0]]], carried()
        start.latency = UNKNOWN_SECONDS
        done.reads(start)
        graph.stacked.append(done)
