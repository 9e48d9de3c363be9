"""How much memory a plan takes in the order in which its compiler runs it.

The solver counts bytes in one order of the program, whatever is decided (`autoshard.sequence`). A
compiler that hides collectives moves kernels beside them, and which there are is the plan's: what
a weight's gradient is made of may wait for a loop to end, since a small reduction is to be hidden
behind the product. Here the kernels of every computation are put in the order of that plan
(`autoshard.hiding`), with collectives that run as one (`autoshard.combining`), and the bytes are
counted again; a copy lies in memory from where its first collective begins, and what is scattered
until the last one ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from autoshard.chosen import ChosenStrategies, copy_readers
from autoshard.combining import Flight, combine, in_post_order
from autoshard.copies import ANEW
from autoshard.cost.step import StepPrices
from autoshard.dataflow import Phase, Reader, reordered
from autoshard.decisions import Decisions
from autoshard.evaluate import op_seconds
from autoshard.fusion import Fusion, fuse
from autoshard.graph import Op, Program, Region
from autoshard.hiding import Role, Task, hide
from autoshard.kernel_orders import Kernel
from autoshard.machine import Chip
from autoshard.occupancy import UnderWay, buffer_events, occupied_bytes, op_events
from autoshard.planned_moves import settlements
from autoshard.sequence import Mark, arranged, depth_first_in_loops

COMBINED = frozenset({"all_gather", "all_reduce", "reduce_scatter"})
"""Kinds of collectives that run as one with others of their kind."""


def has_own_order(program: Program, chip: Chip) -> bool:
    """Whether the compiler for a chip runs plans of a program in orders of their own.

    Not so for steps without loops: an order of thousands of kernels is too much a matter of chance
    (of a U-Net it says 1.2 to 1.8 times what the compiler needs).
    """
    return chip.hides_collectives and len(program.regions) > 1


def scheduled_bytes(prices: StepPrices, decisions: Decisions) -> int | None:
    """The peak per device in the compiler's own order of the plan, bytes.

    None where that is the order that the solver counts in (`has_own_order`).
    """
    program = prices.program
    if not has_own_order(program, prices.machine.chip):
        return None
    fusion = fuse(program, prices.dataflow.chip)
    orders = _Orders(prices, decisions, fusion)
    when, marks = arranged(program, fusion, orders.arrange)
    now = replace(prices, dataflow=reordered(prices.dataflow, program, fusion, when))
    flights = UnderWay(
        {(one.value, one.life): at for one, at in marks.items() if isinstance(one, _CopyBegins)},
        {one.op: at for one, at in marks.items() if isinstance(one, _SumEnds)},
    )
    events = [
        event
        for op in program.ops
        if decisions.assignment[op.index] is not None
        for event in op_events(now, op, orders.chosen(op), flights)
    ]
    for value in program.values:
        events += buffer_events(now, decisions, value.index, flights).items()
    return round(float(occupied_bytes(now, events).max()))


@dataclass(frozen=True, slots=True)
class _CopyBegins:
    value: int
    life: int


@dataclass(frozen=True, slots=True)
class _SumEnds:
    op: int


class _Collectives(NamedTuple):
    """Collectives in a row: seconds of one execution, bytes of the result, kinds and axes."""

    seconds: float
    bytes: float
    kinds: tuple[tuple[str, tuple[int, ...]], ...]


class _Orders:
    """Orders of the computations of a program under decisions."""

    def __init__(self, prices: StepPrices, decisions: Decisions, fusion: Fusion) -> None:
        self.prices, self.decisions, self.fusion = prices, decisions, fusion
        self.chosen = ChosenStrategies(decisions, prices.mesh_shape, prices.evaluated)

    def arrange(self, region: Region, kernels: Sequence[Kernel]) -> Iterator[int | Mark]:
        """The kernels of a region, with a mark where something begins or ends to lie in memory."""
        graph = _Graph(self, region, kernels)
        if not graph.flights:  # XLA leaves computations alone in which nothing is to be hidden
            yield from depth_first_in_loops(region, kernels)
            return
        ends = [one.end for one in graph.flights]
        groups = combine(graph.flights, [*graph.results(), *graph.tasks, *ends])
        marks: dict[Task, list[Mark]] = {}
        for group in groups:
            first = group[0]
            marks[first.begin] = [Mark(c) for one in group if (c := one.begin.content) is not None]
            marks[first.end] = [Mark(c) for one in group if (c := one.end.content) is not None]
        before = [graph.tasks[kernel] for kernel in depth_first_in_loops(region, kernels)]
        for task in hide(in_post_order([*before, *(group[0].end for group in groups)])):
            if isinstance(task.content, int):
                yield task.content
            else:
                yield from marks.get(task, ())

    def of_sum(self, op: Op) -> _Collectives | None:
        """The collectives that settle an op's partial sums."""
        if self.decisions.assignment[op.index] is None:
            return None
        strategy = self.chosen(op)
        found = list(settlements(self.prices, op, strategy))
        seconds = sum(one.seconds for one in found)
        if not seconds:
            return None
        size = sum(
            float(self.prices.local_bytes(output, strategy.stored[number])[0])
            for number, output in enumerate(op.outputs)
        )
        kinds = dict.fromkeys((one.kind, one.axes) for one in found)
        return _Collectives(seconds, size, tuple(kinds))

    def of_copy(self, value: int) -> _Collectives | None:
        """The collectives that make the copy of a value."""
        stored, copy = self.decisions.stored[value], self.decisions.copy[value]
        if stored is None or copy is None:
            return None
        steps = self.prices.reshard(value).steps(stored, copy)
        size = float(self.prices.local_bytes(value, np.array(copy)))
        kinds = tuple((step.kind, step.axes) for step in steps)
        seconds = sum(step.seconds for step in steps)
        return _Collectives(seconds, size, kinds) if seconds else None

    def served(self, value: int) -> list[list[Reader]]:
        """The readers of a copy, for each time that it is made."""
        readers, ops = self.prices.dataflow.readers[value], self.prices.program.ops
        found = list(copy_readers(readers, ops, self.chosen, self.decisions))
        if self.decisions.mode[value] != ANEW:
            return [found]
        phases = (Phase.FIRST, Phase.SECOND)
        return [[use for use in found if use.phase is phase] for phase in phases]

    def communicates(self, ops: Iterable[Op]) -> bool:
        """Whether some op of a loop needs a collective."""
        return any(
            self.of_sum(op) or any(self.of_copy(output) for output in op.outputs) for op in ops
        )


class _Graph:
    """The tasks of one region: its kernels, and a begin and an end for each collective."""

    def __init__(self, orders: _Orders, region: Region, kernels: Sequence[Kernel]) -> None:
        self.orders, self.region, self.kernels = orders, region, kernels
        self.program: Program = orders.prices.program
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
        for number, kernel in enumerate(kernels):
            self._add_sum(number, kernel)
        for value in self.program.values:
            if self._region_of(value.producer) == region.index:
                self._add_copies(value.index)
        for number, kernel in enumerate(kernels):
            for op in range(kernel.first, kernel.last):
                for task in self._operands(op, number):
                    self.tasks[number].reads(task)

    def results(self) -> list[Task]:
        """What nothing in the region reads: a loop's carries, then the rest."""
        ends = [number for number, task in enumerate(self.tasks) if not task.after]
        primitive = [self.program.ops[kernel.first].primitive for kernel in self.kernels]
        return [self.tasks[k] for k in sorted(ends, key=lambda k: (primitive[k] != "yield", k))]

    def _region_of(self, op: int) -> int:
        return self.program.ops[op].region if op >= 0 else 0

    def _task(self, number: int, kernel: Kernel) -> Task:
        orders, ops = self.orders, self.program.ops[kernel.first : kernel.last]
        if kernel.inner is not None:
            return Task(number, Role.LOOP if orders.communicates(ops) else Role.KERNEL)
        seconds = 0.0
        if orders.decisions.assignment[kernel.first] is not None:
            seconds = op_seconds(orders.prices, ops[0], orders.chosen(ops[0]))
        return Task(number, Role.KERNEL if seconds > 0 else Role.NOTHING, seconds)

    def _add_sum(self, number: int, kernel: Kernel) -> None:
        op = self.program.ops[kernel.first]
        found = self.orders.of_sum(op) if kernel.inner is None else None
        if found is None:
            return
        if not any(self.program.values[output].shape for output in op.outputs):
            found = found._replace(seconds=0.0)  # XLA reckons that a scalar takes no time
        begin, end = Task(None, Role.BEGIN), Task(_SumEnds(op.index), Role.END)
        begin.reads(self.tasks[number])
        self._add_flight(begin, end, found, op.outputs[0])
        self.settled.update(dict.fromkeys(op.outputs, end))

    def _add_copies(self, value: int) -> None:
        found = self.orders.of_copy(value)
        if found is None:
            return
        for life, readers in enumerate(self.orders.served(value)):
            if readers:
                begin, end = Task(_CopyBegins(value, life), Role.BEGIN), Task(None, Role.END)
                for source in self.orders.fusion.sources[value]:
                    if source in self.maker:
                        begin.reads(self._there(source))
                self._add_flight(begin, end, found, value)
                served = frozenset(use.op for use in readers)
                self.copied.setdefault(value, []).append((served, end))

    def _add_flight(self, begin: Task, end: Task, found: _Collectives, value: int) -> None:
        begin.latency = found.seconds
        end.reads(begin)
        kinds = {kind for kind, _ in found.kinds}
        dtype = "" if kinds == {"all_gather"} else self.program.values[value].dtype
        kin = (type(begin.content), found.kinds, dtype) if kinds <= COMBINED else None
        copied = None
        if kinds == {"all_reduce"}:
            copied = 2 * found.bytes / self.orders.prices.machine.chip.memory_rate
        self.flights.append(Flight(begin, end, found.bytes, kin, copied))

    def _there(self, value: int) -> Task:
        """After which task a value that a kernel of the region makes is there."""
        return self.settled.get(value) or self.tasks[self.maker[value]]

    def _operands(self, op: int, number: int) -> Iterator[Task]:
        """The tasks on which an op of a kernel waits, through what is fused into it."""
        stack, seen = [op], set[int]()
        while stack:
            op = stack.pop()
            if op in seen:
                continue
            seen.add(op)
            for value in self.program.ops[op].inputs:
                served = [end for ops, end in self.copied.get(value, ()) if op in ops]
                if served:
                    yield from served
                elif value in self.maker:
                    if self.maker[value] != number:
                        yield self._there(value)
                elif value >= 0:
                    producer = self.program.values[value].producer
                    if producer >= 0 and self._region_of(producer) == self.region.index:
                        stack.append(producer)
