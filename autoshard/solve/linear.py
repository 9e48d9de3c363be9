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


@dataclass(frozen=True, slots=True, eq=False)
class LinearModel:
    """minimise costs . y  with  lower <= matrix y <= upper,  0 <= y <= 1, some y integer."""

    costs: np.ndarray
    integer: np.ndarray
    matrix: sparse.csr_matrix
    lower: np.ndarray
    upper: np.ndarray

    @property
    def size(self) -> int:
        return self.costs.size


def pair_count(flat: Flat) -> int:
    """How many pair variables the model will have."""
    return int((flat.rows * flat.columns).sum())


def linear_model(flat: Flat) -> LinearModel:
    """The model without memory rows."""
    node_count = flat.node_count
    sizes = np.diff(flat.node_start)
    total = flat.costs.size
    rows = [np.repeat(np.arange(node_count), sizes)]
    columns = [np.arange(total)]
    values = [np.ones(total)]
    costs = [flat.costs]
    row, column = node_count, total
    for e in range(flat.u.size):
        height, width = int(flat.rows[e]), int(flat.columns[e])
        at = flat.table_start[e]
        table = flat.tables[at : at + height * width].reshape(height, width)
        g, h = np.nonzero(table < np.inf)
        pairs = np.arange(column, column + g.size)
        span_u, span_v = flat.span(int(flat.u[e])), flat.span(int(flat.v[e]))
        left = flat.groups[flat.left_start[e] :][: span_u[1] - span_u[0]]
        right = flat.groups[flat.right_start[e] :][: span_v[1] - span_v[0]]
        rows += [row + g, row + height + h, row + left, row + height + right]
        columns += [pairs, pairs, np.arange(*span_u), np.arange(*span_v)]
        values += [np.ones(2 * g.size), -np.ones(left.size + right.size)]
        costs.append(table[g, h])
        row += height + width
        column += g.size
    matrix = sparse.csr_matrix(
        (np.concatenate(values), (np.concatenate(rows), np.concatenate(columns))),
        shape=(row, column),
    )
    sides = np.zeros(row)
    sides[:node_count] = 1.0
    integer = np.zeros(column, dtype=bool)
    integer[:total] = True
    return LinearModel(np.concatenate(costs), integer, matrix, sides, sides)


def memory_rows(flat: Flat, wanted: np.ndarray, width: int) -> sparse.csr_matrix:
    """The memory rows of the given numbers, over `width` variables."""
    sizes = np.diff(flat.node_start)
    rows, columns, values = [], [], []
    wanted = np.asarray(wanted)
    for node in range(flat.node_count):
        for use in range(flat.use_start[node], flat.use_start[node + 1]):
            alive = np.flatnonzero((wanted >= flat.use_from[use]) & (wanted < flat.use_to[use]))
            if alive.size:
                at = flat.use_amounts[use]
                amounts = flat.amounts[at : at + sizes[node]]
                rows.append(np.repeat(alive, amounts.size))
                columns.append(np.tile(flat.node_start[node] + np.arange(amounts.size), alive.size))
                values.append(np.tile(amounts, alive.size))
    if not rows:
        return sparse.csr_matrix((wanted.size, width))
    return sparse.csr_matrix(
        (np.concatenate(values), (np.concatenate(rows), np.concatenate(columns))),
        shape=(wanted.size, width),
    )


def with_memory(model: LinearModel, flat: Flat, wanted: np.ndarray) -> LinearModel:
    """The model with memory rows, each divided by its capacity (or largest amount) for scale."""
    extra = memory_rows(flat, wanted, model.size)
    capacity = flat.capacity[wanted]
    scale = 1.0 / np.maximum(np.abs(capacity), 1.0)
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
    values = np.zeros(model.size)
    values[flat.node_start[:-1] + picked] = 1.0
    column = flat.costs.size
    for e in range(flat.u.size):
        height, width = int(flat.rows[e]), int(flat.columns[e])
        at = flat.table_start[e]
        finite = flat.tables[at : at + height * width] < np.inf
        g = flat.groups[flat.left_start[e] + picked[flat.u[e]]]
        h = flat.groups[flat.right_start[e] + picked[flat.v[e]]]
        values[column + int(finite[: g * width + h].sum())] = 1.0
        column += int(finite.sum())
    return values
