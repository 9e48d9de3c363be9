"""Where the axes of a logical mesh lie on the physical network.

Every mesh axis of size ``n`` is written as a product of **pieces**, one per physical dimension it
uses: a level of a switched network, or one dimension of a torus. A piece of length ``l`` and stride
``s`` joins the chips ``0, s, 2s, ..., (l-1)s`` of its physical dimension.

Levels. Mesh axes are major to minor, as in ``jax.make_mesh``: minor axes take the inner levels.
This is done for every prime factor apart, so that it always comes out even; where sizes are
multiples of each other it is plain row-major order.

Torus. JAX (``mesh_utils.create_device_mesh``) gives a mesh axis whole torus dimensions where it
can, and splits them otherwise. Here every way to write the axes as products over the dimensions is
searched, first for the fewest pieces that split a dimension, then for the least

    sum over mesh axes of (time of an all-gather over that axis alone),

exactly, by recursion over the axes from minor to major: what an axis costs depends only on how
much of each dimension the axes inside it have used, and that is the memo's key.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autoshard.machine.machine import Machine
from autoshard.machine.network import Torus


@dataclass(frozen=True, slots=True, order=True)
class Piece:
    """A part of a mesh axis: `length` chips, `stride` apart, in one physical dimension.

    Attributes:
      level: index into the machine's network.
      dimension: the torus dimension; 0 for a switch.
      stride: distance of neighbours, in units of the level.
      length: number of chips.
    """

    level: int
    dimension: int
    stride: int
    length: int


@dataclass(frozen=True, slots=True)
class Run:
    """Chips of one physical dimension that a set of axes joins: a line, or a closed ring."""

    length: int
    stride: int
    ring: bool

    @property
    def links(self) -> float:
        """Links that each chip can use, over which it receives: 2 in a ring, 1 in a line.

        A stride above 1 means as many interleaved runs on the same wires.
        """
        return (2.0 if self.ring else 1.0) / self.stride

    @property
    def hops(self) -> int:
        """Links between the chips that are farthest apart."""
        return self.stride * (self.length // 2 if self.ring else self.length - 1)


def place(machine: Machine, mesh_shape: Sequence[int]) -> tuple[tuple[Piece, ...], ...]:
    """Return the pieces of every mesh axis; an axis of size 1 has none.

    Args:
      machine: its levels' sizes multiply to the product of `mesh_shape`.
      mesh_shape: sizes of the mesh axes, major to minor.
    """
    pieces: list[list[Piece]] = [[] for _ in mesh_shape]
    for index, (level, sizes) in enumerate(
        zip(machine.network, _levels(machine, mesh_shape), strict=True)
    ):
        if isinstance(level, Torus):
            factors = _torus_factors(level.dimensions, level.wraps, tuple(sizes))
        else:
            factors = tuple((size,) for size in sizes)
        used = [1] * (len(level.dimensions) if isinstance(level, Torus) else 1)
        for axis in reversed(range(len(mesh_shape))):
            for dimension, length in enumerate(factors[axis]):
                if length > 1:
                    pieces[axis].append(Piece(index, dimension, used[dimension], length))
                    used[dimension] *= length
    return tuple(tuple(sorted(parts, key=lambda one: _order(one, machine))) for parts in pieces)


def _order(piece: Piece, machine: Machine) -> tuple[int, int, int]:
    """Where a piece stands in its axis, the minor part first.

    A torus dimension that several axes share stays in one, where those stand side by side: what has
    less of it inside is the minor part, what has more of it outside the major one. XLA:TPU gathers
    over a whole 3D torus by an all-reduce where the chips come in another order.
    """
    level = machine.network[piece.level]
    size = level.dimensions[piece.dimension] if isinstance(level, Torus) else 0
    outside = piece.stride == 1 and piece.length < size
    return piece.level, (piece.stride == 1) + outside, piece.dimension


def runs(pieces: Sequence[Piece], level: Torus) -> dict[int, list[Run]]:
    """Return for each torus dimension the runs that pieces of several axes make together.

    Pieces that adjoin (one's stride is the other's end) are one longer run.
    """
    by_dimension: dict[int, list[Run]] = {}
    for dimension, group in itertools.groupby(sorted(pieces), key=lambda piece: piece.dimension):
        spans: list[tuple[int, int]] = []
        for piece in group:
            if spans and spans[-1][0] * spans[-1][1] == piece.stride:
                spans[-1] = (spans[-1][0], spans[-1][1] * piece.length)
            else:
                spans.append((piece.stride, piece.length))
        size, wrap = level.dimensions[dimension], level.wraps[dimension]
        by_dimension[dimension] = [
            Run(length, stride, ring=wrap and stride * length == size) for stride, length in spans
        ]
    return by_dimension


def _levels(machine: Machine, mesh_shape: Sequence[int]) -> list[list[int]]:
    """Return the part of every mesh axis at every level, minor axes taking inner levels first."""
    left = list(mesh_shape)
    parts = []
    for level in machine.network:
        free = level.chips
        sizes = [1] * len(left)
        for axis in reversed(range(len(left))):
            sizes[axis] = math.gcd(left[axis], free)
            left[axis] //= sizes[axis]
            free //= sizes[axis]
        parts.append(sizes)
    return parts


@functools.lru_cache(maxsize=1024)
def _torus_factors(
    dimensions: tuple[int, ...], wraps: tuple[bool, ...], sizes: tuple[int, ...]
) -> tuple[tuple[int, ...], ...]:
    """Return for every mesh axis the factor it takes of each torus dimension (memoised)."""

    @functools.cache
    def best(
        axis: int, used: tuple[int, ...]
    ) -> tuple[tuple[int, float], tuple[tuple[int, ...], ...]] | None:
        if axis < 0:
            return (0, 0.0), ()
        found = None
        room = tuple(size // use for size, use in zip(dimensions, used, strict=True))
        for factors in _products(sizes[axis], room):
            rest = best(axis - 1, tuple(map(operator.mul, used, factors)))
            if rest is None:
                continue
            (splits, seconds), assignment = rest
            links = 0.0
            for factor, use, wrap, size in zip(factors, used, wraps, dimensions, strict=True):
                if factor > 1:
                    splits += factor < size
                    links += Run(factor, use, ring=wrap and use * factor == size).links
            seconds = round(seconds + (1 - 1 / sizes[axis]) / max(links, 1e-300), 9)
            if found is None or (splits, seconds) < found[0]:
                found = (splits, seconds), (*assignment, factors)
        return found

    result = best(len(sizes) - 1, (1,) * len(dimensions))
    if result is None:
        raise AssertionError(
            f"mesh sizes {sizes} do not fill the torus {dimensions}: the product of both must be "
            "one"
        )
    return result[1]


def _products(size: int, room: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield every way to write `size` as a product of one divisor of each entry of `room`."""
    if len(room) == 1:
        if room[0] % size == 0:
            yield (size,)
        return
    shared = math.gcd(size, room[0])
    for factor in range(1, shared + 1):
        if shared % factor == 0:
            for rest in _products(size // factor, room[1:]):
                yield (factor, *rest)
