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
  long as anybody reads either: gathers of what the step is given begin before all kernels there.
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

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from autoshard.cost.step_prices import StepPrices
from autoshard.machine.compiler import Compiler
from autoshard.plan.decisions import Decisions
from autoshard.plan.memory_events import UnderWay, occupied_bytes
from autoshard.program.graph import Region
from autoshard.xla.facts import reordered
from autoshard.xla.forecast.collective_dim_order import FirstDimensions, results_beside
from autoshard.xla.forecast.combine_collectives import Flight, combine, in_post_order
from autoshard.xla.forecast.event_marks import CopyBegins, SumEnds
from autoshard.xla.forecast.exposed_time import Run, waited_seconds
from autoshard.xla.forecast.occupants import (
    beside_scattered,
    beside_sent,
    converted_before,
    of_marks,
    of_ops,
    of_values,
    put_in_order,
    waiting,
    workspaces,
)
from autoshard.xla.forecast.planned_collectives import Decided
from autoshard.xla.forecast.task_graph import TaskGraph
from autoshard.xla.forecast.tpu_kernels import late_products, whole_sums, with_softmaxes
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

    None where that is what the solver counts: without a compiler, or where it has no habit by which
    a plan keeps something in memory that the solver does not count (`Chip.counts_anew`).
    """
    program, chip = prices.program, prices.machine.chip
    if not chip.counts_anew:
        return None
    decided = Decided(prices, decisions)
    fusion = _fused(decided)
    beside = _results_beside(decided, fusion)
    orders = _Orders(decided, fusion, beside)
    when, marks = arranged(program, fusion, orders.arrange, _sizes(prices, decisions))
    flow = replace(prices.dataflow, materialised=fusion.materialised)
    now = replace(prices, dataflow=reordered(flow, program, fusion, when))
    flights = _under_way(now, decisions, marks)
    first = FirstDimensions(now, decisions, fusion, decided.chosen)
    events = [
        *of_ops(now, decided, flights),
        *workspaces(now, decisions),
        *of_values(now, decisions, flights),
        *of_marks(now, marks),
        *waiting(now, decisions, beside, marks),
        *beside_sent(now, decided, first, marks),
        *put_in_order(now, decisions, first),
        *beside_scattered(now, decided, first),
        *converted_before(now, decisions),
        *whole_sums(now, decided, flights),
    ]
    waited = None
    if orders.runs and chip.compiler.has("gpu.collectives-begin-and-end"):
        waited = waited_seconds(decided, orders.runs, one_at_a_time=orders.one_at_a_time)
    return Forecast(round(float(occupied_bytes(now, events).max())), waited)


def _results_beside(decided: Decided, fusion: Fusion) -> frozenset[int]:
    """The results that lie beside the inputs that they renew until they are copied there."""
    prices, found = decided.prices, frozenset[int]()
    if not prices.machine.chip.compiler.denies("gpu.results-beside"):
        found = frozenset(results_beside(prices, decided.decisions, fusion, decided.chosen))
    renewed = (decided.renewal(op) for op in prices.program.ops)
    return found.union(*(one.results for one in renewed if one))


def _under_way(now: StepPrices, decisions: Decisions, marks: Mapping[Hashable, int]) -> UnderWay:
    """Where the collectives of an order begin and end."""
    own = now.machine.chip.compiler
    at_once = own.has("gpu.gathers-first-on-ampere") and not own.hides_collectives
    begun = {(one.value, one.life): at for one, at in marks.items() if isinstance(one, CopyBegins)}
    early = {value for value, _ in begun}
    copies, released = ({}, {}) if at_once else Decided(now, decisions).needed(early)
    settled = {one.op: at for one, at in marks.items() if isinstance(one, SumEnds)}
    return UnderWay(begun, settled, copies, released)


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
    program, chip, has = prices.program, prices.machine.chip, prices.machine.chip.compiler.has
    if has("gpu.products-are-calls"):
        ops = (op for op in program.ops if decided.of_sum(op))
        return fuse(program, chip, written={output for op in ops for output in op.outputs})
    into_products, late = set[int](), frozenset[int]()
    if has("tpu.elementwise-into-products"):
        into_products = {v for v, copy in enumerate(decisions.copy) if copy is None}
    if has("tpu.late-products"):
        late = frozenset(late_products(decided))
    return with_softmaxes(program, chip, into_products, decisions, prices.mesh_shape, late)


@dataclass(frozen=True, slots=True)
class _Orders:
    """Orders of the computations of a program under decisions."""

    decided: Decided
    fusion: Fusion
    beside: Collection[int]
    runs: dict[int, Run] = field(default_factory=dict)

    @property
    def own(self) -> Compiler:
        """The chip's compiler."""
        return self.decided.prices.machine.chip.compiler

    @property
    def one_at_a_time(self) -> bool:
        """Whether a collective begins when the one before it has ended."""
        return not self.own.denies("gpu.one-collective-at-a-time")

    def arrange(self, region: Region, kernels: Sequence[Kernel]) -> Iterator[int | Mark]:
        """The kernels of a region, with a mark where something begins or ends to lie in memory."""
        own = self.own
        none_hidden = own.denies("gpu.collectives-begin-and-end", "tpu.v5e-hides-gathers")
        if own.runs_in_least_memory or none_hidden:
            in_loops = not own.denies("gpu.least-memory-in-loops")
            arrange = least_memory if in_loops else depth_first_in_loops
            yield from arrange(region, kernels, own)
            return
        before = depth_first_in_loops(region, kernels, own)
        graph = TaskGraph(self.decided, self.fusion, self.beside, region, kernels)
        if not graph.flights or own.denies("tpu.schedules-from-the-end"):
            self.runs[region.index] = Run(kernels, _each_once(graph, before), {})
            yield from before
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
        roots = [graph.tasks[kernel] for kernel in before]
        roots += graph.replaced.values()
        order = hide(
            in_post_order([*roots, *(group[0].end for group in groups)]),
            one_at_a_time=self.one_at_a_time,
            longest_chain_first=not own.denies("gpu.longest-chain-first"),
        )
        order = _exposed(order, [group[0] for group in groups if not group[0].hidden])
        seconds = {
            group[0].begin: sum(one.seconds for one in group) - sum(one.fixed for one in group[1:])
            for group in groups
        }
        self.runs[region.index] = Run(kernels, order, seconds)
        for task in order:
            yield from task.kernels
            yield from marks.get(task, ())


def _exposed(order: Sequence[Task], flights: Iterable[Flight]) -> list[Task]:
    """The order, but that these collectives begin right before they end: nothing hides them."""
    begins = {one.end: one.begin for one in flights}
    moved = set(begins.values())
    kept = (task for task in order if task not in moved)
    return [one for task in kept for one in ((begins[task], task) if task in begins else (task,))]


def _each_once(graph: TaskGraph, order: Iterable[int]) -> list[Task]:
    """The tasks of kernels in an order, of which several may be one task."""
    return list(dict.fromkeys(graph.tasks[kernel] for kernel in order))
