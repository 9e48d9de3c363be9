"""From a program and a machine to a `Problem`: what is decided, and what it costs.

Sets
    V            classes of values that share a decision (`autoshard.program.repeats`)
    O            classes of ops whose strategy no layout determines
    L(v)         layouts of a value: mesh axis -> dimension, unreduced or nothing
    S(o)         strategies of an op: mesh axis -> factor, with the settling of partial sums
    T            program points, in the order in which the compiler runs the ops

Variables: one choice a node, as one-hot vectors

    x[v, (a, b, m)]   v in V: stored in layout a, with a copy in layout b for the readers of phases
                      m (first, second, both, or made anew for the second); no copy where a = b
                      (`domains._Finder._choices`, `value_choices.sensible_pairs`)
    y[o, s]           o in O: the strategy (`autoshard.program.strategies`)

An op whose result's layout determines its strategy (elementwise ops and the like) has no node: it
is priced with its value's layout a (`domains._Finder._merged`).

Objective: seconds of a step; every price is unary

    min  sum_v sum_(a,b,m) x[v, (a, b, m)] (copies(v, a, b, m) + op(v, a))
       + sum_o sum_s       y[o, s] op(o, s)

    op       compute, and the exposed part of settling its sums; of a class the sum over its
             members (`_Pricer._op_seconds`)
    copies   the cheapest collectives from a to b, times how often mode m makes them
             (`_Pricer._copy_seconds`); paid once, however many ops read the copy; and what it
             takes to cut a kernel in two for that

So the objective is the plan's price, and not an approximation of it.

Constraints, each with the function that makes it
    one choice a node     sum x[v, .] = 1, sum y[o, .] = 1                    `solve.Problem`
    reading               an op reads a value in a, or in b where its phase and the
                          mode let it see the copy: other pairs are absent    `domains._read_edge`
    writing               a value is stored as its maker writes it            `domains._write_edge`
    state and carries     a state's result lies as the state, a loop's carry
                          has one layout: equal layouts                       `domains._connect`
    memory, for t in T    sum of what chosen layouts occupy at t <= limit, less constants:
                          values while they live, copies from first to last
                          reader of a phase                                   `_value_usages`
                          a partial sum beside what it is scattered into,
                          a ragged product's rows once per group              `_op_usages`
                          operands in another order of dimensions             `_scratch`
    requirements          choices removed, hubs and rows added               `requirements.restrict`

A class of repeated blocks is one node: its price is the sum over its members, and every member has
its own usage in time, so that folding loses no resolution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoshard.cost.cut_kernels import cut_seconds
from autoshard.cost.ragged import masked_bytes
from autoshard.cost.reordering import stack_bytes, transposing
from autoshard.cost.rings import ring_bytes
from autoshard.cost.row_exchange import window_bytes
from autoshard.cost.several_slices import axes_between
from autoshard.cost.step_prices import StepPrices
from autoshard.cost.tiling import padding
from autoshard.cost.transfers import exposed_share, is_transfer, transfer_seconds
from autoshard.plan.copies import ANEW
from autoshard.plan.decisions import Decisions
from autoshard.problem.domains import Domains, Subject, domains_of
from autoshard.problem.encode import decode, encode
from autoshard.problem.folded_terms import Folded, fold
from autoshard.problem.memo import Once, Shared
from autoshard.problem.requirements.hub_nodes import Hub
from autoshard.problem.value_choices import Rows, ValueChoices, rows_in_order
from autoshard.program.layout import LayoutTable
from autoshard.program.repeats import Classes
from autoshard.program.strategies import Strategies
from autoshard.program.trace import Program
from autoshard.solve.problem import Node, Problem, Usage


@dataclass(frozen=True, slots=True, eq=False)
class Built:
    """A problem, and what its nodes mean.

    Attributes:
      problem: numbers only.
      value_node, op_node: node of every value class and op class, or -1.
      value_choices, op_strategies: by class.
      hubs: nodes that stand for requirements; they come last
      (`autoshard.problem.requirements.restrict`).
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
    folded: Folded | None = None,
) -> Built:
    """Build the problem.

    Args:
      prices: cost laws of the program on the machine and mesh.
      classes: which ops and values share decisions.
      limit: bytes per device, or None.
      join_sums: whether terms of sums may stay unreduced, and be settled in steps
        (`autoshard.plan.unreduced_sums`).
      shared: what earlier builds for such a mesh made; what this one makes is added.
      folded: `autoshard.problem.folded_terms.fold(prices, classes, join_sums=join_sums)` where that
      is known.
    """
    if folded is None:
        folded = fold(prices, classes, join_sums=join_sums)
    shared = shared or Shared()
    shared.on(prices)
    subject = _subject(prices, classes, folded, shared)
    return _Pricer(subject, prices, shared).run(limit)


def _subject(prices: StepPrices, classes: Classes, folded: Folded, shared: Shared) -> Subject:
    """The strategies of every op class and the layouts of every value class."""
    program, mesh, sums = prices.program, prices.mesh_shape, folded.sums
    across = axes_between(prices.topology)
    strategies: dict[int, Strategies] = {}
    for number, members in enumerate(classes.op_members):
        op = program.ops[members[0]]
        shapes = tuple(program.values[v].shape for v in op.outputs)
        joins = op.index in sums.joins
        pending = not sums.pending.isdisjoint(op.outputs)
        last = across if op.index in sums.in_steps else ()
        strategies[number] = shared.strategies(
            op.rule, mesh, shapes, joins=joins, pending=pending, last=last
        )
    tables: dict[int, LayoutTable] = {}
    for number, members in enumerate(classes.value_members):
        value = program.values[members[0]]
        if not value.free:
            pending = value.index in sums.pending
            tables[number] = shared.table(value.shape, value.itemsize, mesh, pending=pending)
    return Subject(program, prices.dataflow, classes, folded, strategies, tables)


class _Pricer:
    """Prices nodes and what they take in memory; one instance per problem."""

    def __init__(self, subject: Subject, prices: StepPrices, shared: Shared) -> None:
        self.prices = prices
        self.program: Program = prices.program
        self.flow = prices.dataflow
        self.classes = subject.classes
        self.folded = subject.folded
        self.strategies = subject.strategies
        self.nodes: list[Node] = []
        self.usages: list[Usage] = []
        self._seconds: dict[object, tuple[LayoutTable, NDArray[np.float64]]] = {}
        self._shared, self._once = shared, Once()
        self.domains: Domains = domains_of(subject, shared)
        self.choices = self.domains.with_tables(subject.tables)

    def run(self, limit: float | None) -> Built:
        for number, choices in self.choices.items():
            self._value(number, choices)
        for number in self.domains.op_node:
            self._op(number)
        domains = self.domains
        usages = tuple(self.usages)
        problem = Problem(tuple(self.nodes), domains.edges, usages, self._left(limit))
        return Built(
            problem,
            self.prices,
            self.classes,
            domains.value_node,
            domains.op_node,
            self.choices,
            self.strategies,
        )

    def _left(self, limit: float | None) -> float | None:
        """What a limit leaves beside the program's constants."""
        return None if limit is None else limit - float(self.program.constant_bytes)

    # -- nodes ---------------------------------------------------------------------------

    def _value(self, number: int, choices: ValueChoices) -> None:
        first = self.classes.value_members[number][0]
        costs = self._value_seconds(number, choices)
        name = self.program.values[first].path or "value"
        self.nodes.append(Node(f"{name}#{first}", costs))
        self._value_usages(number, choices)
        if choices.strategy is not None:
            self._merged_scratch(number, choices.strategy[choices.stored])

    def _op(self, number: int) -> None:
        members = self.classes.op_members[number]
        op = self.program.ops[members[0]]
        self.nodes.append(Node(f"{op.primitive}#{op.index}", self._op_seconds(number)))
        self._op_usages(number, members)

    # -- prices --------------------------------------------------------------------------

    def _value_seconds(self, number: int, choices: ValueChoices) -> NDArray[np.float64]:
        """Seconds of the copies of a value, and of the op that its layout decides."""
        seconds = self._copy_seconds(number, choices)
        if choices.strategy is None:
            return seconds
        maker = self.program.values[self.classes.value_members[number][0]].producer
        op_number = int(self.classes.op_class[maker])
        return seconds + self._op_seconds(op_number)[choices.strategy[choices.stored]]

    def _op_seconds(self, number: int) -> NDArray[np.float64]:
        strategies = self.strategies[number]
        total = np.zeros(len(strategies))
        for term in self.folded.terms[number]:
            compute, settle = self._shared.seconds_of(self.prices, term.op, strategies)
            total += term.times * (compute + term.exposed * settle)
            if is_transfer(term.op):
                moved = transfer_seconds(self.prices, term.op, strategies)
                total += term.times * exposed_share(self.prices, term.op) * moved
        return total

    def _copy_seconds(self, number: int, choices: ValueChoices) -> NDArray[np.float64]:
        a, b, mode = choices.stored, choices.copy, choices.mode
        if not self._shared.once("copies", (a, b), lambda: not (a == b).all()):
            return np.zeros(len(a))
        total = np.zeros(len(a))
        for term in self.folded.copy_terms[number]:
            seconds = self._reshard_seconds(term.value, choices.table)
            made = self._once("copied", (seconds, a, b), lambda s=seconds: s[a, b])
            total = total + self._copied_seconds(made, mode, term.times)
            if term.cuts:
                cut = cut_seconds(self.prices, term.value, choices.table.dimensions)[a]
                total = total + np.where(mode > 0, term.cuts * cut, 0.0)
        return total

    def _copied_seconds(
        self, made: NDArray[np.float64], mode: NDArray[np.int64], times: tuple[float, ...]
    ) -> NDArray[np.float64]:
        return self._once("copy seconds", (made, mode), lambda: made * np.array(times)[mode], times)

    def _reshard_seconds(self, value: int, table: LayoutTable) -> NDArray[np.float64]:
        """Seconds from every layout of `table` to every other; found once for values alike."""
        key = id(table), self.flow.sending(value)
        if key not in self._seconds:
            reshard = self.prices.reshard(value)
            rows = rows_in_order(reshard.layouts, table)
            self._seconds[key] = table, reshard.seconds[np.ix_(rows, rows)]
        return self._seconds[key][1]

    # -- memory --------------------------------------------------------------------------

    def _value_usages(self, number: int, choices: ValueChoices) -> None:
        node = self.domains.value_node[number]
        table, a, b, mode = choices.table, choices.stored, choices.copy, choices.mode

        def bytes_of(value: int) -> NDArray[np.float64]:
            inner = self.flow.innermost.get(value)
            return self._once("bytes", (table,), lambda: self._held_bytes(table, inner), inner)

        def held_in(value: int) -> NDArray[np.float64]:
            held, factor = bytes_of(value), self.prices.heap_factor(value)
            return self._once("held", (held, a), lambda: held[a] * factor, factor)

        def taken_in(value: int, modes: frozenset[int]) -> NDArray[np.float64]:
            lives = np.zeros(ANEW + 1, dtype=bool)
            lives[list(modes)] = True
            factor = self.prices.copy_factor(value, table.dimensions)
            return np.where(lives[mode], (bytes_of(value) * factor)[b], 0.0)

        for life in self.folded.lives[number]:
            value, (start, stop) = life.value, life.span
            if stop > start:
                self.usages.append(Usage(node, held_in(value), start, stop))
            if value in self.flow.slices and (mode > 0).any():
                one = self.flow.slices[value]
                dimensions = table.dimensions
                stacks = stack_bytes(self.prices, value, dimensions[a], dimensions[b]) * (mode > 0)
                if stacks.any():
                    self.usages.append(Usage(node, stacks, one.start, one.stop))
            if self.flow.is_inside(self.program, value) and (mode > 0).any():
                at = self.flow.when[self.program.values[value].producer]
                sent = (bytes_of(value) * self.prices.scratch_factor)[a]
                self.usages.append(Usage(node, np.where(mode > 0, sent, 0.0), at, at + 1))
            narrowed = self.flow.narrowed.get(value)
            for modes, (first, last) in life.copies:
                copies = self._once(
                    "taken",
                    (bytes_of(value), b, mode),
                    lambda v=value, m=modes: taken_in(v, m),
                    (modes, narrowed),
                )
                if self._once("any", (copies,), lambda c=copies: bool(c.any())):
                    self.usages.append(Usage(node, copies, first, last))

    def _held_bytes(
        self, table: LayoutTable, innermost: tuple[int, ...] | None
    ) -> NDArray[np.float64]:
        """Bytes that every layout of a table takes in memory, see `autoshard.cost.tiling`."""
        sizes = np.array(table.shape, dtype=np.int64) // table.shards
        return table.local_bytes * padding(sizes, self.prices.machine.chip, innermost)

    def _op_usages(self, number: int, members: Sequence[int]) -> None:
        """What an op takes while it runs."""
        op, strategies = self.program.ops[members[0]], self.strategies[number]
        whole = np.zeros(len(strategies))
        for k, output in enumerate(op.outputs):
            whole += self.prices.held_bytes(output, strategies.written[k])
        whole = np.where(strategies.scattered, whole, 0.0)
        whole += masked_bytes(self.prices, op, strategies) + ring_bytes(self.prices, op, strategies)
        whole += window_bytes(self.prices, op, strategies)
        extra = whole * self.prices.scratch_factor
        if extra.any():
            for at in (self.flow.when[member] for member in members):
                self.usages.append(Usage(self.domains.op_node[number], extra, at, at + 1))
        self._scratch(self.domains.op_node[number], members, strategies, np.arange(len(strategies)))

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

    def _merged_scratch(self, number: int, rows: Rows) -> None:
        """Copies of transposed operands of the op that a value's layout decides."""
        values = self.program.values
        makers = [values[member].producer for member in self.classes.value_members[number]]
        made = self.strategies[int(self.classes.op_class[makers[0]])]
        self._scratch(self.domains.value_node[number], makers, made, rows)
