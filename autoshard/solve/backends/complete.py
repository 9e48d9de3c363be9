"""The complete linear model of a problem: what a solver is handed that is to do all by itself.

The pipeline never builds it, because it asks for memory rows only when they are broken. Complete
means every memory row that is not implied by another one, in one of two forms:

    rows    sum over all that is alive at t of amounts_i[c] x_i[c]  <=  capacity_t
    sums    load_t = load_(t-1) + amounts of what begins at t - amounts of what has ended,
            0 <= load_t <= capacity_t

Rows give solvers more to reason with, but a usage is written down at every time of its life; sums
write it down twice. Rows are used while they are few enough.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from autoshard.solve.backends.linear import LinearModel, Pairs, linear_model, ranges, with_memory
from autoshard.solve.flat import Flat

ROW_COEFFICIENTS = 20_000_000
"""Above this many coefficients in memory rows they are written as sums."""


@dataclass(frozen=True, slots=True)
class ModelSize:
    """How large a complete model will be, at most, and whether its memory is written as sums."""

    variables: int
    rows: int
    coefficients: int
    sums: bool


def complete_size(flat: Flat) -> ModelSize:
    """The size of the complete model, found without building it."""
    use = _Uses.of(flat, needed_rows(flat))
    pairs = int(Pairs.of(flat).count.sum())
    sizes = np.diff(flat.node_start)
    variables, rows = flat.costs.size + pairs, flat.node_count + int(flat.message_start[-1])
    coefficients = flat.costs.size + 2 * pairs + int(sizes[flat.u].sum() + sizes[flat.v].sum())
    if not use.as_sums:
        return ModelSize(variables, rows + use.wanted.size, coefficients + use.in_rows, False)
    return ModelSize(
        variables + use.wanted.size, rows + use.wanted.size, coefficients + use.in_sums, True
    )


def complete_model(flat: Flat) -> LinearModel:
    """The model with all the memory that matters, in bytes.

    Its variables begin with those of `linear_model`.
    """
    use = _Uses.of(flat, needed_rows(flat))
    model = linear_model(flat)
    if use.as_sums:
        return _with_sums(model, flat, use)
    return with_memory(model, flat, use.wanted, scaled=False)


def needed_rows(flat: Flat) -> np.ndarray:
    """The numbers of the memory rows that a complete model has to have.

    A row is left out when no choices can exceed its capacity, or when a neighbour in time covers
    it: all that is alive in it is alive there too, with no more capacity.
    """
    count = flat.capacity.size
    if count == 0:
        return np.zeros(0, dtype=np.int64)
    size = np.diff(flat.node_start)[_owners(flat)]
    most = np.zeros(size.size)
    if size.size:
        amounts = flat.amounts[ranges(flat.use_amounts, size)]
        most = np.maximum.reduceat(amounts, np.cumsum(size) - size)
    jumps = np.bincount(flat.use_from, most, count + 1) - np.bincount(flat.use_to, most, count + 1)
    binding = np.cumsum(jumps[:-1]) > flat.capacity
    begins, ends = np.zeros(count + 1, dtype=bool), np.zeros(count + 1, dtype=bool)
    begins[flat.use_from], ends[flat.use_to] = True, True
    # Where nothing ends between two rows the later one covers, where nothing begins the earlier.
    later, earlier = flat.capacity[1:], flat.capacity[:-1]
    by_later = np.append(~ends[1:count] & (later <= earlier), False)
    by_earlier = np.append(False, ~begins[1:count] & (earlier <= later))
    # Of two that cover each other the later one stays.
    by_earlier[1:] &= ~by_later[:-1]
    return np.flatnonzero(binding & ~by_later & ~by_earlier)


@dataclass(frozen=True, slots=True, eq=False)
class _Uses:
    """The usages that meet wanted rows: node, place of the amounts, first and last wanted row."""

    wanted: np.ndarray
    node: np.ndarray
    size: np.ndarray
    amounts: np.ndarray
    first: np.ndarray
    last: np.ndarray

    @classmethod
    def of(cls, flat: Flat, wanted: np.ndarray) -> _Uses:
        first, last = (np.searchsorted(wanted, side) for side in (flat.use_from, flat.use_to))
        meets, node = last > first, _owners(flat)
        size = np.diff(flat.node_start)[node]
        parts = (node, size, flat.use_amounts, first, last)
        return cls(wanted, *(part[meets] for part in parts))

    @property
    def in_rows(self) -> int:
        return int(((self.last - self.first) * self.size).sum())

    @property
    def in_sums(self) -> int:
        ends = self.last < self.wanted.size
        return int(self.size.sum() + self.size[ends].sum()) + 2 * self.wanted.size

    @property
    def as_sums(self) -> bool:
        return self.wanted.size > 0 and self.in_rows > ROW_COEFFICIENTS


def _owners(flat: Flat) -> np.ndarray:
    """The node of every usage."""
    return np.repeat(np.arange(flat.node_count), np.diff(flat.use_start))


def _with_sums(model: LinearModel, flat: Flat, use: _Uses) -> LinearModel:
    """The model with one load per wanted row, in bytes."""
    count = use.wanted.size
    load = model.size + np.arange(count)
    rows, columns = [np.arange(count), np.arange(1, count)], [load, load[:-1]]
    values = [np.ones(count), -np.ones(count - 1)]
    for at, sign, some in (
        (use.first, -1.0, np.ones(use.node.size, dtype=bool)),
        (use.last, 1.0, use.last < count),
    ):
        size = use.size[some]
        rows.append(np.repeat(at[some], size))
        columns.append(ranges(flat.node_start[use.node[some]], size))
        values.append(sign * flat.amounts[ranges(use.amounts[some], size)])
    capacity = flat.capacity[use.wanted]
    # A load cannot be negative: a capacity that is needs a row of its own, which nothing keeps.
    short = np.flatnonzero(capacity < 0)
    rows.append(count + np.arange(short.size))
    columns.append(load[short])
    values.append(np.ones(short.size))
    height, width = count + short.size, model.size + count
    extra = sparse.csr_matrix(
        (np.concatenate(values), (np.concatenate(rows), np.concatenate(columns))),
        shape=(height, width),
    )
    wider = sparse.csr_matrix(
        (model.matrix.data, model.matrix.indices, model.matrix.indptr),
        shape=(model.lower.size, width),
    )
    return LinearModel(
        np.append(model.costs, np.zeros(count)),
        np.append(model.integer, np.zeros(count, dtype=bool)),
        sparse.csr_matrix(sparse.vstack([wider, extra], format="csr")),
        np.concatenate([model.lower, np.zeros(count), np.full(short.size, -np.inf)]),
        np.concatenate([model.upper, np.zeros(count), capacity[short]]),
        np.append(model.top, np.maximum(capacity, 0.0)),
    )
