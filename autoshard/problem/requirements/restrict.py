"""Requirements in a built problem.

A requirement that holds in every plan removes choices: what it forbids is absent. Ties are edges
that are 0 between equal layouts and forbid all others. A limit of B on amounts a_i(x_i) is a row

    sum_i a_i(x_i) * L / B  <=  L        with L the problem's memory limit,

which stands as usages at a time of its own, after the step; B = 0 removes choices instead.

A requirement that may be broken has a node of its own, a **hub**, with the choices "kept" and
"dropped". Its edges forbid "kept" beside the choices that break the requirement; the hub of a tie
has a "kept" for every layout, and each tied value an edge to it. "Dropped" costs the price of the
requirement. A limit's row is let out by what its hub does not use when it is dropped:

    sum_i a_i(x_i)  +  (M - B) [kept]  <=  M        with M the most that the sum can be.

The least of the memory limits that are kept is a node, which takes M - B of every memory row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from autoshard.plan.plan import MeshShape
from autoshard.problem.build import Built
from autoshard.problem.requirements.bind import Bound
from autoshard.problem.requirements.collective_rows import collective_amounts
from autoshard.problem.requirements.filter_choices import narrowed
from autoshard.problem.requirements.hub_nodes import Hub
from autoshard.problem.requirements.records import ChangeLimit, CollectiveLimit, MemoryLimit
from autoshard.program.layout import LayoutTable
from autoshard.program.select import group_path
from autoshard.solve.problem import Edge, Node, Problem, Usage

Mask = NDArray[np.bool_]
Floats = NDArray[np.float64]
ROUNDING = 1e-9
"""Sums of amounts may exceed a limit by this part of it, which is less than one collective."""


class EmptyDomainError(ValueError):
    """A value for which the requirements leave no layout."""


def restricted(built: Built, bounds: Sequence[Bound], mesh: MeshShape) -> Built:
    """The problem under requirements.

    Args:
      built: without requirements; its limit is the least of all that must hold.
      bounds: of the program, on this mesh.
      mesh: axis names and sizes.

    Raises:
      EmptyDomainError: no choice is left to a value.
    """
    work = _Restrictor(built, mesh)
    for bound in bounds:
        if bound.requirement.hard:
            work.require(bound)
    narrowed = work.narrowed()
    work = _Restrictor(narrowed, mesh)
    for bound in bounds:
        if bound.requirement.hard:
            work.join(bound)
        else:
            work.hub(bound, bound.requirement.price or 0.0)
    return work.finished()


def relaxable(built: Built, bounds: Sequence[Bound], mesh: MeshShape) -> Built:
    """The problem with a hub for every requirement, whatever its strength, at no price.

    The problem's own memory limit is dropped: give it as a bound, if it is to hold.
    """
    work = _Restrictor(replace(built, problem=replace(built.problem, limit=None)), mesh)
    for bound in bounds:
        work.hub(bound, 0.0)
    return work.finished()


@dataclass(frozen=True, slots=True)
class _Row:
    """A limit: what the choices of nodes add, and the most that they may add up to."""

    amounts: Mapping[int, Floats]
    most: float


class _Restrictor:
    """Collects what is added to one problem, or removed from it."""

    def __init__(self, built: Built, mesh: MeshShape) -> None:
        self.built = built
        self.mesh = mesh
        self.masks: dict[int, Mask] = {}
        self.nodes: list[Node] = []
        self.edges: list[Edge] = []
        self.rows: list[_Row] = []
        self.hubs: list[Hub] = []
        self.memory: list[tuple[int, float]] = []  # hubs of memory limits, and those limits
        self._tables: dict[object, Floats] = {}

    # -- removing choices ------------------------------------------------------------------------

    def require(self, bound: Bound) -> None:
        """Remove the choices that break a requirement by themselves."""
        for number, mask in self._broken(bound).items():
            self._remove(self.built.value_node[number], mask, bound)
        if isinstance(bound.requirement, CollectiveLimit) and bound.requirement.most == 0:
            for node, amounts in self._collectives(bound.requirement).items():
                self._remove(node, amounts > 0, bound)

    def _remove(self, node: int, broken: Mask, bound: Bound) -> None:
        mask = self.masks.get(node, True) & ~broken
        self.masks[node] = mask
        if not mask.any():
            raise EmptyDomainError(f"{bound} leaves no layout for {self._problem.nodes[node].name}")

    def _broken(self, bound: Bound) -> dict[int, Mask]:
        """By class of values, the choices that break pins, or forbidden layouts."""
        found: dict[int, Mask] = {}
        for values, forbidden in ((bound.pins, False), (bound.forbids, True)):
            for value, pattern in values:
                number = self._class(value)
                choices = self.built.value_choices[number]
                inside = pattern.mask(choices.table.dimensions, self.mesh.names, self.mesh.sizes)
                broken = ~inside[choices.stored]
                if forbidden:
                    broken = inside[choices.stored] | inside[choices.copy]
                found[number] = found.get(number, np.zeros(len(broken), dtype=bool)) | broken
        return found

    def narrowed(self) -> Built:
        """The built problem with only the choices that are left."""
        return narrowed(self.built, self.masks)

    # -- what must hold --------------------------------------------------------------------------

    def join(self, bound: Bound) -> None:
        """Add what a requirement says of several values at once."""
        numbers = self._classes(bound.ties)
        for other in numbers[1:]:
            u, v = (self.built.value_choices[n] for n in (numbers[0], other))
            table = self._equal(u.table)
            ends = self.built.value_node[numbers[0]], self.built.value_node[other]
            self.edges.append(Edge(*ends, table, u.stored, v.stored))
        self._name_hubs(bound, None)
        requirement = bound.requirement
        if isinstance(requirement, CollectiveLimit) and requirement.most > 0:
            self.rows.append(_Row(self._collectives(requirement), requirement.most))
        if isinstance(requirement, ChangeLimit):
            # No change at all is half a change at most.
            self.rows.append(_Row(self._changes(bound), requirement.most or 0.5))

    # -- what may be broken ----------------------------------------------------------------------

    def hub(self, bound: Bound, price: float) -> None:
        """Add a node that says whether a requirement is kept."""
        requirement = bound.requirement
        if bound.ties:
            self._tie_hub(bound, price)
            return
        node = self._node(str(bound), [0.0, price])
        self.hubs.append(Hub(bound, node, kept=(0,), dropped=1))
        for number, broken in self._broken(bound).items():
            table = np.array([[0.0, np.inf], [0.0, 0.0]])
            target = self.built.value_node[number]
            self.edges.append(Edge(node, target, table, np.arange(2), broken.astype(np.int64)))
        self._name_hubs(bound, node)
        if isinstance(requirement, MemoryLimit):
            reserved = float(self.built.prices.program.constant_bytes)
            self.memory.append((node, requirement.bytes - reserved))
        if isinstance(requirement, CollectiveLimit | ChangeLimit):
            changes = isinstance(requirement, ChangeLimit)
            amounts = self._changes(bound) if changes else self._collectives(requirement)
            most = sum(float(a.max()) for a in amounts.values())
            if most > requirement.most:
                free = np.array([most - requirement.most, 0.0])
                self.rows.append(_Row({**amounts, node: free}, most))

    def _tie_hub(self, bound: Bound, price: float) -> None:
        numbers = self._classes(bound.ties)
        table = self.built.value_choices[numbers[0]].table
        count = len(table)
        node = self._node(str(bound), [*([0.0] * count), price])
        self.hubs.append(Hub(bound, node, kept=tuple(range(count)), dropped=count))
        costs = np.concatenate([self._equal(table), np.zeros((1, count))])
        for number in numbers:
            stored = self.built.value_choices[number].stored
            target = self.built.value_node[number]
            self.edges.append(Edge(node, target, costs, np.arange(count + 1), stored))

    def _name_hubs(self, bound: Bound, master: int | None) -> None:
        """A node per logical name: the axes on which it lies; `master` drops them all."""
        if not bound.names:
            return
        live = [axis for axis, size in enumerate(self.mesh.sizes) if size > 1]
        options = [
            frozenset(axis for k, axis in enumerate(live) if number >> k & 1)
            for number in range(2 ** len(live))
        ]
        hubs: dict[str, int] = {}
        for _, names in bound.names:
            for name in names:
                if name is None or name in hubs:
                    continue
                free = 0 if master is None else 1
                hubs[name] = self._node(f"{bound}: {name}", [0.0] * (len(options) + free))
                kept = tuple(range(len(options)))
                dropped = len(options) if free else None
                axes = tuple(
                    tuple(self.mesh.names[a] for a in sorted(option)) for option in options
                )
                self.hubs.append(Hub(bound, hubs[name], kept, dropped, name, axes))
                if master is not None:
                    table = np.zeros((2, len(options) + 1))
                    table[0, -1] = np.inf
                    self.edges.append(Edge.dense(master, hubs[name], table))
        done: set[tuple[int, tuple[str | None, ...]]] = set()
        for value, names in bound.names:
            number = self._class(value)
            if (number, names) in done:
                continue
            done.add((number, names))
            choices = self.built.value_choices[number]
            for position, name in enumerate(names):
                axes = [frozenset[int]()] if name is None else options
                allowed = _ruled(choices.table, position, axes)
                node = self.built.value_node[number]
                if name is None:
                    self._whole(node, master, allowed[0][choices.stored])
                    continue
                table = np.where(allowed, 0.0, np.inf)
                if master is not None:
                    table = np.concatenate([table, np.zeros((1, table.shape[1]))])
                rows = np.arange(len(table))
                self.edges.append(Edge(hubs[name], node, table, rows, choices.stored))

    def _whole(self, node: int, master: int | None, kept: Mask) -> None:
        """Forbid what is not in `kept`: with an edge to the master, or to a node of one choice."""
        if master is None:
            master = self._node("always", [0.0])
            table = np.array([[0.0, np.inf]])
        else:
            table = np.array([[0.0, np.inf], [0.0, 0.0]])
        broken = (~kept).astype(np.int64)
        self.edges.append(Edge(master, node, table, np.arange(len(table)), broken))

    # -- the result ------------------------------------------------------------------------------

    def finished(self) -> Built:
        """The built problem with everything that was added."""
        problem = self._problem
        usages, limit = list(problem.usages), problem.limit
        end = max((usage.stop for usage in usages), default=0)
        if self.memory:
            most = max(_heaviest(problem), 1.0)
            usages.append(self._memory_level(most, most if limit is None else limit, end))
            limit = most
        elif limit is None and self.rows:
            usages, limit = [], 1.0
        for number, row in enumerate(self.rows):
            assert limit is not None
            scale = limit / (row.most * (1 + ROUNDING))
            for node, amounts in row.amounts.items():
                usages.append(Usage(node, amounts * scale, end + number, end + number + 1))
        nodes = (*problem.nodes, *self.nodes)
        edges = (*problem.edges, *self.edges)
        return replace(
            self.built,
            problem=Problem(nodes, edges, tuple(usages), limit, problem.offset),
            hubs=(*self.built.hubs, *self.hubs),
        )

    def _memory_level(self, limit: float, hard: float, end: int) -> Usage:
        """A node for the least of the memory limits that are kept; it uses up what they take away.

        `limit` is more than any plan needs, `hard` must be kept, `end` is the end of the step.
        Limits below nothing cannot be kept.
        """
        top = min(limit, hard)
        levels = np.array(sorted({most for _, most in self.memory if 0 <= most < top} | {top}))
        node = self._node("memory", [0.0] * len(levels))
        for hub, most in self.memory:
            table = np.zeros((2, len(levels)))
            table[0, levels > most] = np.inf
            self.edges.append(Edge.dense(hub, node, table))
        return Usage(node, limit - levels, 0, end)

    @property
    def _problem(self) -> Problem:
        return self.built.problem

    def _node(self, name: str, costs: Sequence[float]) -> int:
        self.nodes.append(Node(name, np.array(costs)))
        return len(self._problem.nodes) + len(self.nodes) - 1

    def _class(self, value: int) -> int:
        return int(self.built.classes.value_class[value])

    def _classes(self, values: Sequence[int]) -> list[int]:
        return list(dict.fromkeys(self._class(value) for value in values))

    def _equal(self, table: LayoutTable) -> Floats:
        key = len(table)
        if key not in self._tables:
            self._tables[key] = np.where(np.eye(len(table), dtype=bool), 0.0, np.inf)
        return self._tables[key]

    def _collectives(self, limit: CollectiveLimit) -> dict[int, Floats]:
        """What every choice adds to limited collectives, by node."""
        return collective_amounts(self.built, limit, self.mesh.names)

    def _changes(self, bound: Bound) -> dict[int, Floats]:
        """A node for every group of inputs that counts once, which says whether it has changed."""
        program = self.built.prices.program
        groups: dict[str, int] = {}
        done: set[tuple[str, int]] = set()
        for value, pattern in bound.before:
            path = group_path(program.values[value].path)
            if path not in groups:
                groups[path] = self._node(f"changed {path}", [0.0, 0.0])
            number = self._class(value)
            if (path, number) in done:
                continue
            done.add((path, number))
            choices = self.built.value_choices[number]
            kept = pattern.mask(choices.table.dimensions, self.mesh.names, self.mesh.sizes)
            differs = (~kept[choices.stored]).astype(np.int64)
            table = np.array([[0.0, np.inf], [0.0, 0.0]])
            target = self.built.value_node[number]
            self.edges.append(Edge(groups[path], target, table, np.arange(2), differs))
        return {node: np.array([0.0, 1.0]) for node in groups.values()}


def _ruled(table: LayoutTable, position: int, options: Sequence[frozenset[int]]) -> Mask:
    """`[options, layouts]`: whether a dimension lies on the option's axes.

    Axes on earlier dimensions of the same layout are left out.
    """
    result = np.zeros((len(options), len(table)), dtype=bool)
    for column, layout in enumerate(table.layouts):
        here = {axis for axis, dimension in enumerate(layout) if dimension == position}
        earlier = {axis for axis, dimension in enumerate(layout) if 0 <= dimension < position}
        for row, option in enumerate(options):
            result[row, column] = here == option - earlier
    return result


def _heaviest(problem: Problem) -> float:
    """More than any plan has in memory at any time."""
    events: dict[int, float] = {}
    for usage in problem.usages:
        most = float(usage.amounts.max())
        events[usage.start] = events.get(usage.start, 0.0) + most
        events[usage.stop] = events.get(usage.stop, 0.0) - most
    loads = np.cumsum([events[time] for time in sorted(events)])
    return float(loads.max(initial=0.0)) * (1 + ROUNDING)
