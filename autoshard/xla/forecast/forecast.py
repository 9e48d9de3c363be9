"""How much memory and time a plan takes in the order in which its compiler runs it.

The solver counts bytes in one order of the program, whatever is decided (`autoshard.xla.op_order`),
and lets a value and its copy lie in memory as long as anybody reads either. A compiler that hides
collectives moves kernels beside them, and which there are is the plan's: what a weight's gradient
is made of may wait for a loop to end, since a small reduction is to be hidden behind the product.
Here the kernels of every computation are put in the order of that plan
(`autoshard.xla.latency_hiding`), by what their results take on a device, with collectives that run
as one (`autoshard.xla.forecast.combine_collectives`), and the bytes are counted again:

* A copy lies in memory from where its first collective begins to its last reader, and the value
  itself until the last one that does not read the copy; but where XLA:GPU hides nothing, both as
  long as anybody reads either.
* What is scattered lies there until the last collective ends; what is gathered in several steps,
  from one to the end of the next.
* A product of the library takes its workspace.
* What is sent in blocks that do not lie one after another
  (`autoshard.xla.forecast.collective_dim_order`) is written in the order in which it is sent,
  beside the value if that is read, too.
* Where no library computes products, what is computed element by element and read by products alone
  is not written, unless the plan lays a copy of it out otherwise; slices of a stack that a loop
  converts are slices of a stack that is converted before it; some softmaxes are one kernel
  (`autoshard.xla.forecast.tpu_kernels`), some products wait for what they are added to
  (`autoshard.xla.forecast.tpu_kernels`), and some sums are made as a whole
  (`autoshard.xla.forecast.tpu_kernels`).
* What lies in the vector memory takes no room (`autoshard.xla.forecast.tpu_vector_memory`).
* What cannot lie in the place of the input that it renews lies beside it until it is copied
  (`autoshard.xla.forecast.collective_dim_order`, `autoshard.xla.early_updates`), and what a loop
  reads of gathered arrays lies there twice, in two orders, before it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from autoshard.cost.step_prices import StepPrices
from autoshard.plan.decisions import Decisions
from autoshard.plan.memory_events import UnderWay, buffer_events, occupied_bytes, op_events, passing
from autoshard.program.graph import Region
from autoshard.xla.facts import reordered
from autoshard.xla.forecast.collective_dim_order import FirstDimensions, results_beside
from autoshard.xla.forecast.combine_collectives import combine, in_post_order
from autoshard.xla.forecast.event_marks import (
    CopyBegins,
    Passed,
    Passes,
    Picks,
    Replaces,
    Sent,
    SumEnds,
)
from autoshard.xla.forecast.exposed_time import Run, waited_seconds
from autoshard.xla.forecast.planned_collectives import Decided
from autoshard.xla.forecast.task_graph import TaskGraph
from autoshard.xla.forecast.tpu_kernels import late_products, whole_sums, with_softmaxes
from autoshard.xla.forecast.tpu_vector_memory import Life, spared
from autoshard.xla.fusion import Fusion, fuse
from autoshard.xla.kernel_orders import Kernel
from autoshard.xla.latency_hiding import Task, hide
from autoshard.xla.op_order import Mark, arranged, depth_first_in_loops, least_memory


class Forecast(NamedTuple):
    """A plan in the compiler's own order.

    Attributes:
      bytes: the peak per device.
      waited_seconds: of a step, for collectives (`autoshard.xla.forecast.exposed_time`); None where
        the compiler hides none, and those that are exposed are those of the solver.
    """

    bytes: int
    waited_seconds: float | None


def forecast(prices: StepPrices, decisions: Decisions) -> Forecast | None:
    """What a plan takes in the compiler's own order.

    None where that is what the solver counts: the chip hides no collectives, has no vector memory,
    and no library computes its products.
    """
    program, chip = prices.program, prices.machine.chip
    if not chip.counts_anew:
        return None
    decided = Decided(prices, decisions)
    fusion = _fused(decided)
    beside = frozenset(results_beside(prices, decisions, fusion, decided.chosen))
    beside = beside.union(*(one.results for op in program.ops if (one := decided.renewal(op))))
    orders = _Orders(decided, fusion, beside)
    when, marks = arranged(program, fusion, orders.arrange, _sizes(prices, decisions))
    flow = replace(prices.dataflow, materialised=fusion.materialised)
    now = replace(prices, dataflow=reordered(flow, program, fusion, when))
    at_once = chip.compiler.name == "xla:gpu" and not chip.compiler.hides_collectives
    begun = {(one.value, one.life): at for one, at in marks.items() if isinstance(one, CopyBegins)}
    early = {value for value, _ in begun}
    copies, released = ({}, {}) if at_once else Decided(now, decisions).needed(early)
    flights = UnderWay(
        begun,
        {one.op: at for one, at in marks.items() if isinstance(one, SumEnds)},
        copies,
        released,
    )
    events = [
        event
        for op in program.ops
        if decisions.assignment[op.index] is not None
        for event in op_events(now, op, decided.chosen(op), flights)
    ]
    workspace = chip.compiler.workspace_bytes
    for op in program.ops:
        if op.primitive == "dot_general" and decisions.assignment[op.index] is not None:
            at = now.dataflow.when[op.index]
            events += passing(at, workspace)
    lives: list[Life] = []
    for value in program.values:
        buffer = sorted(buffer_events(now, decisions, value.index, flights).items())
        events += buffer
        if len(buffer) == 2 and now.dataflow.temporary[value.index]:  # it comes and goes once
            (start, size), (stop, _) = buffer
            if stop < now.dataflow.end:  # results of the step lie in the main memory
                lives.append(Life(start, stop, size))
    for life in spared(lives, chip.vector_memory_bytes, now.dataflow.end):
        events += [(life.start, -life.bytes), (life.stop, life.bytes)]
    for one, at in marks.items():
        if isinstance(one, Passes):
            size = one.bytes * now.scratch_factor
            events += [(at, size), (marks[Passed(one)], -size)]
        if isinstance(one, Picks):
            size = one.bytes * now.scratch_factor
            events += [(at, size), (now.dataflow.when[one.op] + 1, -size)]
    copied = {one.value: at for one, at in marks.items() if isinstance(one, Replaces)}
    events += _waiting(now, decisions, beside, copied)
    first = FirstDimensions(now, decisions, fusion, decided.chosen)
    sent = {(one.value, one.life): at for one, at in marks.items() if isinstance(one, Sent)}
    events += _beside_sent(now, decided, first, sent)
    waited = None
    if chip.compiler.name == "xla:gpu":
        events += _put_in_order(now, decisions, first)
        events += _beside_scattered(now, decided, first)
        waited = waited_seconds(decided, orders.runs) if orders.runs else None
    else:
        events += _converted_before(now, decisions)
        events += whole_sums(now, decided, flights)
    return Forecast(round(float(occupied_bytes(now, events).max())), waited)


def _sizes(prices: StepPrices, decisions: Decisions) -> list[float]:
    """Bytes of every value on a device, or of its copy if that takes more."""
    found: list[float] = []
    for value in prices.program.values:
        layouts = decisions.stored[value.index], decisions.copy[value.index]
        sizes = [
            prices.local_bytes(value.index, np.array(one)) for one in layouts if one is not None
        ]
        found.append(float(max(sizes)) if sizes else float(value.bytes))
    return found


def _fused(decided: Decided) -> Fusion:
    """What is fused in this plan: with products, too, if the compiler makes these.

    Partial sums that are settled are written for that, whatever they are fused with elsewhere.
    """
    prices, decisions = decided.prices, decided.decisions
    chip = prices.machine.chip
    if chip.compiler.name == "xla:gpu":
        ops = (op for op in prices.program.ops if decided.of_sum(op))
        return fuse(prices.program, chip, written={output for op in ops for output in op.outputs})
    into_products = {v for v, copy in enumerate(decisions.copy) if copy is None}
    late = frozenset(late_products(decided))
    return with_softmaxes(prices.program, chip, into_products, decisions, prices.mesh_shape, late)


def _converted_before(prices: StepPrices, decisions: Decisions) -> Iterator[tuple[int, float]]:
    """Points and bytes of stacks that are converted as a whole before the loop that slices them.

    Copies of stacks that are narrower are converted already.
    """
    program, narrowed = prices.program, prices.dataflow.narrowed
    for value, one in prices.dataflow.slices.items():
        stack, layout = program.values[one.stack], decisions.stored[value]
        if one.stack in narrowed and decisions.copy[one.stack] is not None:
            continue
        if program.values[value].itemsize < stack.itemsize and layout is not None:
            size = stack.shape[0] * prices.scratch_bytes(value, layout)
            yield one.start, size
            yield one.stop, -size


def _waiting(
    prices: StepPrices, decisions: Decisions, beside: Collection[int], copied: Mapping[int, int]
) -> Iterator[tuple[int, float]]:
    """Points and bytes of results `beside` their places, where each is `copied` or at once."""
    when = prices.dataflow.when
    for value in beside:
        layout = decisions.stored[value]
        if layout is not None:
            size = prices.scratch_bytes(value, layout)
            made = when[prices.program.values[value].producer]
            yield made, size
            yield max(copied.get(value, made), made + 1), -size


def _put_in_order(
    prices: StepPrices, decisions: Decisions, first: FirstDimensions
) -> Iterator[tuple[int, float]]:
    """Points and bytes of what is gathered and put in order for a loop, one after the other."""
    when: dict[int, int] = {}
    for op in prices.program.ops:
        if first.is_put_in_order(op):
            at = prices.dataflow.when[op.index]
            when[op.inputs[0]] = min(at, when.get(op.inputs[0], at))
    for value, at in when.items():
        layout = decisions.copy[value]
        assert layout is not None
        yield from passing(at, prices.scratch_bytes(value, layout))
    for value, one in prices.dataflow.slices.items():
        layout = decisions.stored[one.stack]
        if layout is not None and first.is_stacked_otherwise(value):
            at = prices.dataflow.when[prices.program.values[value].producer]
            yield from passing(at, prices.scratch_bytes(one.stack, layout))


def _beside_sent(
    prices: StepPrices,
    decided: Decided,
    first: FirstDimensions,
    sent: Mapping[tuple[int, int], int],
) -> Iterator[tuple[int, float]]:
    """Points and bytes of values in the order in which they are `sent`, beside the values."""
    program, when = prices.program, prices.dataflow.when
    for (value, life), at in sent.items():
        served = {(use.op, use.position) for use in decided.served(value)[life]}
        others = [u for u in prices.dataflow.readers[value] if (u.op, u.position) not in served]
        if not others or not first.is_sent(value):
            continue
        producer = program.values[value].producer
        layout = decided.decisions.stored[value]
        assert layout is not None
        size = prices.scratch_bytes(value, layout)
        yield min(when[producer] if producer >= 0 else at, at), size
        yield at, -size


def _beside_scattered(
    prices: StepPrices, decided: Decided, first: FirstDimensions
) -> Iterator[tuple[int, float]]:
    """Points and bytes of products in the order in which they are scattered, beside themselves.

    They are put in order after the library is done with its workspace, and before they become what
    they are scattered into, which both count at that point, too.
    """
    for op in prices.program.ops:
        if op.primitive == "dot_general" and first.is_scattered_otherwise(op):
            at = prices.dataflow.when[op.index]
            strategy, product = decided.chosen(op), op.outputs[0]
            size = prices.scratch_bytes(product, strategy.written[0][0])
            others = prices.scratch_bytes(product, strategy.stored[0][0])
            others += prices.machine.chip.compiler.workspace_bytes
            yield from passing(at, max(size - others, 0.0))


@dataclass(frozen=True, slots=True)
class _Orders:
    """Orders of the computations of a program under decisions."""

    decided: Decided
    fusion: Fusion
    beside: Collection[int]
    runs: dict[int, Run] = field(default_factory=dict)

    def arrange(self, region: Region, kernels: Sequence[Kernel]) -> Iterator[int | Mark]:
        """The kernels of a region, with a mark where something begins or ends to lie in memory."""
        if self.decided.prices.machine.chip.compiler.runs_in_least_memory:
            yield from least_memory(region, kernels)
            return
        graph = TaskGraph(self.decided, self.fusion, self.beside, region, kernels)
        if not graph.flights:  # XLA leaves alone where nothing is to be hidden
            order = depth_first_in_loops(region, kernels)
            self.runs[region.index] = Run(kernels, _each_once(graph, order), {})
            yield from order
            return
        ends = [one.end for one in graph.flights]
        groups = combine(graph.flights, [*graph.results(), *graph.tasks, *ends])
        marks: dict[Task, list[Mark]] = {}
        for group in groups:
            first = group[0]
            marks[first.begin] = [Mark(c) for one in group if (c := one.begin.content) is not None]
            marks[first.end] = [Mark(c) for one in group if (c := one.end.content) is not None]
        for task in (*graph.replaced.values(), *graph.picking):
            marks[task] = [Mark(task.content)]
        before = [graph.tasks[kernel] for kernel in depth_first_in_loops(region, kernels)]
        before += graph.replaced.values()
        order = hide(in_post_order([*before, *(group[0].end for group in groups)]))
        seconds = {
            group[0].begin: sum(one.seconds for one in group) - sum(one.fixed for one in group[1:])
            for group in groups
        }
        self.runs[region.index] = Run(kernels, order, seconds)
        for task in order:
            yield from task.kernels
            yield from marks.get(task, ())


def _each_once(graph: TaskGraph, order: Iterable[int]) -> list[Task]:
    """The tasks of kernels in an order, of which several may be one task."""
    return list(dict.fromkeys(graph.tasks[kernel] for kernel in order))
