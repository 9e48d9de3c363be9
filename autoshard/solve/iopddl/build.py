"""The choice problem of a contest file whose numbers make sense.

Rows come as few distinct ones (see `Rows`), and so do their forms without the forbidden choices.
Each form is made and checked once; the many nodes, edges and usages that share it are copies with
other numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from autoshard.solve.iopddl.tables import FORBIDDEN, Faults, Tables
from autoshard.solve.problem import Edge, Floats, Integers, Node, Problem, ProblemError, Usage

Record = TypeVar("Record", Node, Edge, Usage)


class ForbiddenError(ProblemError):
    """Every choice of some node is forbidden: the problem makes sense, and has no solution."""


@dataclass(frozen=True, slots=True, eq=False)
class Built:
    """A problem, and for each of its nodes the file's numbers of the choices that are left."""

    problem: Problem
    kept: tuple[Integers, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Choices:
    """The nodes' costs in few kinds: node i is of kind `kind[i]`.

    Per kind: `kept`, the choices that are not forbidden, their `costs`, and `shape`, which is the
    same number for kinds that keep the same choices of as many.
    """

    kind: Integers
    kept: list[Integers]
    costs: list[Floats]
    shape: list[int]


def build(tables: Tables, source: str) -> Built:
    """The problem in the tables of a file.

    Raises:
      ForbiddenError: names every node whose choices are all forbidden.
    """
    choices = _choices(tables)
    _refuse_empty(tables, choices, source)
    problem = Problem(
        _nodes(choices), _edges(tables, choices), _usages(tables, choices), _limit(tables)
    )
    return Built(problem, tuple(choices.kept[kind] for kind in choices.kind.tolist()))


def _limit(tables: Tables) -> float | None:
    return None if tables.limit is None or np.isinf(tables.limit) else tables.limit


def _forbid(costs: Floats) -> Floats:
    """The costs, with those that forbid as +inf."""
    return np.where(costs >= FORBIDDEN, np.inf, costs)


def _choices(tables: Tables) -> _Choices:
    priced = [_forbid(row) for row in tables.costs.distinct]
    kind = tables.costs.which.copy()
    for position in np.flatnonzero(tables.ends[:, 0] == tables.ends[:, 1]).tolist():
        node = tables.ends[position, 0]
        costs = priced[kind[node]]
        diagonal = _forbid(tables.pairs[position].reshape(costs.size, costs.size).diagonal())
        kind[node] = len(priced)
        priced.append(_forbid(costs + diagonal))
    kept = [np.flatnonzero(costs < np.inf) for costs in priced]
    numbering: dict[tuple[int, bytes], int] = {}
    shape = [
        numbering.setdefault((costs.size, numbers.tobytes()), len(numbering))
        for costs, numbers in zip(priced, kept, strict=True)
    ]
    costs = [row[numbers] for row, numbers in zip(priced, kept, strict=True)]
    return _Choices(kind, kept, costs, shape)


def _refuse_empty(tables: Tables, choices: _Choices, source: str) -> None:
    empty = np.array([numbers.size == 0 for numbers in choices.kept], dtype=np.bool_)
    nodes = np.flatnonzero(empty[choices.kind])
    if nodes.size:
        faults = Faults(source)
        faults.add_all(
            nodes,
            lambda i: (
                f"node {i} has only forbidden choices: {tables.costs[i].size} of at least 1e18, "
                "with its edges to itself; give one a lower cost"
            ),
        )
        raise ForbiddenError(faults.listed(f"{source} is infeasible"))


def _twin(record: Record, **changes: Any) -> Record:
    """A copy with other numbers or another name, whose arrays were checked with the first."""
    copy = object.__new__(type(record))
    for name in record.__slots__:
        object.__setattr__(copy, name, changes[name] if name in changes else getattr(record, name))
    return copy


def _nodes(choices: _Choices) -> tuple[Node, ...]:
    first: dict[int, Node] = {}
    for kind in np.unique(choices.kind).tolist():
        first[kind] = Node(f"kind {kind}", choices.costs[kind])
    return tuple(
        _twin(first[kind], name=f"node {number}")
        for number, kind in enumerate(choices.kind.tolist())
    )


def _edges(tables: Tables, choices: _Choices) -> tuple[Edge, ...]:
    first: dict[tuple[int, int, int], Edge] = {}
    shared: dict[tuple[tuple[int, ...], bytes], Floats] = {}
    along: dict[int, Integers] = {}
    kinds, shapes = choices.kind.tolist(), choices.shape
    edges = []
    for (u, v), row in zip(tables.ends.tolist(), tables.pairs.which.tolist(), strict=True):
        if u == v:
            continue
        key = (row, shapes[kinds[u]], shapes[kinds[v]])
        edge = first.get(key)
        if edge is None:
            costs = tables.pairs.distinct[row]
            table = _forbid(_matrix(costs, tables, u, v))
            table = table[np.ix_(choices.kept[kinds[u]], choices.kept[kinds[v]])]
            table = shared.setdefault((table.shape, table.tobytes()), table)
            left, right = (along.setdefault(n, np.arange(n)) for n in table.shape)
            edge = first[key] = Edge(u, v, table, left, right)
        edges.append(_twin(edge, u=u, v=v))
    return _forbid_sums(tuple(edges))


def _matrix(costs: Floats, tables: Tables, u: int, v: int) -> Floats:
    return costs.reshape(tables.costs[u].size, tables.costs[v].size)


def _forbid_sums(edges: tuple[Edge, ...]) -> tuple[Edge, ...]:
    """Forbid the pairs whose costs over parallel edges add up to a forbidden one."""
    if not edges:
        return edges
    ends = np.sort(np.array([(edge.u, edge.v) for edge in edges]), axis=1)
    tables = {id(edge.table): edge.table for edge in edges}
    highest = {
        number: float(np.max(table, where=table < np.inf, initial=0.0))
        for number, table in tables.items()
    }
    _, group = np.unique(ends[:, 0] * (ends.max() + 1) + ends[:, 1], return_inverse=True)
    sums = np.bincount(group, [highest[id(edge.table)] for edge in edges])
    changed = list(edges)
    for suspect in np.flatnonzero(sums >= FORBIDDEN).tolist():
        positions = np.flatnonzero(group == suspect).tolist()
        first = edges[positions[0]]
        total = sum(
            edges[i].table if edges[i].u == first.u else edges[i].table.T for i in positions
        )
        table = np.where(total >= FORBIDDEN, np.inf, first.table)
        changed[positions[0]] = Edge(first.u, first.v, table, first.left, first.right)
    return tuple(changed)


def _usages(tables: Tables, choices: _Choices) -> tuple[Usage, ...]:
    first: dict[tuple[int, int], Usage | None] = {}
    kinds, shapes = choices.kind.tolist(), choices.shape
    usages = []
    rows = zip(tables.usages.which.tolist(), tables.intervals.tolist(), strict=True)
    for node, (row, (start, stop)) in enumerate(rows):
        if start == stop:
            continue
        key = (row, shapes[kinds[node]])
        if key not in first:
            amounts = tables.usages.distinct[row][choices.kept[kinds[node]]]
            first[key] = Usage(node, amounts, start, stop) if amounts.any() else None
        usage = first[key]
        if usage is not None:
            usages.append(_twin(usage, node=node, start=start, stop=stop))
    return tuple(usages)
