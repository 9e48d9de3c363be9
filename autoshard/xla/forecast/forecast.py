"""Forecast a plan's peak memory and exposed communication in the compiler's own kernel order.

The solver counts bytes in one fixed order of the program (`autoshard.xla.op_order`), the same for
every plan. It also keeps a value and its resharded copy alive until the last reader of either. A
compiler that hides collectives moves kernels next to them, and the plan decides which collectives
exist. For example, the operands of a weight gradient may stay alive until a loop ends, because the
scheduler saves that product to hide a small reduction behind it.

So this module schedules the kernels of every computation for the given plan
(`autoshard.xla.latency_hiding`). It uses the sizes of results per device, and it merges the
collectives that the compiler combines (`autoshard.xla.forecast.combine_collectives`). Then it
counts the bytes again:

* A copy is live from the start of its first collective to its last reader. The value itself is
  live until the last reader that does not read the copy. Where XLA:GPU hides nothing, both stay
  live until the last reader of either, because gathers of the step's inputs begin before all
  kernels there.
* The input of a reduce-scatter is live until the last collective ends. The intermediate results of
  a gather in several steps are live from one step to the end of the next.
* A library call (a matrix product) takes its workspace.
* An array whose blocks are not contiguous in memory
  (`autoshard.xla.forecast.collective_dim_order`) is rewritten in the order in which it is sent. If
  other ops read the value too, both versions are live.
* Where no library computes the products, an elementwise result that only products read is not
  written, unless the plan gives its copy another layout. If a loop converts slices of a stack, the
  whole stack is converted before the loop. `autoshard.xla.forecast.tpu_kernels` lists the softmaxes
  that are one kernel, the products that wait for the array they are added to, and the sums whose
  whole result is materialised.
* Arrays in the vector memory take no HBM (`autoshard.xla.forecast.tpu_vector_memory`).
* The optimizer update writes the new value of an input, normally in place. A result that cannot
  be written in place has its own buffer until it is copied back
  (`autoshard.xla.forecast.collective_dim_order`, `autoshard.xla.early_updates`). Gathered arrays
  that a loop reads are held twice before the loop, in two dimension orders.
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
from autoshard.xla.forecast.combine_collectives import Flight, combine
from autoshard.xla.forecast.event_marks import CopyBegins, SumEnds
from autoshard.xla.forecast.exposed_time import Run, waited_seconds
from autoshard.xla.forecast.masked_rows import masked_rows
from autoshard.xla.forecast.occupants import (
    beside_scattered,
    beside_sent,
    carries_beside,
    converted_before,
    gathered_beside,
    of_marks,
    of_ops,
    of_values,
    put_in_order,
    waiting,
    workspaces,
)
from autoshard.xla.forecast.pipelined import Pipelined
from autoshard.xla.forecast.planned_collectives import Decided
from autoshard.xla.forecast.task_graph import TaskGraph
from autoshard.xla.forecast.tpu_kernels import late_products, whole_sums, with_softmaxes
from autoshard.xla.fusion import Fusion, fuse
from autoshard.xla.kernel_orders import Kernel
from autoshard.xla.latency_hiding import Task, hide, in_post_order
from autoshard.xla.op_order import Mark, arranged, depth_first_in_loops, least_memory


class Forecast(NamedTuple):
    """The cost of a plan in the compiler's own order.

    Attributes:
      bytes: peak memory per device.
      waited_seconds: exposed communication per step (`autoshard.xla.forecast.exposed_time`). None
        where the compiler hides no collectives; the solver's own count of exposed seconds then
        holds.
    """

    bytes: int
    waited_seconds: float | None


def forecast(prices: StepPrices, decisions: Decisions) -> Forecast | None:
    """Return the memory and exposed communication of a plan in the compiler's own order.

    Returns None where the solver's own count already holds: without a compiler, or with one that
    has no habit of keeping anything in memory beyond what the solver counts (`Chip.counts_anew`).
    """
    program, chip = prices.program, prices.machine.chip
    if not chip.counts_anew:
        return None
    decided = Decided(prices, decisions)
    fusion = _fused(decided)
    beside = _results_beside(decided, fusion)
    orders = _Orders(decided, fusion, beside, Pipelined(decided))
    when, marks = arranged(program, fusion, orders.arrange, _sizes(prices, decisions))
    flow = replace(prices.dataflow, materialised=fusion.materialised)
    now = replace(prices, dataflow=reordered(flow, program, fusion, when))
    flights = orders.pipelined.under_way(_under_way(now, decisions, marks))
    first = FirstDimensions(now, decisions, fusion, decided.chosen)
    events = [
        *of_ops(now, decided, flights),
        *masked_rows(now, decided),
        *carries_beside(now, decided),
        *workspaces(now, decisions),
        *of_values(now, decisions, flights),
        *of_marks(now, marks),
        *waiting(now, decisions, beside, marks),
        *gathered_beside(now, decided, first),
        *beside_sent(now, decided, first, marks),
        *put_in_order(now, decisions, first),
        *beside_scattered(now, decided, first),
        *converted_before(now, decisions),
        *whole_sums(now, decided, flights),
        *orders.pipelined.between_turns(now, marks),
    ]
    waited = None
    if orders.runs and chip.compiler.has("gpu.collectives-begin-and-end"):
        waited = waited_seconds(decided, orders.runs, one_at_a_time=orders.one_at_a_time)
        waited += decided.waited_within_ops()
    return Forecast(round(float(occupied_bytes(now, events).max())), waited)


def _results_beside(decided: Decided, fusion: Fusion) -> frozenset[int]:
    """Return the updated values that have a buffer of their own until copied over their input."""
    prices, found = decided.prices, frozenset[int]()
    if not prices.machine.chip.compiler.denies("gpu.results-beside"):
        found = frozenset(results_beside(prices, decided.decisions, fusion, decided.chosen))
    renewed = (decided.renewal(op) for op in prices.program.ops)
    return found.union(*(one.results for one in renewed if one))


def _under_way(now: StepPrices, decisions: Decisions, marks: Mapping[Hashable, int]) -> UnderWay:
    """Return the points of an order at which its collectives begin and end."""
    own = now.machine.chip.compiler
    at_once = own.has("gpu.gathers-first-on-ampere") and not own.hides_collectives
    begun = {(one.value, one.life): at for one, at in marks.items() if isinstance(one, CopyBegins)}
    early = {value for value, _ in begun}
    copies, released = ({}, {}) if at_once else Decided(now, decisions).needed(early)
    settled = {one.op: at for one, at in marks.items() if isinstance(one, SumEnds)}
    return UnderWay(begun, settled, copies, released)


def _sizes(prices: StepPrices, decisions: Decisions) -> list[float]:
    """Return the bytes per device of every value, or of its copy if that is larger."""
    found: list[float] = []
    for value in prices.program.values:
        layouts = decisions.stored[value.index], decisions.copy[value.index]
        sizes = [
            prices.local_bytes(value.index, np.array(one)) for one in layouts if one is not None
        ]
        size = float(max(sizes)) if sizes else float(value.bytes)
        found.append(0.0 if value.host else size)
    return found


def _fused(decided: Decided) -> Fusion:
    """Return the fusion under this plan, including products if the compiler generates those itself.

    Partial sums that a collective reduces, and what is resharded, are always written, whatever else
    they are fused with.
    """
    prices, decisions = decided.prices, decided.decisions
    program, chip, has = prices.program, prices.machine.chip, prices.machine.chip.compiler.has
    resharded = (v for v, copy in enumerate(decisions.copy) if copy is not None)
    cut = {v for v in resharded if prices.dataflow.is_inside(program, v)}
    if has("gpu.products-are-calls"):
        ops = (op for op in program.ops if decided.of_sum(op))
        sums = {output for op in ops for output in op.outputs}
        return fuse(program, chip, written=sums | cut)
    into_products, late = set[int](), frozenset[int]()
    if has("tpu.elementwise-into-products"):
        into_products = {v for v, copy in enumerate(decisions.copy) if copy is None}
    if has("tpu.late-products"):
        late = frozenset(late_products(decided))
    return with_softmaxes(program, chip, into_products, decisions, prices.mesh_shape, late, cut)


@dataclass(frozen=True, slots=True)
class _Orders:
    """Schedules the computations of a program under given decisions."""

    decided: Decided
    fusion: Fusion
    beside: Collection[int]
    pipelined: Pipelined
    runs: dict[int, Run] = field(default_factory=dict)

    @property
    def own(self) -> Compiler:
        """The chip's compiler."""
        return self.decided.prices.machine.chip.compiler

    @property
    def one_at_a_time(self) -> bool:
        """Whether a collective begins only after the previous one has ended."""
        return not self.own.denies("gpu.one-collective-at-a-time")

    def arrange(self, region: Region, kernels: Sequence[Kernel]) -> Iterator[int | Mark]:
        """Yield the kernels of a region in order, with marks where live ranges begin or end."""
        own = self.own
        none_hidden = own.denies("gpu.collectives-begin-and-end", "tpu.v5e-hides-gathers")
        if own.runs_in_least_memory or none_hidden:
            in_loops = not own.denies("gpu.least-memory-in-loops")
            arrange = least_memory if in_loops else depth_first_in_loops
            yield from arrange(region, kernels, own)
            return
        before = depth_first_in_loops(region, kernels, own)
        graph = TaskGraph(self.decided, self.fusion, self.beside, region, kernels, self.pipelined)
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
        roots += (*graph.replaced.values(), *graph.stacked)
        order = hide(
            in_post_order([*roots, *(group[0].end for group in groups)]),
            one_at_a_time=self.one_at_a_time,
            longest_chain_first=not own.denies("gpu.longest-chain-first"),
        )
        order = _exposed(order, [group[0] for group in groups if not group[0].hidden])
        seconds = {
            group[0].begin: sum(one.seconds - one.fixed for one in group)
            + max(one.fixed for one in group)
            for group in groups
        }
        ahead = sum(
            took for task, took in seconds.items() if task.content in self.pipelined.gathers
        )
        self.runs[region.index] = Run(kernels, order, seconds, ahead)
        for task in order:
            yield from task.kernels
            yield from marks.get(task, ())


def _exposed(order: Sequence[Task], flights: Iterable[Flight]) -> list[Task]:
    """Return the order with each of these collectives started right before its end: not hidden."""
    begins = {one.end: one.begin for one in flights}
    moved = set(begins.values())
    kept = (task for task in order if task not in moved)
    return [one for task in kept for one in ((begins[task], task) if task in begins else (task,))]


def _each_once(graph: TaskGraph, order: Iterable[int]) -> list[Task]:
    """Return the tasks of kernels in order, each once: several kernels may share one task."""
    return list(dict.fromkeys(graph.tasks[kernel] for kernel in order))
