"""Questions about one table of pair costs."""

from __future__ import annotations

import numpy as np

from autoshard.solve.problem import Floats, Integers

# A table is separable up to rounding: this much, relative to its largest entry.
ROUNDING = 1e-13
# A table whose corners are this far from separable, relatively, is not looked at further.
BEND = 1e-9


def separate(table: Floats) -> tuple[Floats, Floats] | None:
    """(f, k) with table = f[:, None] + k[None, :], up to rounding, or None when there are none."""
    corners = float(table[0, 0]), float(table[-1, -1]), float(table[0, -1]), float(table[-1, 0])
    bend = abs(corners[0] + corners[1] - corners[2] - corners[3])
    if bend > BEND * max(map(abs, corners)):
        return None
    by_row = table[:, 0].copy()
    by_column = table[0] - table[0, 0]
    error = np.abs(table - by_row[:, None] - by_column).max()
    return (by_row, by_column) if error <= ROUNDING * np.abs(table).max() else None


def equal_rows(matrix: Floats) -> Integers | None:
    """For each row the number of its class of equal rows; None when all rows differ."""
    count = matrix.shape[0]
    data = np.ascontiguousarray(matrix + 0.0)  # -0.0 and 0.0 are equal but not the same bytes
    width = data.shape[1] * data.itemsize
    raw = data.tobytes()
    classes: dict[bytes, int] = {}
    labels = [
        classes.setdefault(raw[i : i + width], len(classes)) for i in range(0, len(raw), width)
    ]
    return None if len(classes) == count else np.array(labels, dtype=np.int64)
