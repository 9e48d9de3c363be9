"""From a program and a machine to a `Problem`: what is decided, and what it costs.

Two sorts of nodes:

    value   (a, b, mode): stored in layout a; a resharded copy in layout b, made for the readers
            of the forward pass, of the backward pass, once for both, or anew for each
    op      a strategy: axis -> factor, with the settling of partial sums (`autoshard.strategy`)

An op whose result's layout determines its strategy (elementwise and its like) has no node of its
own: its price is that of its value's layout a. All prices are unary: seconds of the op under the
strategy, seconds of the reshard a -> b, which is paid once however many ops read the copy. All
edges are consistency: an op reads a value in a or in b (where the copy is visible to it), an op's
result is stored as the strategy says, a state's result has the layout of the state, a loop's carry
has one layout. So the objective is the plan's price itself, and not an approximation of it.

Memory: a value occupies bytes(a) while it lives, its copy bytes(b) from its first reader to its
last in the phases that it serves, a scattered partial sum its full local size at its op.

Repeated blocks (`autoshard.repeats`) share one node; its price is the sum over the copies and every
copy has its own usage in time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoshard.choices import Rows, ValueChoices, rows_in_order, slicing_pairs
from autoshard.coding import decode, encode
from autoshard.copies import (
    ANEW,
    FIRST,
    KEPT,
    SECOND,
    VISIBLE,
    copy_intervals,
    crosses_passes,
    value_trips,
)
from autoshard.cost.reordering import stack_bytes, transposing
from autoshard.cost.step import StepPrices
from autoshard.dataflow import Phase
from autoshard.decisions import Decisions
from autoshard.hubs import Hub
from autoshard.layout import LayoutTable
from autoshard.program import Op, Program
from autoshard.repeats import Classes
from autoshard.shared import Mask, Once, Shared
from autoshard.solve.allowed import Allowed
from autoshard.solve.problem import Edge, Node, Problem, Usage
from autoshard.strategy import Strategies
from autoshard.sums import NO_SUMS, find_sums


@dataclass(frozen=True, slots=True, eq=False)
class Built:
    """A problem, and what its nodes mean.

    Attributes:
      problem: numbers only.
      value_node, op_node: node of every value class and op class, or -1.
      value_choices, op_strategies: by class.
      hubs: nodes that stand for requirements; they come last (`autoshard.restrict`).
    """

    problem: Problem
    prices: StepPrices
    classes: Classes
    value_node: dict[int, int]
    op_node: dict[int, int]
    value_choices: dict[int, ValueChoices]
    op_strategies: dict[int, Strategies]
    hubs: tuple[Hub, ...] = ()

    def decode(self, choices: Sequence[int]) -> Decisions:
        """The decisions, op by op and value by value of the whole program, of a solution."""
        return decode(self, choices)

    def encode(self, decisions: Decisions) -> list[int] | None:
        """The choices that decisions on the same program amount to, or None if one is absent."""
        return encode(self, decisions)


def build(
    prices: StepPrices,
    classes: Classes,
    *,
    limit: float | None,
    join_sums: bool = True,
    shared: Shared | None = None,
) -> Built:
    """Build the problem.

    Args:
      prices: cost laws of the program on the machine and mesh.
      classes: which ops and values share decisions.
      limit: bytes per device, or None.
      join_sums: whether terms of sums may stay unreduced (`autoshard.sums`).
      shared: what earlier builds for such a mesh made; what this one makes is added.
    """
    return _Builder(prices, classes, join_sums, shared or Shared()).run(limit)


class _Builder:
    """Collects nodes, edges and usages; one instance per problem."""

    def __init__(
        self, prices: StepPrices, classes: Classes, join_sums: bool, shared: Shared
    ) -> None:
        self.prices = prices
        self.program: Program = prices.program
        self.flow = prices.dataflow
        self.sums = find_sums(prices.program, prices.dataflow, classes) if join_sums else NO_SUMS
        self.classes = classes
        self.mesh = prices.mesh_shape
        self.nodes: list[Node] = []
        self.edges: list[Edge] = []
        self.usages: list[Usage] = []
        self.strategies: dict[int, Strategies] = {}
        self.choices: dict[int, ValueChoices] = {}
        self._seconds: dict[int, tuple[LayoutTable, NDArray[np.float64]]] = {}
        self.value_node: dict[int, int] = {}
        self.op_node: dict[int, int] = {}
        self._shared, self._once = shared, Once()
        shared.on(prices)

    def run(self, limit: float | None) -> Built:
        program, classes = self.program, self.classes
        self._find_strategies()
        for number, members in enumerate(classes.value_members):
            if not program.values[members[0]].free:
                self._value(number, members)
        for number, members in enumerate(classes.op_members):
            self._op(number, members)
        self._connect()
        problem = Problem(
            tuple(self.nodes), self._shared.tie(self.edges), tuple(self.usages), self._left(limit)
        )
        return Built(
            problem,
            self.prices,
            classes,
            self.value_node,
            self.op_node,
            self.choices,
            self.strategies,
        )

    def _left(self, limit: float | None) -> float | None:
        """What a limit leaves beside the program's constants."""
        return None if limit is None else limit - float(self.program.constant_bytes)

    def _find_strategies(self) -> None:
        for number, members in enumerate(self.classes.op_members):
            if number not in self.strategies:
                self.strategies[number] = self._strategies_of(members[0])

    # -- domains -------------------------------------------------------------------------

    def _strategies_of(self, op_index: int) -> Strategies:
        op = self.program.ops[op_index]
        shapes = tuple(self.program.values[v].shape for v in op.outputs)
        joins = op_index in self.sums.joins
        pending = not self.sums.pending.isdisjoint(op.outputs)
        return self._shared.strategies(op.rule, self.mesh, shapes, joins=joins, pending=pending)

    def _table(self, value: int) -> LayoutTable:
        record = self.program.values[value]
        pending = value in self.sums.pending
        return self._shared.table(record.shape, record.itemsize, self.mesh, pending=pending)

    def _merged(self, value: int) -> bool:
        """Whether the op that makes `value` is decided by the value's layout."""
        producer = self.program.values[value].producer
        joined = producer in self.sums.joins  # then its terms may be unreduced
        if producer < 0 or joined:
            return False
        return self._shared.is_decided_by_layout(self.program.ops[producer].rule)

    def _value(self, number: int, members: Sequence[int]) -> None:
        value = members[0]
        record = self.program.values[value]
        table = self._table(value)
        strategy: Rows | None = None
        stored = self._shared.every(table)
        if record.producer >= 0:
            op_number = int(self.classes.op_class[record.producer])
            position = self.program.ops[record.producer].outputs.index(value)
            rows = self._shared.rows(table, self.strategies[op_number].stored[position])
            stored = self._shared.marked(table, [rows])
            if self._merged(value):
                # The first strategy of every layout stands; there is only one.
                strategy = self._shared.first_of(table, rows)
        readable, phases = self._readable(members, table)
        apart = any(crosses_passes(self.program, self.flow.readers[one]) for one in members)
        considered = self._considered(value, table)
        a, b, mode = self._triples(considered, stored, readable, phases, apart)
        if strategy is not None:
            keep = self._reads_itself(number, members, table, strategy, a, b, mode)
            if not keep.all():
                a, b, mode = a[keep], b[keep], mode[keep]
        self.choices[number] = ValueChoices(table, a, b, mode, strategy)
        self.value_node[number] = len(self.nodes)
        costs = self._value_seconds(number, members)
        self.nodes.append(Node(f"{record.path or 'value'}#{value}", costs))
        self._value_usages(members, table, a, b, mode)
        if strategy is not None:
            self._merged_scratch(number, strategy[a])

    def _merged_scratch(self, number: int, rows: Rows) -> None:
        """Copies of transposed operands of the op that a value's layout decides."""
        values = self.program.values
        makers = [values[member].producer for member in self.classes.value_members[number]]
        made = self.strategies[int(self.classes.op_class[makers[0]])]
        self._scratch(self.value_node[number], makers, made, rows)

    def _reads_itself(
        self,
        number: int,
        members: Sequence[int],
        table: LayoutTable,
        strategy: Rows,
        a: Rows,
        b: Rows,
        mode: Rows,
    ) -> NDArray[np.bool_]:
        """Choices that are consistent where a copy of a block reads the same value of another."""
        keep = np.ones(len(a), dtype=bool)
        for value in members:
            for use in self.flow.readers[value]:
                outputs = self.program.ops[use.op].outputs
                if int(self.classes.value_class[outputs[0]]) != number:
                    continue
                op_number = int(self.classes.op_class[use.op])
                rows = self._shared.rows(table, self.strategies[op_number].reads[use.position])
                seen = np.where(mode & VISIBLE[use.phase], b, a)
                keep &= (rows[strategy[a]] == a) | (rows[strategy[a]] == seen)
        return keep

    def _readable(self, members: Sequence[int], table: LayoutTable) -> tuple[Mask, set[Phase]]:
        """The layouts in which some reader of the values reads them, and the readers' phases."""
        uses = [use for value in members for use in self.flow.readers[value]]
        places = {(int(self.classes.op_class[use.op]), use.position) for use in uses}
        rows = [
            self._shared.rows(table, self.strategies[op].reads[position]) for op, position in places
        ]
        return self._shared.marked(table, rows), {use.phase for use in uses}

    def _considered(self, value: int, table: LayoutTable) -> Mask:
        """Which copies of a value are considered, by stored layout and layout of the copy."""
        record = self.program.values[value]
        once, size = self._shared.once, len(table)
        if not self.flow.can_be_copied(self.program, value):
            return once("none", (), lambda: np.zeros((size, size), dtype=bool), size)
        pairs = self._shared.pairs(table)
        if record.producer < 0 or self.program.ops[record.producer].primitive != "enter":
            return pairs
        # A closed-over value is gathered outside of the loop, where the compiler moves it; a
        # `while` passes it on from one iteration to the next, in one layout.
        region = self.program.regions[self.program.ops[record.producer].region]
        if region.kind == "while":
            return once("none", (), lambda: np.zeros((size, size), dtype=bool), size)
        return once("slices", (pairs,), lambda: pairs & slicing_pairs(table.dimensions))

    def _triples(
        self, considered: Mask, stored: Mask, readable: Mask, phases: set[Phase], apart: bool
    ) -> tuple[Rows, Rows, Rows]:
        """Stored layout, layout of the copy and mode of every choice."""
        modes: tuple[int, ...] = ()
        if {Phase.FIRST, Phase.SECOND} <= phases:
            modes = (FIRST, SECOND, KEPT, ANEW) if apart else (FIRST, SECOND, KEPT)
        elif phases:
            modes = (SECOND,) if Phase.SECOND in phases else (FIRST,)

        def find() -> tuple[Rows, Rows, Rows]:
            own = np.flatnonzero(stored)
            a, b, mode = [own], [own], [np.zeros(len(own), dtype=np.int64)]
            first, second = np.nonzero(considered & stored[:, None] & readable[None, :])
            for kind in modes:
                a.append(first)
                b.append(second)
                mode.append(np.full(len(first), kind, dtype=np.int64))
            return np.concatenate(a), np.concatenate(b), np.concatenate(mode)

        return self._shared.once("triples", (considered, stored, readable), find, modes)

    # -- prices --------------------------------------------------------------------------

    def _value_seconds(self, number: int, members: Sequence[int]) -> NDArray[np.float64]:
        """Seconds of the copies of a value, and of the op that its layout decides."""
        choices = self.choices[number]
        a, strategy = choices.stored, choices.strategy
        seconds = self._copy_seconds(members, choices.table, a, choices.copy, choices.mode)
        if strategy is None:
            return seconds
        op_number = int(self.classes.op_class[self.program.values[members[0]].producer])
        return seconds + self._op_seconds(op_number)[strategy[a]]

    def _op_seconds(self, number: int) -> NDArray[np.float64]:
        # Copies of a block are alike, but for the first and the last: what surrounds them decides
        # what is fused and what is waited for.
        strategies = self.strategies[number]
        groups: dict[object, tuple[Op, bool, float]] = {}
        corrections = self.prices.corrections
        for member in self.classes.op_members[number]:
            op = self.program.ops[member]
            hidden = not any(self.flow.awaited[o] for o in op.outputs)
            key = hidden, self.flow.surroundings(op), corrections.factor(op)
            _, _, times = groups.get(key, (op, hidden, 0.0))
            groups[key] = (op, hidden, times + op.trips * op.weight)
        total = np.zeros(len(strategies))
        for op, hidden, times in groups.values():
            compute, settle = self._shared.seconds_of(self.prices, op, strategies)
            total += times * (compute + self.prices.exposed(hidden) * settle)
        return total

    def _copy_seconds(
        self, members: Sequence[int], table: LayoutTable, a: Rows, b: Rows, mode: Rows
    ) -> NDArray[np.float64]:
        if self._shared.once("copies", (a, b), lambda: not (a == b).all()):
            seconds = self._reshard_seconds(members[0], table)
        else:
            return np.zeros(len(a))
        times = np.zeros(ANEW + 1)
        for value in members:
            exposed = self.prices.exposed(self.flow.prefetchable[value])
            phases = {use.phase for use in self.flow.readers[value]}
            first, second = Phase.FIRST in phases, Phase.SECOND in phases
            once = exposed * value_trips(self.program, value)
            times[FIRST] += once * first
            times[SECOND] += once * second
            times[KEPT] += once * (first or second)
            times[ANEW] += once * (first + second)
        made = self._once("copied", (seconds, a, b), lambda: seconds[a, b])
        key = tuple(times.tolist())
        return self._once("copy seconds", (made, mode), lambda: made * times[mode], key)

    def _reshard_seconds(self, value: int, table: LayoutTable) -> NDArray[np.float64]:
        """Seconds from every layout of `table` to every other; found once for values alike."""
        if id(table) not in self._seconds:
            reshard = self.prices.reshard(value)
            rows = rows_in_order(reshard.layouts, table)
            self._seconds[id(table)] = table, reshard.seconds[np.ix_(rows, rows)]
        return self._seconds[id(table)][1]

    # -- memory --------------------------------------------------------------------------

    def _value_usages(
        self, members: Sequence[int], table: LayoutTable, a: Rows, b: Rows, mode: Rows
    ) -> None:
        node = self.value_node_of(members[0])

        def held_in(factor: float) -> NDArray[np.float64]:
            return self._once("held", (table, a), lambda: table.local_bytes[a] * factor, factor)

        def taken_in(modes: frozenset[int]) -> NDArray[np.float64]:
            lives = np.zeros(ANEW + 1, dtype=bool)
            lives[list(modes)] = True
            copies = table.local_bytes[b] * self.prices.scratch_factor
            return np.where(lives[mode], copies, 0.0)

        for value in members:
            start, stop = self.flow.start[value], self.flow.stop[value]
            if stop > start:
                held = held_in(self.prices.heap_factor(value))
                self.usages.append(Usage(node, held, start, stop))
            if value in self.flow.slices and (mode > 0).any():
                one = self.flow.slices[value]
                dimensions = table.dimensions
                stacks = stack_bytes(self.prices, value, dimensions[a], dimensions[b]) * (mode > 0)
                if stacks.any():
                    self.usages.append(Usage(node, stacks, one.start, one.stop))
            for modes, (first, last) in copy_intervals(self.flow.readers[value]):
                owners = table, b, mode
                copies = self._once("taken", owners, lambda m=modes: taken_in(m), modes)
                if self._once("any", (copies,), lambda c=copies: bool(c.any())):
                    self.usages.append(Usage(node, copies, first, last))

    def value_node_of(self, value: int) -> int:
        return self.value_node[int(self.classes.value_class[value])]

    # -- op nodes and edges --------------------------------------------------------------

    def _op(self, number: int, members: Sequence[int]) -> None:
        op = self.program.ops[members[0]]
        if all(self.program.values[o].free for o in op.outputs):
            return
        if len(op.outputs) == 1 and self._merged(op.outputs[0]):
            return
        self.op_node[number] = len(self.nodes)
        self.nodes.append(Node(f"{op.primitive}#{op.index}", self._op_seconds(number)))
        self._op_usages(number, members)

    def _op_usages(self, number: int, members: Sequence[int]) -> None:
        """What an op takes while it runs."""
        op, strategies = self.program.ops[members[0]], self.strategies[number]
        extra = np.zeros(len(strategies))
        for k, output in enumerate(op.outputs):
            extra += np.maximum(
                self.prices.local_bytes(output, strategies.written[k])
                - self.prices.local_bytes(output, strategies.stored[k]),
                0.0,
            )
        extra *= self.prices.scratch_factor
        if extra.any():
            for at in (self.flow.when[member] for member in members):
                self.usages.append(Usage(self.op_node[number], extra, at, at + 1))
        self._scratch(self.op_node[number], members, strategies, np.arange(len(strategies)))

    def _scratch(
        self, node: int, members: Sequence[int], strategies: Strategies, rows: Rows
    ) -> None:
        """Copies of transposed operands; found once for members that transpose alike."""
        found: dict[object, tuple[tuple[NDArray[np.float64], ...], ...]] = {}
        for member in members:
            lives = self.flow.turned.get(member)
            if lives is None:
                continue
            key = self.flow.transposed[member], tuple(life.amounts for life in lives)
            if key not in found:
                op = self.program.ops[member]
                copies = transposing(self.prices, op, strategies)[1]
                found[key] = tuple((made[rows], held[rows]) for made, held in copies)
            for life, (made, held) in zip(lives, found[key], strict=True):
                if made.any():
                    self.usages.append(Usage(node, made, life.start, life.reduced))
                if held.any() and life.stop > life.reduced:
                    self.usages.append(Usage(node, held, life.reduced, life.stop))

    def _connect(self) -> None:
        done: set[tuple[int, int, int, Phase]] = set()
        program, classes = self.program, self.classes
        for value in program.values:
            if value.free:
                continue
            for use in self.flow.readers[value.index]:
                key = (
                    int(classes.value_class[value.index]),
                    int(classes.op_class[use.op]),
                    use.position,
                    use.phase,
                )
                if key not in done:
                    done.add(key)
                    self._read_edge(*key)
        for number, node in self.op_node.items():
            op = program.ops[classes.op_members[number][0]]
            for k, output in enumerate(op.outputs):
                if not program.values[output].free:
                    self._write_edge(number, node, k, int(classes.value_class[output]))
        pairs = [(program.inputs[i], program.outputs[o]) for i, o in program.ties]
        tied: set[tuple[int, int]] = set()
        for first, second in (*pairs, *program.carries):
            couple = (int(classes.value_class[first]), int(classes.value_class[second]))
            if couple[0] == couple[1] or couple in tied:
                continue
            tied.add(couple)
            u, v = (self.choices.get(c) for c in couple)
            if u is None or v is None:
                continue
            first, second = (self.value_node[c] for c in couple)
            self._edge(first, second, self._shared.identity(len(u.table)), u.stored, v.stored)

    def _read_edge(self, value: int, op: int, position: int, phase: Phase) -> None:
        choices = self.choices[value]
        if len(choices.table) == 1:
            return
        layouts = self._shared.rows(choices.table, self.strategies[op].reads[position])
        node = self.op_node.get(op)
        if node is None:
            output = self.program.ops[self.classes.op_members[op][0]].outputs[0]
            target = int(self.classes.value_class[output])
            made = self.choices[target]
            assert made.strategy is not None
            node = self.value_node[target]
            if target == value:
                return
            layouts = self._shared.through(layouts, made.strategy, made.stored)
        table, left = self._shared.seen(choices, VISIBLE[phase])
        self._edge(self.value_node[value], node, table, left, layouts)

    def _write_edge(self, op: int, node: int, position: int, value: int) -> None:
        choices = self.choices[value]
        if len(choices.table) == 1:
            return
        layouts = self._shared.rows(choices.table, self.strategies[op].stored[position])
        table = self._shared.identity(len(choices.table))
        self._edge(node, self.value_node[value], table, layouts, choices.stored)

    def _edge(
        self, u: int, v: int, table: NDArray[np.float64] | Allowed, left: Rows, right: Rows
    ) -> None:
        self.edges.append(self._shared.edge(u, v, table, left, right))
