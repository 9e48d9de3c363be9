"""Build the dependency graph of the kernels and collectives of one computation of a plan.

Kernels become tasks, and kernels that run as one (`autoshard.xla.fusion_siblings`) share a task. A
collective becomes two tasks, its begin and its end. The graph also models what XLA does with
gradients:

* A scatter onto zeros whose result is added to an array starts from that array and so waits for it.
  For a table that is both looked up and multiplied with, the two gradients become one.
* The convolution that computes the error of a layer's input waits until the optimizer has updated
  the layer's weight (`autoshard.xla.early_updates`; called a renewal in the code).
* An array whose sent blocks are not contiguous is rewritten first, unless the elementwise kernel
  that computes it writes it in that order.
* Where a library computes products, the gradient of a pool is scattered to the positions of the
  largest elements. A separate kernel finds these. It waits for the pool's input only, and writes
  the elements and an index for every dimension.
* A result that cannot overwrite the input that it updates
  (`autoshard.xla.forecast.collective_dim_order`) is copied there by a task of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

import numpy as np

from autoshard.plan.evaluate import op_seconds
from autoshard.program.flops import is_matrix_op
from autoshard.program.graph import Op, Region
from autoshard.program.vocabulary import ADDITIONS
from autoshard.xla.forecast.collective_dim_order import FirstDimensions
from autoshard.xla.forecast.combine_collectives import COMBINED, Flight, combining
from autoshard.xla.forecast.event_marks import (
    CopyBegins,
    Passed,
    Passes,
    Picks,
    Replaces,
    Sent,
    SumEnds,
)
from autoshard.xla.forecast.gpu_collective_estimate import CollectiveEstimate, estimate
from autoshard.xla.forecast.loop_tasks import (
    UNKNOWN_SECONDS,
    carried,
    gather_first_turn,
    write_beside,
)
from autoshard.xla.forecast.pipelined import Pipelined
from autoshard.xla.forecast.planned_collectives import Collectives, Decided, region_read_in
from autoshard.xla.forecast.task_order import TaskOrder
from autoshard.xla.forecast.zero_cost_nodes import Views
from autoshard.xla.fusion import Fusion
from autoshard.xla.kernel_orders import Kernel
from autoshard.xla.latency_hiding import Role, Task

HIGH_COST, MEDIUM_COST = 5e-3, 1e-3
"""Seconds that XLA:TPU estimates for a product and for any other kernel, in its unit of a
microsecond: `ApproximateLatencyEstimator` in `xla/service/latency_hiding_scheduler.h`."""
INDEX_BYTES = 4
"""Bytes of an index, and of the element stored with it."""
HIDDEN = {
    "all_gather": "gpu.gathers-hidden",
    "all_reduce": "gpu.sums-hidden",
    "reduce_scatter": "gpu.sums-hidden",
}
"""For each kind of collective, the habit by which kernels run concurrently with it."""


class TaskGraph:
    """The tasks of one region: its kernels, and a begin and an end for each collective.

    Attributes:
      tasks: the task of every kernel; kernels that run as one share a task.
      flights: the collectives; `CopyBegins` and `SumEnds` are contents of their tasks.
      replaced: by value, the task that copies it over the input that it updates.
      picking: the tasks that find where gradients of pools are scattered to.
      stacked: the no-ops that wait for what is written into stacks beside other kernels.
    """

    def __init__(
        self,
        decided: Decided,
        fusion: Fusion,
        beside: Collection[int],
        region: Region,
        kernels: Sequence[Kernel],
        pipelined: Pipelined,
    ) -> None:
        self.decided, self.fusion, self.beside = decided, fusion, beside
        self.pipelined = pipelined
        self.region, self.kernels = region, kernels
        self.program, self.chip = decided.prices.program, decided.prices.machine.chip
        self.own = own = self.chip.compiler
        self.has_fixed_costs = own.has("tpu.fixed-costs-of-kernels")
        self.combined = {kind for kind in COMBINED if not own.denies(*combining(kind, region))}
        self.tasks = [self._task(number, kernel) for number, kernel in enumerate(kernels)]
        self.maker = {
            output: number
            for number, kernel in enumerate(kernels)
            for op in self.program.ops[kernel.first : kernel.last]
            for output in op.outputs
        }
        self.flights: list[Flight] = []
        self.settled: dict[int, Task] = {}
        self.copied: dict[int, list[tuple[frozenset[int], Task]]] = {}
        self.replaced: dict[int, Task] = {}
        self.picking: list[Task] = []
        self.stacked: list[Task] = []
        self.first = FirstDimensions(decided.prices, decided.decisions, fusion, decided.chosen)
        self.views = Views(
            self.program,
            kernels,
            self.tasks,
            self.maker,
            library=own.has("gpu.products-are-calls"),
            counted=not own.denies("gpu.waits-counted-in-views"),
        )
        for number, kernel in enumerate(kernels):
            self._add_sum(number, kernel)
        for value in self.program.values:
            if region_read_in(self.program, value.index) == region.index:
                self._add_copies(value.index)
        for number, kernel in enumerate(kernels):
            for op in self.program.ops[kernel.first : kernel.last]:
                self._read(op, number)
            if kernel.inner is not None:
                gather_first_turn(self, kernel.inner, self.tasks[number])
        for kernel in kernels:
            self._start_from(kernel)
            self._wait(kernel)
            self._pick(kernel)
            self._replace(kernel)
            write_beside(self, kernel)
        self._join()
        self.views.settle()

    def _read(self, op: Op, number: int) -> None:
        """Make a kernel depend on the operands of one of its ops."""
        for position, value in enumerate(op.inputs):
            makers = list(self._makers(op.index, (value,), number))
            if self.views.is_product(op) and position < len(op.rule.operands):
                makers = self.views.operand(op, position, makers)
            for one in makers:
                self.tasks[number].reads(one)

    def results(self) -> list[Task]:
        """Return the tasks that nothing in the region reads: a loop's carries, then the rest."""
        waits = set(self.stacked)
        ends = [number for number, task in enumerate(self.tasks) if waits.issuperset(task.after)]
        primitive = [self.program.ops[kernel.first].primitive for kernel in self.kernels]
        return [self.tasks[k] for k in sorted(ends, key=lambda k: (primitive[k] != "yield", k))]

    def _start_from(self, kernel: Kernel) -> None:
        """Make a scatter onto zeros depend on the array that its result is added to.

        XLA scatters onto the array instead of zeros and drops the addition. An array that is not
        materialised is written for that.
        """
        if self.own.denies("gpu.scatters-start-from-terms", "tpu.scatters-start-from-products"):
            return
        op = self.program.ops[kernel.first]
        filled = self.decided.prices.is_filled(op)
        if kernel.inner is not None or op.primitive != "scatter-add" or not filled:
            return
        result = op.outputs[0]
        readers = self.decided.prices.dataflow.readers[result]
        if len(readers) != 1 or result in self.settled or result in self.copied:
            return
        addition = self.program.ops[readers[0].op]
        if addition.primitive in ADDITIONS and addition.region == self.region.index:
            number = self.maker[result]
            for value in addition.inputs:
                if value != result:
                    makers = list(self._makers(addition.index, (value,), number))
                    self._wait_for(number, makers, self._written(addition, value))

    def _wait(self, kernel: Kernel) -> None:
        """Make the convolution of an error depend on the optimizer update of its weight."""
        renewal = self.decided.renewal(self.program.ops[kernel.first])
        if renewal is not None and kernel.inner is None:
            number = self.maker[self.program.ops[renewal.error].outputs[0]]
            for result in renewal.results:
                self._wait_for(number, [self.views.made(result)])

    def _wait_for(self, number: int, makers: Sequence[Task], through: Task | None = None) -> bool:
        """Make a kernel wait for more tasks, if none of them depends on it; return whether it does.

        `through` is a task between the kernel and those that it waits for.
        """
        task = self.tasks[number]
        if any(one.needs(task) for one in makers):
            return False
        for one in makers:
            (through or task).reads(one)
        if through:
            task.reads(through)
        return True

    def _pick(self, kernel: Kernel) -> None:
        """Add a kernel that finds the positions to which the gradient of a pool is scattered."""
        op, decided = self.program.ops[kernel.first], self.decided
        if op.primitive != "select_and_scatter_add" or kernel.inner is not None:
            return
        if not self.own.has("gpu.pool-gradients-scatter"):
            return
        source, pooled = op.inputs
        layout = decided.chosen(op).reads[0]
        elements = float(decided.prices.local_bytes(source, layout)[0])
        elements /= self.program.values[source].itemsize
        arrays = 1 + len(self.program.values[source].shape)
        size = INDEX_BYTES * elements * arrays
        picks = Task(Picks(op.index, size), Role.KERNEL, size / self.chip.memory_rate)
        number = self.maker[op.outputs[0]]
        if self._wait_for(number, list(self._makers(op.index, (pooled,), number)), picks):
            self.picking.append(picks)

    def _written(self, op: Op, value: int) -> Task:
        """Return a task that writes an operand of `op`."""
        decided = self.decided
        strategy, position = decided.chosen(op), op.inputs.index(value)
        size = float(decided.prices.local_bytes(value, strategy.reads[position])[0])
        return Task(None, Role.KERNEL, size / self.chip.memory_rate)

    def _replace(self, kernel: Kernel) -> None:
        """Add tasks that copy results into the donated input that they could not overwrite."""
        for value in self.program.ops[kernel.first].outputs:
            if kernel.inner is None and value in self.beside:
                copy = self.replaced[value] = Task(Replaces(value), Role.KERNEL)
                copy.reads(self.views.made(value))

    def _join(self) -> None:
        """Merge the tasks of kernels that run as one, unless a collective stands between them."""
        number = {kernel.first: k for k, kernel in enumerate(self.kernels) if kernel.inner is None}
        order = TaskOrder([*self.tasks, *(one.end for one in self.flights)])
        for op, first in self.fusion.joined.items():
            if op not in number or first not in number:
                continue
            task, leader = self.tasks[number[op]], self.tasks[number[first]]
            if leader is task:
                continue
            own = self.views.of(leader, task)
            for view in own:
                task.before.remove(view)
                view.after.remove(task)
            if not order.merge(leader, task):
                for view in own:
                    task.reads(view)
                continue
            for kernel in leader.kernels:
                self.tasks[kernel] = leader

    def _task(self, number: int, kernel: Kernel) -> Task:
        decided, ops = self.decided, self.program.ops[kernel.first : kernel.last]
        if kernel.inner is not None:
            alone = not self.own.denies("gpu.loops-with-collectives-alone")
            stops = alone and decided.communicates(kernel.inner)
            return Task(None, Role.LOOP if stops else Role.KERNEL, kernels=(number,))
        seconds = 0.0
        if decided.decisions.assignment[kernel.first] is not None:
            seconds = op_seconds(decided.prices, ops[0], decided.chosen(ops[0]))
        role = Role.KERNEL if seconds > 0 else Role.NOTHING
        return Task(None, role, self._estimated(ops[0], seconds), kernels=(number,))

    def _estimated(self, op: Op, seconds: float) -> float:
        """Return the scheduler's estimate: no launch, full bandwidth; XLA:TPU: a fixed cost."""
        product = is_matrix_op(op.primitive)
        if seconds > 0 and self.has_fixed_costs:
            return HIGH_COST if product else MEDIUM_COST
        if product or not self.own.has("gpu.kernels-at-full-bandwidth"):
            return seconds
        if seconds > 0 and op.index not in self.fusion.joined:
            seconds = max(seconds - self.chip.launch_seconds, 0.0)
        return seconds * self.chip.memory_efficiency

    def _add_sum(self, number: int, kernel: Kernel) -> None:
        op = self.program.ops[kernel.first]
        found = self.decided.of_sum(op) if kernel.inner is None else None
        if found is None:
            return
        scalar = not any(self.program.values[output].shape for output in op.outputs)
        unseen = scalar and not self.own.denies("gpu.scalar-sums-take-no-time")
        if unseen and self._in_a_host(found):
            found = found._replace(seconds=0.0)
        begin, end = Task(None, Role.BEGIN), Task(SumEnds(op.index), Role.END)
        moved = self.pipelined.sums_behind(op)
        for one in [carried()] if moved else map(self.views.made, op.outputs):
            begin.reads(one)
        self.add_flight(begin, end, found, op.outputs[0], moved=moved)
        self.settled.update(dict.fromkeys(op.outputs, end))

    def _in_a_host(self, found: Collectives) -> bool:
        """Whether collectives stay on the innermost level of the network."""
        pieces = self.decided.prices.topology.pieces
        return all(
            piece.level == 0 for _, axes in found.kinds for axis in axes for piece in pieces[axis]
        )

    def _add_copies(self, value: int) -> None:
        steps = self.decided.steps_of_copy(value)
        if not steps:
            return
        for life, readers in enumerate(self.decided.served(value)):
            if readers:
                served = frozenset(use.op for use in readers)
                moved = self.pipelined.gathers_ahead(self.region, value, life, steps)
                made = self._steps(value, life, steps, moved=moved)
                made = carried() if moved else made
                self.copied.setdefault(value, []).append((served, made))

    def _steps(self, value: int, life: int, steps: Sequence[Collectives], *, moved: bool) -> Task:
        """Add the collectives that make one copy, in sequence; return the end of the last one."""
        end = passes = None
        for number, step in enumerate(steps):
            begin = Task(CopyBegins(value, life), Role.BEGIN)
            if end is None:
                self._send(value, begin)
            else:
                begin.reads(end)
            end = Task(Passed(passes) if passes else Sent(value, life), Role.END)
            if number < len(steps) - 1:
                begin.content = passes = Passes(value, life, number, step.bytes)
            self.add_flight(begin, end, step, value, moved=moved)
        assert end is not None
        return end

    def _send(self, value: int, begin: Task) -> None:
        """Make the first collective depend on its value, written in the order of sending."""
        first = begin
        if self.first.is_sent(value) and not self.is_elementwise(value):
            first = self._turned(value)
            sent = Task(None, Role.NOTHING, 0.0)
            sent.reads(first)
            begin.reads(sent)
        for source in self.fusion.sources[value]:
            if source in self.maker or self.program.values[source].producer < 0:
                first.reads(self.there(source))

    def is_elementwise(self, value: int) -> bool:
        """Whether an elementwise op makes a value, and no collective sums it."""
        producer = self.program.values[value].producer
        return producer >= 0 and self.fusion.elementwise[producer] and value not in self.settled

    def _turned(self, value: int) -> Task:
        """Return a task that rewrites a value in the order in which it is sent."""
        decided = self.decided
        size = float(decided.prices.local_bytes(value, np.array(decided.decisions.stored[value])))
        return Task(None, Role.KERNEL, 2 * size / self.chip.memory_rate)

    def add_flight(
        self, begin: Task, end: Task, found: Collectives, value: int, *, moved: bool = False
    ) -> None:
        """Add a collective of a value: what it sends, or sums; in another turn if it is `moved`."""
        topology = self.decided.prices.topology
        fixed = sum(topology.rate(kind, axes).latency_seconds for kind, axes in found.kinds)
        fixed = min(fixed, found.seconds)
        estimated = CollectiveEstimate(UNKNOWN_SECONDS, 0.0)
        if not self.has_fixed_costs:
            estimated = estimate(topology, found) or CollectiveEstimate(found.seconds, fixed)
        begin.latency = estimated.seconds
        end.reads(begin)
        kinds = {kind for kind, _ in found.kinds}
        dtype = self.program.values[value].dtype
        kin = (type(begin.content), found.kinds, dtype, moved) if kinds <= self.combined else None
        copied = 2 * found.bytes / self.chip.memory_rate if kinds == {"all_reduce"} else None
        hidden = not self.own.denies(*(HIDDEN[kind] for kind in kinds if kind in HIDDEN))
        what = found.bytes, found.seconds, fixed, estimated.fixed
        self.flights.append(Flight(begin, end, *what, kin, copied, hidden))

    def there(self, value: int) -> Task:
        """Return the task after which a value that a kernel of the region computes is ready."""
        return self.settled.get(value) or self.views.made(value)

    def _makers(self, op: int, values: Iterable[int], number: int) -> Iterator[Task]:
        """Yield the tasks that an op of a kernel depends on, seen through the ops fused into it."""
        stack = [(op, value) for value in values]
        seen = set[int]()
        while stack:
            op, value = stack.pop()
            served = [end for ops, end in self.copied.get(value, ()) if op in ops]
            if served:
                yield from served
            elif value in self.maker:
                if self.maker[value] != number:
                    yield self.there(value)
            elif value >= 0 and self.program.values[value].producer < 0:
                yield self.views.made(value)
            elif value >= 0:
                producer = self.program.values[value].producer
                fused = producer >= 0 and self.program.ops[producer].region == self.region.index
                if fused and producer not in seen:
                    seen.add(producer)
                    stack += [(producer, one) for one in self.program.ops[producer].inputs]
