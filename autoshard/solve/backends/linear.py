"""The problem as a mixed-integer linear program.

Variables x_i[c] in {0, 1}, one per choice, and z_e[g, h] >= 0, one per allowed pair of groups of an
edge. With the marginals written per group,

    sum_c x_i[c]      =  1                                   for every node i
    sum_h z_e[g, h]   =  sum of x_u[c] with left[c] = g      for every edge and row g
    sum_g z_e[g, h]   =  sum of x_v[c] with right[c] = h     for every edge and column h
    sum of amounts_i[c] x_i[c] alive at t  <=  capacity_t    for the memory rows asked for

the relaxation is the local polytope, the tightest that pairs alone give: z is integral where x is.
Nodes with one choice are constants of the flat form already.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from autoshard.solve.flat import Flat
from autoshard.units import counted


@dataclass(frozen=True, slots=True, eq=False)
class LinearModel:
    """minimise costs . y  with  lower <= matrix y <= upper,  0 <= y <= top, some y integer.

    `top` is 1 for all unless it is given; integer variables are 0 or 1.
    """

    costs: np.ndarray
    integer: np.ndarray
    matrix: sparse.csr_matrix
    lower: np.ndarray
    upper: np.ndarray
    top: np.ndarray = None  # pyright: ignore[reportAssignmentType]

    def __post_init__(self) -> None:
        rows, columns = self.matrix.shape  # pyright: ignore[reportGeneralTypeIssues]
        if self.top is None:
            object.__setattr__(self, "top", np.ones(columns))
        problems = []
        for name, wanted in (
            ("costs", columns),
            ("integer", columns),
            ("top", columns),
            ("lower", rows),
            ("upper", rows),
        ):
            if getattr(self, name).shape != (wanted,):
                problems.append(f"{name} has shape {getattr(self, name).shape}, not ({wanted},)")
        for name in ("lower", "upper"):
            if np.isnan(getattr(self, name)).any():
                problems.append(f"{name} holds nan")
        for name, numbers in (
            ("costs", self.costs),
            ("top", self.top),
            ("coefficients", self.matrix.data),
        ):
            if not np.isfinite(numbers).all():
                problems.append(f"{name} must be finite")
        if (self.top < 0).any() or (not problems and (self.top[self.integer] != 1).any()):
            problems.append("top must be at least 0, and 1 where variables are integer")
        if problems:
            raise ValueError(
                f"a model of {counted(rows, 'row')}, {counted(columns, 'variable')}: "
                + "; ".join(problems)
            )

    @property
    def size(self) -> int:
        """How many variables there are."""
        return self.costs.size

    def __str__(self) -> str:
        return (
            f"LinearModel({counted(self.size, 'variable')}, {int(self.integer.sum())} of "
            "them integer, "
            f"{counted(self.lower.size, 'row')}, {counted(self.matrix.nnz, 'coefficient')})"
        )


def pair_count(flat: Flat) -> int:
    """How many pair variables the model will have, at most."""
    return int((flat.rows * flat.columns).sum())


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """The allowed pairs of all edges, edge by edge.

    `entries` are the places of the allowed entries in `flat.tables`; those of the table of edge e
    are from `first[e]` on, `count[e]` of them.
    """

    entries: np.ndarray
    first: np.ndarray
    count: np.ndarray

    @classmethod
    def of(cls, flat: Flat) -> Pairs:
        entries = np.flatnonzero(flat.tables < np.inf)
        first = np.searchsorted(entries, flat.table_start)
        last = np.searchsorted(entries, flat.table_start + flat.rows * flat.columns)
        return cls(entries, first, last - first)


def linear_model(flat: Flat) -> LinearModel:
    """The model without memory rows.

    Its variables are the choices, node by node, and then the allowed pairs, edge by edge.
    """
    node_count, total = flat.node_count, flat.costs.size
    sizes = np.diff(flat.node_start)
    pairs = Pairs.of(flat)
    edge = np.repeat(np.arange(flat.u.size), pairs.count)
    entry = pairs.entries[ranges(pairs.first, pairs.count)]
    g, h = np.divmod(entry - flat.table_start[edge], flat.columns[edge])
    pair = total + np.arange(edge.size)
    # Every edge has one row per row of its table, then one per column.
    row_of = node_count + flat.message_start[:-1]
    column_of = row_of + flat.rows
    rows = [np.repeat(np.arange(node_count), sizes), row_of[edge] + g, column_of[edge] + h]
    columns = [np.arange(total), pair, pair]
    for node, base, start in (
        (flat.u, row_of, flat.left_start),
        (flat.v, column_of, flat.right_start),
    ):
        count = sizes[node]
        rows.append(np.repeat(base, count) + flat.groups[ranges(start, count)])
        columns.append(ranges(flat.node_start[node], count))
    size, height = total + edge.size, node_count + int(flat.message_start[-1])
    values = np.ones(sum(part.size for part in rows))
    values[total + 2 * edge.size :] = -1.0
    matrix = sparse.csr_matrix(
        (values, (np.concatenate(rows), np.concatenate(columns))), shape=(height, size)
    )
    sides = np.zeros(height)
    sides[:node_count] = 1.0
    costs = np.concatenate([flat.costs, flat.tables[entry]])
    return LinearModel(costs, np.arange(size) < total, matrix, sides, sides)


def memory_rows(flat: Flat, wanted: np.ndarray, width: int) -> sparse.csr_matrix:
    """The memory rows of the given numbers, over `width` variables."""
    wanted = np.asarray(wanted)
    order = np.argsort(wanted, kind="stable")
    first = np.searchsorted(wanted[order], flat.use_from)
    last = np.searchsorted(wanted[order], flat.use_to)
    node = np.repeat(np.arange(flat.node_count), np.diff(flat.use_start))
    size = np.diff(flat.node_start)[node]
    count = (last - first) * size
    use = np.repeat(np.arange(node.size), count)
    alive, choice = np.divmod(ranges(np.zeros(node.size, dtype=np.int64), count), size[use])
    values = flat.amounts[flat.use_amounts[use] + choice]
    return sparse.csr_matrix(
        (values, (order[first[use] + alive], flat.node_start[node[use]] + choice)),
        shape=(wanted.size, width),
    )


def with_memory(
    model: LinearModel, flat: Flat, wanted: np.ndarray, *, scaled: bool = True
) -> LinearModel:
    """The model with memory rows, each divided by its capacity; in bytes unless `scaled`."""
    extra = memory_rows(flat, wanted, model.size)
    capacity = flat.capacity[wanted]
    scale = 1.0 / np.maximum(np.abs(capacity), 1.0) if scaled else np.ones(wanted.size)
    extra = sparse.diags(scale) @ extra
    return LinearModel(
        model.costs,
        model.integer,
        sparse.csr_matrix(sparse.vstack([model.matrix, extra], format="csr")),
        np.concatenate([model.lower, np.full(wanted.size, -np.inf)]),
        np.concatenate([model.upper, capacity * scale]),
    )


def start_values(flat: Flat, model: LinearModel, picked: np.ndarray) -> np.ndarray:
    """The values of all variables for a plan without forbidden pairs."""
    pairs = Pairs.of(flat)
    g = flat.groups[flat.left_start + picked[flat.u]]
    h = flat.groups[flat.right_start + picked[flat.v]]
    entry = flat.table_start + g * flat.columns + h
    within = np.searchsorted(pairs.entries, entry) - pairs.first
    values = np.zeros(model.size)
    values[flat.node_start[:-1] + picked] = 1.0
    values[flat.costs.size + np.cumsum(pairs.count) - pairs.count + within] = 1.0
    return values


def ranges(first: np.ndarray, count: np.ndarray) -> np.ndarray:
    """first[0], first[0] + 1, ... (count[0] of them), then those of first[1], and so on."""
    before = np.cumsum(count) - count
    return np.repeat(first - before, count) + np.arange(int(count.sum()))
