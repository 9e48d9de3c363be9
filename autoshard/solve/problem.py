"""The waist of autoshard: a choice problem made of numbers only.

Every node i picks one of its choices, x_i. A plan x costs

    offset  +  sum_i costs_i[x_i]  +  sum_e weight_e * table_e[left_e[x_u], right_e[x_v]]

and is allowed when no picked pair costs +inf and when, at every time t,

    sum over the usages with start <= t < stop of amounts[x_node]  <=  limit.

A pair table is small and shared: `left` and `right` project the choices of the two nodes onto the
rows and columns of the table (the layouts of one value), so an edge between two nodes of thousands
of choices is never written out. A forbidden choice is simply absent from its node; a forbidden
pair is +inf in its table; nothing is ever "a large number".

The records are immutable, check themselves, and know nothing of JAX. Arrays given to them become
read-only in place, so that one table stays one object however many edges share it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from autoshard.solve.allowed import Allowed
from autoshard.solve.limit_hit import LimitHit
from autoshard.units import counted, format_percent

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]


class ProblemError(ValueError):
    """A record that contradicts itself; the message lists every offender and the repair."""


def _frozen(values: ArrayLike, kind: type) -> NDArray:
    """The values as a read-only array; the same object when they already are an array."""
    array = np.asarray(values, dtype=kind)
    array.setflags(write=False)
    return array


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One decision: `costs[i]` is the price of choice i, in seconds (or the contest's units)."""

    name: str
    costs: Floats

    def __post_init__(self) -> None:
        object.__setattr__(self, "costs", _frozen(self.costs, np.float64))
        if self.costs.ndim != 1 or self.costs.size == 0:
            raise ProblemError(
                f"node {self.name!r}: costs has shape {self.costs.shape}; give one cost per "
                "choice, and at least one choice"
            )
        if not np.isfinite(self.costs).all():
            bad = np.flatnonzero(~np.isfinite(self.costs))[:8].tolist()
            raise ProblemError(
                f"node {self.name!r}: choices {bad} cost {self.costs[bad].tolist()}; leave a "
                "forbidden choice out of the node instead of pricing it"
            )

    def __str__(self) -> str:
        return f"{self.name}: {counted(self.costs.size, 'choice')}, from {self.costs.min():.6g}"


@dataclass(frozen=True, slots=True, eq=False)
class Edge:
    """The price of a pair: choices (i, j) cost `weight * table[left[i], right[j]]`.

    `costs` is the table, or says which pairs it allows; it may be shared by many edges, and +inf in
    it forbids the pair. `left` and `right` project the choices of nodes `u` and `v` onto its rows
    and columns. Parallel edges are allowed.
    """

    u: int
    v: int
    costs: Floats | Allowed
    left: Integers
    right: Integers
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.costs, Allowed):
            object.__setattr__(self, "costs", _frozen(self.costs, np.float64))
        object.__setattr__(self, "left", _frozen(self.left, np.int64))
        object.__setattr__(self, "right", _frozen(self.right, np.int64))
        problems = []
        if self.u == self.v:
            problems.append("joins a node to itself; add its diagonal to the costs of the node")
        shape = self.costs.shape
        if len(shape) != 2 or 0 in shape:
            problems.append(f"table has shape {shape}; give a non-empty matrix")
        else:
            for side, projection, size in (
                ("left", self.left, shape[0]),
                ("right", self.right, shape[1]),
            ):
                if projection.ndim != 1 or projection.size == 0:
                    problems.append(f"{side} has shape {projection.shape}; give one per choice")
                elif projection.min() < 0 or projection.max() >= size:
                    problems.append(
                        f"{side} spans {projection.min()} to {projection.max()} but the table "
                        f"has {size}; project into 0 to {size - 1}"
                    )
            if not isinstance(self.costs, Allowed) and not self.costs.min() > -np.inf:
                problems.append("table holds nan or -inf; use finite costs, or +inf to forbid")
        if not 0.0 < self.weight < np.inf:
            problems.append(f"weight is {self.weight}; give a positive finite number")
        if problems:
            raise ProblemError(f"edge {self.u}-{self.v}: " + "; ".join(problems))

    @property
    def table(self) -> Floats:
        """The table, written out."""
        return self.costs.dense() if isinstance(self.costs, Allowed) else self.costs

    def cost(self, row: int, column: int) -> float:
        """One entry of the table."""
        if isinstance(self.costs, Allowed):
            return self.costs.cost(row, column)
        return float(self.costs[row, column])

    @classmethod
    def dense(cls, u: int, v: int, table: ArrayLike, weight: float = 1.0) -> Edge:
        """An edge whose table has one row per choice of u and one column per choice of v."""
        matrix = np.asarray(table, dtype=np.float64)
        rows, columns = matrix.shape
        return cls(u, v, matrix, np.arange(rows), np.arange(columns), weight)

    def among(self, kept: Mapping[int, Integers], numbers: Mapping[int, int] | None = None) -> Edge:
        """The edge where nodes of `kept` have only those choices.

        Args:
          kept: by node, the choices that are left; other nodes keep all.
          numbers: by node, its new number, where nodes are numbered anew.
        """
        if numbers is None:
            if self.u not in kept and self.v not in kept:
                return self
            numbers = {self.u: self.u, self.v: self.v}
        return replace(
            self,
            u=numbers[self.u],
            v=numbers[self.v],
            left=self.left[kept[self.u]] if self.u in kept else self.left,
            right=self.right[kept[self.v]] if self.v in kept else self.right,
        )

    def pair_costs(self) -> Floats:
        """The full matrix over the choices of both ends (for tests and small problems)."""
        return self.weight * self.table[np.ix_(self.left, self.right)]


@dataclass(frozen=True, slots=True, eq=False)
class Usage:
    """While start <= t < stop, choice i of the node occupies `amounts[i]` bytes."""

    node: int
    amounts: Floats
    start: int
    stop: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "amounts", _frozen(self.amounts, np.float64))
        if self.amounts.ndim != 1 or not np.isfinite(self.amounts).all():
            raise ProblemError(
                f"usage of node {self.node}: amounts {self.amounts!r} must be a vector of "
                "finite bytes, one per choice"
            )
        if self.amounts.size and self.amounts.min() < 0:
            raise ProblemError(
                f"usage of node {self.node}: choice {int(self.amounts.argmin())} occupies "
                f"{self.amounts.min()} bytes; bytes are not negative"
            )
        if self.start > self.stop:
            raise ProblemError(
                f"usage of node {self.node}: starts at {self.start} after it stops at "
                f"{self.stop}; give start <= stop"
            )


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """Nodes, edges, usages and one memory limit in bytes (None: no limit)."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...] = ()
    usages: tuple[Usage, ...] = ()
    limit: float | None = None
    offset: float = 0.0

    def __post_init__(self) -> None:
        for field in ("nodes", "edges", "usages"):
            object.__setattr__(self, field, tuple(getattr(self, field)))
        sizes = [node.costs.size for node in self.nodes]
        count = len(sizes)
        problems = []
        for position, edge in enumerate(self.edges):
            if not (0 <= edge.u < count and 0 <= edge.v < count):
                problems.append(f"edge {position} joins {edge.u}-{edge.v}: no such node")
            elif edge.left.size != sizes[edge.u] or edge.right.size != sizes[edge.v]:
                problems.append(
                    f"edge {position} ({self.nodes[edge.u].name} - {self.nodes[edge.v].name}) "
                    f"projects {edge.left.size} x {edge.right.size} choices; the nodes have "
                    f"{sizes[edge.u]} x {sizes[edge.v]}"
                )
        for position, usage in enumerate(self.usages):
            if not 0 <= usage.node < count:
                problems.append(f"usage {position} is of node {usage.node}: no such node")
            elif usage.amounts.size != sizes[usage.node]:
                problems.append(
                    f"usage {position} ({self.nodes[usage.node].name}) has "
                    f"{counted(usage.amounts.size, 'amount')}; the node has {sizes[usage.node]} "
                    "choices"
                )
        if self.limit is not None and not self.limit >= 0:
            problems.append(f"limit is {self.limit}; give bytes >= 0, or None for no limit")
        if not np.isfinite(self.offset):
            problems.append(f"offset is {self.offset}; give a finite cost")
        if problems:
            shown = "\n  - ".join(problems[:20])
            more = f"\n  and {len(problems) - 20} more" if len(problems) > 20 else ""
            raise ProblemError(
                f"a problem of {counted(count, 'node')} contradicts itself:\n  - {shown}{more}"
            )

    def __str__(self) -> str:
        choices = sum(node.costs.size for node in self.nodes)
        limit = "no limit" if self.limit is None else f"limit {self.limit:.6g} bytes"
        return (
            f"Problem({counted(len(self.nodes), 'node')}, {counted(choices, 'choice')}, "
            f"{counted(len(self.edges), 'edge')}, "
            f"{counted(len(self.usages), 'usage')}, {limit})"
        )


class Status(enum.Enum):
    """What is known at the end; the value says it in words."""

    OPTIMAL = "proven optimal"
    FEASIBLE = "a plan that keeps every limit; better ones may exist"
    INFEASIBLE = "proven: no plan keeps every limit"
    UNKNOWN = "no plan found, and none excluded"


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """The picked choice of every node."""

    choices: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Report:
    """How good the answer is.

    `objective` and `bound` are in the units of the costs; `gap` is (objective - bound) /
    |objective|; `limit_hit` is what ended the search before it was done. `prices` maps a time to
    the multiplier of its memory row: what one byte less at that time costs, to first order.
    """

    status: Status
    objective: float
    bound: float
    gap: float
    seconds: float
    limit_hit: LimitHit | None = None
    prices: tuple[tuple[int, float], ...] = ()

    @property
    def price_of_byte(self) -> float:
        """The first-order saving, in units of the costs, of raising the limit by one byte."""
        return sum(price for _, price in self.prices)

    def __str__(self) -> str:
        hit = f", {self.limit_hit.message}" if self.limit_hit else ""
        return (
            f"{self.status.name.lower()}: objective {self.objective:.9g}, bound "
            f"{self.bound:.9g}, gap {format_percent(self.gap, '.3f')}, {self.seconds:.2f} s{hit}"
        )


@dataclass(frozen=True, slots=True, eq=False)
class Duals:
    """What the bound rests on, to start a later solve of a similar problem.

    `prices` as in `Report`; `messages` are those of all edges of the problem as given, one edge
    after another: one per row of its table, then one per column (None where none were needed).
    """

    prices: tuple[tuple[int, float], ...] = ()
    messages: Floats | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """Status, solution (None when none was found), report, and duals for a later solve."""

    status: Status
    solution: Solution | None
    report: Report
    duals: Duals = Duals()


@dataclass(frozen=True, slots=True, eq=False)
class Progress:
    """One line of news while solving."""

    phase: str
    objective: float
    bound: float
    gap: float
    seconds: float
    nodes_left: int

    def __str__(self) -> str:
        return (
            f"[{self.seconds:7.2f} s] {self.phase}: objective {self.objective:.9g}, bound "
            f"{self.bound:.9g}, gap {format_percent(self.gap, '.3f')}, "
            f"{counted(self.nodes_left, 'node')} left"
        )


def relative_gap(objective: float, bound: float) -> float:
    """(objective - bound) / |objective|, never negative; +inf while either is unknown."""
    if not (np.isfinite(objective) and np.isfinite(bound)):
        return float("inf")
    scale = max(abs(objective), abs(bound), 1e-300)
    return max(0.0, (objective - bound) / scale)


def check_choices(problem: Problem, choices: Sequence[int]) -> Integers:
    """The choices as an array; raises ProblemError naming every node whose choice is absent."""
    picked = np.asarray(choices, dtype=np.int64)
    if picked.shape != (len(problem.nodes),):
        raise ProblemError(
            f"{counted(picked.size, 'choice')} for {counted(len(problem.nodes), 'node')}; give "
            "one each"
        )
    sizes = np.array([node.costs.size for node in problem.nodes], dtype=np.int64)
    bad = np.flatnonzero((picked < 0) | (picked >= sizes))
    if bad.size:
        lines = [f"{problem.nodes[i].name}: choice {picked[i]} of {sizes[i]}" for i in bad[:20]]
        raise ProblemError("no such choice:\n  - " + "\n  - ".join(lines))
    return picked
