"""Tables of pair costs that only say which pairs are allowed, in little memory.

An op reads a value in the layout in which it is stored, or in that of its copy. So a table from
thousands of such pairs of layouts to the layout that is read has one or two allowed columns in
every row, which cost nothing; +inf everywhere else need not be written down.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Allowed:
    """A table of zeros and +inf: row g allows the columns `first[g]` <= `last[g]`, and no other."""

    first: NDArray[np.int64]
    last: NDArray[np.int64]
    columns: int
    _dense: list[NDArray[np.float64]] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        ends = self.first, self.last
        if self.first.shape != self.last.shape or self.first.ndim != 1 or not self.first.size:
            raise ValueError(
                f"first and last have shapes {[end.shape for end in ends]}; give vectors of "
                "one size"
            )
        if (
            (self.first > self.last).any()
            or self.first.min() < 0
            or self.last.max() >= self.columns
        ):
            raise ValueError(
                f"rows from {self.first.min()} to {self.last.max()} of {self.columns} columns; "
                f"give 0 <= first <= last < {self.columns} in each"
            )
        for end in ends:
            end.setflags(write=False)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.first.size, self.columns

    @property
    def size(self) -> int:
        """Entries."""
        return self.first.size * self.columns

    def cost(self, row: int, column: int) -> float:
        """One entry."""
        return 0.0 if column in (self.first[row], self.last[row]) else np.inf

    def rows(self, chosen: NDArray[np.int64] | slice = slice(None)) -> NDArray[np.float64]:
        """Some rows, written out."""
        first, last = self.first[chosen], self.last[chosen]
        matrix = np.full((first.size, self.columns), np.inf)
        numbers = np.arange(first.size)
        matrix[numbers, first] = matrix[numbers, last] = 0.0
        return matrix

    def dense(self) -> NDArray[np.float64]:
        """The whole table, written out once."""
        if not self._dense:
            matrix = self.rows()
            matrix.setflags(write=False)
            self._dense.append(matrix)
        return self._dense[0]
