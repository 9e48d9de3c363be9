"""Equal vectors are one object with one number, so that work on many is work on few numbers.

Programs repeat themselves: tens of thousands of edges share some dozens of projections, and as many
usages some hundreds of vectors. `Interned` gives every distinct vector a number; arrays of numbers
stand for arrays of vectors, and an operation on all of them is done once per distinct operand.

A *map* is a vector of integers that takes the choices of one node to groups of a table, or to the
choices of another node. Restricting a node, following a leader and joining two nodes all replace
vectors by `vector[map]`: that is `Interned.compose`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from autoshard.solve.problem import Integers


class Interned:
    """Distinct vectors of one kind of number, each with a number of its own."""

    def __init__(self, kind: type) -> None:
        self.items: list[NDArray] = []
        self._kind = kind
        self._numbers: dict[bytes, int] = {}
        self._composed: dict[tuple[int, int], int] = {}

    def add(self, vector: NDArray) -> int:
        """The number of the vector; it becomes read-only where it is kept."""
        vector = np.ascontiguousarray(vector, dtype=self._kind)
        data = vector.tobytes()
        number = self._numbers.get(data)
        if number is None:
            number = self._numbers[data] = len(self.items)
            vector.setflags(write=False)
            self.items.append(vector)
        return number

    def add_all(self, vectors: Sequence[NDArray]) -> Integers:
        """The numbers of many vectors of the right kind."""
        known = self._numbers
        found = [known.get(vector.tobytes(), -1) for vector in vectors]
        if -1 in found:
            found = [
                number if number >= 0 else self.add(vector)
                for number, vector in zip(found, vectors, strict=True)
            ]
        return np.array(found, dtype=np.int64)

    def composed(self, outer: int, inner: int, maps: Interned) -> int:
        """The number of items[outer][maps.items[inner]]."""
        number = self._composed.get((outer, inner))
        if number is None:
            number = self.add(self.items[outer][maps.items[inner]])
            self._composed[outer, inner] = number
        return number

    def compose(self, outer: Integers, inner: Integers, maps: Interned) -> Integers:
        """The numbers of items[outer][maps.items[inner]], pair by pair."""
        pairs, place = distinct(outer, inner)
        found = [self.composed(first, second, maps) for first, second in pairs]
        return np.array(found, dtype=np.int64)[place]

    def gather(self, numbers: Integers) -> NDArray:
        """The vectors of these numbers, one after another."""
        return join([self.items[number] for number in numbers.tolist()], self._kind)

    def laid_out(self, numbers: Integers) -> tuple[NDArray, Integers]:
        """The distinct vectors among these numbers, one after another, and where each begins."""
        used, place = np.unique(numbers, return_inverse=True)
        parts = [self.items[number] for number in used.tolist()]
        return join(parts, self._kind), starts_of([part.size for part in parts])[:-1][place]


def distinct(*columns: Integers) -> tuple[list[tuple[int, ...]], Integers]:
    """The distinct rows of columns of integers (-1 or more), and which of them each row is."""
    if columns[0].size == 0:
        return [], np.zeros(0, dtype=np.int64)
    code = columns[0] + 1
    for column in columns[1:]:
        code = code * (int(column.max()) + 2) + (column + 1)
    _, first, place = np.unique(code, return_index=True, return_inverse=True)
    return list(zip(*(column[first].tolist() for column in columns), strict=True)), place


def join(parts: Sequence[NDArray], kind: type) -> NDArray:
    """The parts one after another; an empty array when there are none."""
    return np.concatenate(parts) if parts else np.zeros(0, dtype=kind)


def starts_of(sizes: Sequence[int] | Integers) -> Integers:
    """Where parts of these sizes begin when laid one after another, and where the last ends."""
    starts = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(sizes, out=starts[1:])
    return starts


def spans(starts: Integers, sizes: Integers) -> Integers:
    """start, start + 1, ..., start + size - 1 of every span, one after another."""
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if ends.size else 0
    return np.arange(total) + np.repeat(starts - ends + sizes, sizes)
