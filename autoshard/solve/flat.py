"""A problem as flat arrays, the form the loops of `kernels` read.

Choices of all nodes lie one after another; so do the entries of all distinct tables, all distinct
projections and all distinct usage vectors. The choices of node i are `costs[node_start[i] :
node_start[i + 1]]`. Edge e reads its table at `table_start[e]` (row-major, `rows[e]` x
`columns[e]`), projects node `u[e]` by `groups[left_start[e] + choice]`, and owns the messages from
`message_start[e]` on: first one per row, then one per column. A table with few allowed pairs is
also, or instead, stored by rows: from `sparse_start[e]` (-1: not so stored) on, `sparse_index`
holds where each row begins, then the columns; `sparse_value` the costs beside them. Where no row
allows more than two columns, at no cost, these two are also in `pair_index`, row by row, from
`pair_start[e]` (-1: not so stored) on; a row of one column holds it twice.

The edges of node i are `near_edge[near_start[i] : near_start[i + 1]]`, ascending. `near` has what
messages need of each there, six numbers: the other node, the edge, how many groups it sees of node
i, where their messages begin and those of the other side, and where `groups` has the projection
(-1: each choice is a group of its own).

Times become memory rows 0, 1, ...; nodes with a single choice only lower the `capacity` of the
rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from autoshard.native import FLOATS, STRUCT, WORD, WORDS, Record, function
from autoshard.solve.allowed import Allowed
from autoshard.solve.evaluate import LOAD_TOLERANCE
from autoshard.solve.problem import Floats, Integers, Problem

_edge_spans = function("edge_spans", STRUCT, WORDS, WORD, FLOATS, FLOATS)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Flat(Record):
    """See the module; `struct` is what C reads (`flat.h`)."""

    node_start: Integers
    costs: Floats
    u: Integers
    v: Integers
    rows: Integers
    columns: Integers
    table_start: Integers
    left_start: Integers
    right_start: Integers
    message_start: Integers
    sparse_start: Integers
    pair_start: Integers
    tables: Floats
    sparse_index: Integers
    sparse_value: Floats
    pair_index: Integers
    groups: Integers
    near_start: Integers
    near_edge: Integers
    near: Integers
    use_start: Integers
    use_from: Integers
    use_to: Integers
    use_amounts: Integers
    amounts: Floats
    capacity: Floats

    def counts(self) -> tuple[int, ...]:
        return self.node_count, self.u.size

    @property
    def node_count(self) -> int:
        return self.node_start.size - 1

    def span(self, node: int) -> tuple[int, int]:
        """Where the choices of a node begin and end."""
        return int(self.node_start[node]), int(self.node_start[node + 1])

    @property
    def widest(self) -> int:
        """The longest node or table side."""
        sizes = (np.diff(self.node_start), self.rows, self.columns)
        return int(max(part.max(initial=1) for part in sizes))


class _Pool:
    """Arrays laid one after another, each distinct object once."""

    def __init__(self) -> None:
        self._start: dict[object, int] = {}
        self._parts: list[np.ndarray] = []
        self._keep: list[object] = []
        self._size = 0

    def place(self, owner: object, key: object, make: Callable[[], np.ndarray]) -> int:
        start = self._start.get(key)
        if start is None:
            start = self._start[key] = self._size
            part = make().ravel()
            self._parts.append(part)
            self._keep.append(owner)
            self._size += part.size
        return start

    def array(self, kind: type) -> np.ndarray:
        if not self._parts:
            return np.zeros(0, dtype=kind)
        return np.concatenate(self._parts).astype(kind, copy=False)


def row_times(problem: Problem) -> np.ndarray:
    """The times of the memory rows: every start of a usage that differs between choices."""
    if problem.limit is None:
        return np.zeros(0, dtype=np.int64)
    starts = {
        usage.start
        for usage in problem.usages
        if usage.start < usage.stop and problem.nodes[usage.node].costs.size > 1
    }
    # Fixed load alone can break the limit too; it must then have a row of its own.
    starts |= {usage.start for usage in problem.usages if usage.start < usage.stop}
    return np.array(sorted(starts), dtype=np.int64)


SMALL = 256
"""Tables of fewer entries are stored densely."""
FEW = 0.3
"""Allowed pairs are few if they are less than this part of a table."""


class Sparse(NamedTuple):
    """Of a table with few allowed pairs: its parts of `Flat.sparse_index` and so on."""

    rows: np.ndarray
    values: np.ndarray
    pairs: np.ndarray | None


KnownRows = dict[tuple[int, float], tuple[np.ndarray | Allowed, Sparse | None]]
"""Rows of tables, by identity and weight; with the tables, so that no other has it."""


def flatten(
    problem: Problem,
    *,
    dense: bool = True,
    known: KnownRows | None = None,
) -> Flat:
    """The arrays of a problem.

    Args:
      dense: whether tables that are stored by rows are stored densely too (`table_start` is -1
        where not); messages need no more than the rows.
      known: the rows of tables by identity and weight; what is found is added.
    """
    known = {} if known is None else known
    sizes = np.array([node.costs.size for node in problem.nodes], dtype=np.int64)
    edges = _edge_arrays(problem, dense, known)
    message_sizes = edges["rows"] + edges["columns"]
    message_start = np.concatenate([[0], np.cumsum(message_sizes)]).astype(np.int64)
    return Flat(
        node_start=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        costs=np.concatenate([node.costs for node in problem.nodes] or [np.zeros(0)]),
        **edges,
        message_start=message_start,
        **_near_arrays(edges, sizes, message_start[:-1]),
        **_usage_arrays(problem, row_times(problem)),
    )


def _edge_arrays(problem: Problem, dense: bool, known: KnownRows) -> dict[str, np.ndarray]:
    """What every edge is, with the tables and projections of all, each distinct one once."""
    tables, groups, pairs = _Pool(), _Pool(), _Pool()
    sparse_index, sparse_value = _Pool(), _Pool()
    fields = {
        name: np.zeros(len(problem.edges), dtype=np.int64)
        for name in ("u", "v", "rows", "columns", "left_start", "right_start")
    }
    # -1 where a table is not stored in this form.
    fields |= {
        name: np.full(len(problem.edges), -1, dtype=np.int64)
        for name in ("table_start", "sparse_start", "pair_start")
    }
    for number, edge in enumerate(problem.edges):
        fields["u"][number], fields["v"][number] = edge.u, edge.v
        fields["rows"][number], fields["columns"][number] = edge.costs.shape
        key = (id(edge.costs), edge.weight)
        if key not in known:
            known[key] = edge.costs, _by_rows(edge.costs, edge.weight)
        sparse = known[key][1]
        if dense or sparse is None:
            fields["table_start"][number] = tables.place(
                edge.costs, key, lambda e=edge: e.table * e.weight
            )
        fields["left_start"][number] = groups.place(edge.left, id(edge.left), lambda e=edge: e.left)
        fields["right_start"][number] = groups.place(
            edge.right, id(edge.right), lambda e=edge: e.right
        )
        if sparse is not None:
            begins, value, two = sparse
            fields["sparse_start"][number] = sparse_index.place(edge.costs, key, lambda a=begins: a)
            sparse_value.place(edge.costs, key, lambda a=value: a)
            if two is not None:
                fields["pair_start"][number] = pairs.place(edge.costs, key, lambda a=two: a)
    return {
        **fields,
        "tables": tables.array(np.float64),
        "sparse_index": sparse_index.array(np.int64),
        "sparse_value": sparse_value.array(np.float64),
        "pair_index": pairs.array(np.int64),
        "groups": groups.array(np.int64),
    }


def _near_arrays(
    edges: Mapping[str, np.ndarray], sizes: np.ndarray, message_start: np.ndarray
) -> dict[str, np.ndarray]:
    """The edges of every node, and what messages need of each there."""
    number = np.repeat(np.arange(message_start.size), 2)
    rows, columns = edges["rows"], edges["columns"]
    ends = _both(edges["u"], edges["v"])
    width, group = _both(rows, columns), _both(edges["left_start"], edges["right_start"])
    alike = np.flatnonzero(width == sizes[ends])
    spans = list(zip(group[alike].tolist(), width[alike].tolist(), strict=True))
    plain = {
        (start, size): bool((edges["groups"][start : start + size] == np.arange(size)).all())
        for start, size in set(spans)
    }
    group[alike[[plain[span] for span in spans]]] = -1
    near = np.stack(
        [
            _both(edges["v"], edges["u"]),
            number,
            width,
            message_start[number] + _both(np.zeros_like(rows), rows),
            message_start[number] + _both(rows, np.zeros_like(rows)),
            group,
        ],
        axis=1,
    )
    order = np.argsort(ends, kind="stable")
    counts = np.bincount(ends, minlength=sizes.size)
    return {
        "near_start": np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        "near_edge": number[order],
        "near": near[order].ravel(),
    }


def _both(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """What the two ends of each edge have, in turn."""
    return np.stack([first, second], axis=1).ravel()


def _by_rows(table: np.ndarray | Allowed, weight: float) -> Sparse | None:
    """The index and the values of the allowed pairs, where they are few; values align with it."""
    if table.size < SMALL:
        return None
    if isinstance(table, Allowed):
        return _allowed_by_rows(table)
    allowed = table < np.inf
    if int(np.count_nonzero(allowed)) >= FEW * table.size:
        return None
    rows, columns = np.nonzero(allowed)
    lengths = np.bincount(rows, minlength=table.shape[0])
    ends = np.cumsum(lengths)
    costs = table[rows, columns] * weight
    pairs = None
    if lengths.min() >= 1 and lengths.max() <= 2 and not costs.any():
        pairs = np.stack([columns[ends - lengths], columns[ends - 1]], axis=1).ravel()
    begins = np.concatenate([[0], ends]) + table.shape[0] + 1
    values = np.concatenate([np.zeros(begins.size), costs])
    return Sparse(np.concatenate([begins, columns]), values, pairs)


def _allowed_by_rows(table: Allowed) -> Sparse | None:
    """The same of a table that only says what is allowed."""
    two = table.first != table.last
    lengths = 1 + two
    ends = np.cumsum(lengths)
    if int(ends[-1]) >= FEW * table.size:
        return None
    pairs = np.stack([table.first, table.last], axis=1)
    columns = pairs[np.stack([np.ones_like(two), two], axis=1)]
    begins = np.concatenate([[0], ends]) + table.shape[0] + 1
    values = np.zeros(begins.size + columns.size)
    return Sparse(np.concatenate([begins, columns]), values, pairs.ravel())


def _usage_arrays(problem: Problem, times: np.ndarray) -> dict[str, np.ndarray]:
    amounts = _Pool()
    per_node: list[list[tuple[int, int, int]]] = [[] for _ in problem.nodes]
    fixed = np.zeros(times.size + 1)
    if problem.limit is not None:
        for usage in problem.usages:
            first, last = np.searchsorted(times, (usage.start, usage.stop))
            if first == last:
                continue
            if usage.amounts.size == 1:
                fixed[first] += usage.amounts[0]
                fixed[last] -= usage.amounts[0]
            else:
                where = amounts.place(
                    usage.amounts, id(usage.amounts), lambda vector=usage.amounts: vector
                )
                per_node[usage.node].append((int(first), int(last), where))
    flat = [entry for entries in per_node for entry in entries]
    columns = np.array(flat, dtype=np.int64).reshape(-1, 3)
    limit = 0.0 if problem.limit is None else problem.limit * (1 + LOAD_TOLERANCE)
    return {
        "use_start": np.concatenate([[0], np.cumsum([len(e) for e in per_node])]).astype(np.int64),
        "use_from": np.ascontiguousarray(columns[:, 0]),
        "use_to": np.ascontiguousarray(columns[:, 1]),
        "use_amounts": np.ascontiguousarray(columns[:, 2]),
        "amounts": amounts.array(np.float64),
        "capacity": limit - np.cumsum(fixed[:-1]),
    }


def edge_spans(flat: Flat) -> tuple[np.ndarray, np.ndarray]:
    """The least and the largest finite entry of the table of every edge."""
    dense = flat.table_start >= 0
    place = np.where(dense, 2 * flat.table_start, 2 * flat.sparse_start + 1)
    _, edges, table = np.unique(place, return_index=True, return_inverse=True)
    low, high = np.empty(edges.size), np.empty(edges.size)
    _edge_spans(flat.struct, edges, edges.size, low, high)
    return low[table], high[table]


def worst_cost(flat: Flat) -> float:
    """What no plan without forbidden pairs can exceed."""
    if flat.node_count == 0:
        return 0.0
    total = float(np.maximum.reduceat(flat.costs, flat.node_start[:-1]).sum())
    _, high = edge_spans(flat)
    total += float(high[high > -np.inf].sum())
    return total + 1e-9 * (abs(total) + float(np.abs(flat.costs).sum()))


def worst_rows(overload: np.ndarray, count: int, radius: int) -> list[int]:
    """Up to `count` rows with positive overload, worst first, none within `radius` of another."""
    left = overload.copy()
    rows: list[int] = []
    while len(rows) < count and left.size:
        row = int(left.argmax())
        if left[row] <= 0:
            break
        rows.append(row)
        left[max(0, row - radius) : row + radius + 1] = 0.0
    return rows
