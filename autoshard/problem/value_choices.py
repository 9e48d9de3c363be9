"""The choices of a value node: a stored layout, a copy's layout, and the copy's mode.

Not every pair of layouts is considered: see `sensible_pairs`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoshard.program.layout import UNREDUCED, Layout, LayoutTable

Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class ValueChoices:
    """The choices of a value node: rows `stored` and `copy` of `table`, and the copy's mode."""

    table: LayoutTable
    stored: Rows
    copy: Rows
    mode: Rows
    strategy: Rows | None  # of the op merged into this node, per row of `table`


def sensible_pairs(dimensions: Rows) -> NDArray[np.bool_]:
    """Which pairs (a, b) of layouts are considered for a stored value and its copy.

    An axis stays, is gathered (d -> none), sliced (none -> d) or moved (d -> d'). Any number of
    axes may be gathered, with at most one further kind of change; axes that move, move alike. What
    is left out would take a chain of reshards that two ops with a copy each would share.
    """
    small = dimensions.astype(np.int16)  # three arrays of all pairs are read a dozen times
    old, new = small[:, None, :], small[None, :, :]
    changed = old != new
    gathered = changed & (new < 0)
    sliced = changed & (old < 0)
    moved = changed & ~gathered & ~sliced
    settled = (old != UNREDUCED).all(axis=2) & (new != UNREDUCED).all(axis=2)
    rank = int(dimensions.max(initial=-1)) + 2
    code = np.where(moved, (old + 1) * rank + new + 1, -1)
    highest = code.max(axis=2)
    alike = ((code == highest[:, :, None]) | ~moved).all(axis=2)
    few = ~(sliced.any(axis=2) & (moved.any(axis=2) | gathered.any(axis=2)))
    return changed.any(axis=2) & alike & few & settled


def settled_pairs(dimensions: Rows) -> NDArray[np.bool_]:
    """All pairs of two layouts in which nothing is a partial sum."""
    settled = (dimensions != UNREDUCED).all(axis=1)
    return settled[:, None] & settled[None, :] & ~np.eye(len(dimensions), dtype=bool)


def slicing_pairs(dimensions: Rows) -> NDArray[np.bool_]:
    old, new = dimensions[:, None, :], dimensions[None, :, :]
    return ((old == new) | (old < 0)).all(axis=2)


def layout_rows(table: LayoutTable, dimensions: Rows) -> Rows:
    """Row in `table` of every layout of `dimensions` `[n, axes]`; -1 where it is absent."""
    base = len(table.shape) + 2
    weights = base ** np.arange(table.dimensions.shape[1], dtype=np.int64)
    lookup = np.full(int(base ** table.dimensions.shape[1]), -1, dtype=np.int64)
    lookup[(table.dimensions + 2) @ weights] = np.arange(len(table))
    return lookup[(dimensions + 2) @ weights]


def rows_in_order(layouts: Sequence[Layout], table: LayoutTable) -> Rows:
    """Where the layouts of `table` stand in `layouts`; -1 for those that are absent."""
    position = {layout: k for k, layout in enumerate(layouts)}
    return np.array([position.get(layout, -1) for layout in table.layouts], dtype=np.int64)
