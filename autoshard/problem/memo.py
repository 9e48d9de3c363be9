"""What builds on meshes of equal sizes share: of one program at many sizes, on any machine.

Strategies and layouts depend on a size only by which axes of the mesh, together, divide it. So ops
and values of other sizes, within a program and from one program to the next, have the same
strategies and layouts, as the same objects; and what follows from these (the choices of a value,
what its readers see of them) is found once for all that have the same.

What follows from arrays is remembered by their identity. They are kept with it, and never written.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from autoshard.cost.reshard import ReshardCache
from autoshard.cost.step_prices import StepPrices
from autoshard.cost.within_ops import waited_within
from autoshard.machine.machine import Machine
from autoshard.problem.value_choices import Rows, ValueChoices, layout_rows, sensible_pairs
from autoshard.program.graph import Op
from autoshard.program.layout import LayoutTable, layout_table, with_pending
from autoshard.program.rules.ask_shardy import Rule
from autoshard.program.strategies import Strategies, enumerate_strategies, is_layout_determined
from autoshard.solve.allowed import Allowed
from autoshard.solve.flat_memo import FlatMemo
from autoshard.solve.problem import Edge

T = TypeVar("T")
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Once:
    """What was found from objects, by their identity; these are kept, so that no other has it."""

    known: dict[object, tuple[object, Any]] = field(default_factory=dict)

    def __call__(
        self, what: str, owners: tuple[object, ...], make: Callable[[], T], *also: Hashable
    ) -> T:
        """What `make` gives for these very objects, and for what else it depends on."""
        key = (what, *map(id, owners), *also)
        if key not in self.known:
            self.known[key] = owners, make()
        return self.known[key][1]


@dataclass(slots=True, eq=False)
class Shared:
    """See the module. One of these belongs to one mesh shape.

    Attributes:
      visible, equal: tables of zeros; these are the same on meshes of other sizes, too.
      arrays: of the solver (`autoshard.solve.flat_memo`).
      once: what follows from the arrays of all builds.
      edges: of the last build; the next one has the same tuple if its edges are the same.
      domains: `autoshard.problem.domains.Domains` of the last build.
      machine: of the last build; seconds of ops are kept for one machine.
      reshards: of the last build.
    """

    visible: dict[object, Allowed] = field(default_factory=dict)
    equal: dict[int, NDArray[np.float64]] = field(default_factory=dict)
    arrays: FlatMemo = field(default_factory=FlatMemo)
    edges: tuple[Edge, ...] = ()
    domains: object | None = None
    machine: Machine | None = None
    reshards: ReshardCache | None = None
    _strategies: dict[object, Strategies] = field(default_factory=dict)
    _tables: dict[object, LayoutTable] = field(default_factory=dict)
    _seconds: dict[object, tuple[NDArray[np.float64], NDArray[np.float64]]] = field(
        default_factory=dict
    )
    once: Once = field(default_factory=Once)

    def beside(self) -> Shared:
        """For builds on meshes of other sizes."""
        arrays = FlatMemo(self.arrays.rows)
        return Shared(visible=self.visible, equal=self.equal, arrays=arrays)

    def strategies(
        self,
        rule: Rule,
        mesh: tuple[int, ...],
        shapes: tuple[tuple[int, ...], ...],
        *,
        joins: bool,
        pending: bool,
        last: tuple[int, ...] = (),
    ) -> Strategies:
        """See `autoshard.program.strategies.enumerate_strategies`."""
        key = rule, shapes, joins, pending, last
        if key not in self._strategies:
            alike = _standing_for_rule(rule, mesh)
            sizes = tuple(tuple(_standing_for(size, mesh) for size in shape) for shape in shapes)
            general = alike, sizes, joins, pending, last
            if general not in self._strategies:
                self._strategies[general] = enumerate_strategies(
                    alike, mesh, sizes, joins=joins, pending=pending, last=last
                )
            self._strategies[key] = self._strategies[general]
        return self._strategies[key]

    def table(
        self, shape: tuple[int, ...], itemsize: float, mesh: tuple[int, ...], *, pending: bool
    ) -> LayoutTable:
        """The layouts of a value; those of values that divide alike have one `dimensions`."""
        key = shape, itemsize, pending
        if key not in self._tables:
            # Inputs and carries of no elements stay whole; nobody reads them.
            dimensions = () if 0 in shape else None
            table = layout_table(shape, itemsize, mesh, dimensions=dimensions)
            table = with_pending(table) if pending else table
            sizes = tuple(_standing_for(size, mesh) for size in shape)
            alike = self._tables.setdefault((sizes, pending), table)
            self._tables[key] = replace(
                table, layouts=alike.layouts, dimensions=alike.dimensions, rows=alike.rows
            )
        return self._tables[key]

    def rows(self, table: LayoutTable, dimensions: Rows) -> Rows:
        """See `autoshard.problem.value_choices.layout_rows`."""
        owners = table.dimensions, dimensions
        return self.once("rows", owners, lambda: layout_rows(table, dimensions))

    def marked(self, table: LayoutTable, groups: Sequence[Rows]) -> Mask:
        """Which layouts are among `groups`, each the rows of some strategies in `table`."""
        distinct = tuple({id(group): group for group in groups}.values())
        distinct = tuple(sorted(distinct, key=id))

        def find() -> Mask:
            found = np.zeros(len(table), dtype=bool)
            for group in distinct:
                found[group[group >= 0]] = True
            return self._one_of(found)

        return self.once("marked", (table.dimensions, *distinct), find)

    def every(self, table: LayoutTable) -> Mask:
        """All layouts."""
        return self.once("every", (), lambda: np.ones(len(table), dtype=bool), len(table))

    def _one_of(self, found: Mask) -> Mask:
        """The first of all masks that mark the same."""
        return self.once("mask", (), lambda: found, found.tobytes())

    def first_of(self, table: LayoutTable, rows: Rows) -> Rows:
        """For every layout the first strategy that has it, or -1, of those whose rows are given."""

        def find() -> Rows:
            first = np.full(len(table), -1, dtype=np.int64)
            first[rows[::-1]] = np.arange(len(rows))[::-1]
            return first

        return self.once("first", (table.dimensions, rows), find)

    def is_decided_by_layout(self, rule: Rule) -> bool:
        """See `autoshard.program.strategies.is_layout_determined`."""
        return self.once("decided", (rule,), lambda: is_layout_determined(rule))

    def pairs(self, table: LayoutTable) -> Mask:
        """See `autoshard.problem.value_choices.sensible_pairs`."""
        return self.once("pairs", (table.dimensions,), lambda: sensible_pairs(table.dimensions))

    def seen(self, choices: ValueChoices, bit: int) -> tuple[Allowed, Rows]:
        """0 where a reader finds its layout stored or in the copy, +inf elsewhere; and the rows.

        `bit` is that of the modes whose copies the reader sees (`autoshard.plan.copies.VISIBLE`).
        """
        size = len(choices.table)

        def find() -> tuple[Allowed, Rows]:
            copy = np.where(choices.mode & bit, choices.copy, choices.stored)
            codes = np.minimum(choices.stored, copy) * size + np.maximum(choices.stored, copy)
            found = np.zeros(size * size, dtype=bool)
            found[codes] = True
            rows = np.flatnonzero(found)
            left = (np.cumsum(found) - 1)[codes]
            key = size, rows.tobytes()
            if key not in self.visible:
                self.visible[key] = Allowed(rows // size, rows % size, size)
            return self.visible[key], left

        return self.once("seen", (choices.stored, choices.copy, choices.mode), find, size, bit)

    def through(self, layouts: Rows, strategy: Rows, stored: Rows) -> Rows:
        """What the op that a value's layout decides reads, by choice of the value."""
        return self.once("through", (layouts, strategy, stored), lambda: layouts[strategy[stored]])

    def identity(self, size: int) -> NDArray[np.float64]:
        """0 where two layouts are the same, +inf elsewhere."""
        if size not in self.equal:
            matrix = np.full((size, size), np.inf)
            np.fill_diagonal(matrix, 0.0)
            self.equal[size] = matrix
        return self.equal[size]

    def tie(self, edges: Sequence[Edge]) -> tuple[Edge, ...]:
        """The edges, as the tuple of the last build where they are the same."""
        same = len(edges) == len(self.edges) and all(map(operator.is_, edges, self.edges))
        if not same:
            self.edges = tuple(edges)
        return self.edges

    def edge(
        self, u: int, v: int, table: NDArray[np.float64] | Allowed, left: Rows, right: Rows
    ) -> Edge:
        """An edge, which checks itself once."""
        owners = table, left, right
        return self.once("edge", owners, lambda: Edge(u, v, table, left, right), u, v)

    def on(self, prices: StepPrices) -> None:
        """Forget what was found for another machine."""
        self.reshards = prices.reshards
        if prices.machine != self.machine:
            self.machine = prices.machine
            self._seconds.clear()

    def seconds_of(
        self, prices: StepPrices, op: Op, strategies: Strategies
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Seconds of computing an op, waits of its ring or exchange included, and of settling it.

        Found once for ops that cost the same.
        """
        key = prices.priced_by(op), id(strategies)
        if key not in self._seconds:
            compute = prices.compute_seconds(op, strategies)
            compute = compute + waited_within(prices, op, strategies)
            self._seconds[key] = compute, prices.settle_seconds(op, strategies)
        return self._seconds[key]


@functools.lru_cache(maxsize=256)
def _parts(mesh: tuple[int, ...]) -> frozenset[int]:
    """Into how many parts any of the axes of a mesh together cut something."""
    parts = {1}
    for size in mesh:
        parts |= {size * part for part in parts}
    return frozenset(parts)


@functools.lru_cache(maxsize=65_536)
def _standing_for(size: int, mesh: tuple[int, ...]) -> int:
    """The size that stands for all sizes that the same axes divide.

    >>> [_standing_for(size, (2, 4)) for size in (0, 1, 2, 4, 8, 12, 16, 35)]
    [0, 1, 2, 4, 8, 4, 8, 9]
    """
    if size < 2:
        return size
    common = math.lcm(*(part for part in _parts(mesh) if size % part == 0))
    return common if common > 1 else math.prod(mesh) + 1


def _standing_for_rule(rule: Rule, mesh: tuple[int, ...]) -> Rule:
    """The rule that stands for all with the same strategies.

    Whether a factor is used up counts where another one follows it within a dimension: then so
    does whether some of the axes do that.
    """
    major = {f for tensor in (*rule.operands, *rule.results) for d in tensor for f in d[:-1]}
    factors = []
    chips = math.prod(mesh)
    for number, factor in enumerate(rule.factors):
        size = _standing_for(factor.size, mesh)
        if number in major and (size != factor.size or size == chips):
            size *= chips + 1
        factors.append(replace(factor, size=size))
    return replace(rule, factors=tuple(factors))
