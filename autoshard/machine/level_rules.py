"""The levels of a family's network: their rates, and the shapes and sizes that they come in."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

MOST_CHIPS = 2**20
MOST_TRIED = 4096
"""Numbers of chips to either side that are looked at for a shape."""


@dataclass(frozen=True, slots=True)
class TorusRules:
    """A torus level of a family: its rates, and the shapes it comes in."""

    rank: int
    link_bandwidth: float
    hop_seconds: float
    efficiency: float
    name: str = "torus"
    lengths: tuple[int, ...] = ()
    cube: int | None = None
    wrap_length: int | None = None
    wraps: tuple[bool, ...] = ()
    maximum_chips: int | None = None

    def allows(self, shape: Sequence[int]) -> bool:
        """Tell whether the hardware comes in this shape."""
        if len(shape) != self.rank or math.prod(shape) > (self.maximum_chips or math.inf):
            return False
        if self.cube and all(length % self.cube == 0 for length in shape):
            return True
        return not self.lengths or all(length in self.lengths for length in shape)

    def ring_closures(self, shape: Sequence[int]) -> tuple[bool, ...]:
        """Return for each dimension whether its last chip is wired to its first."""
        if self.wraps:
            return self.wraps
        if self.cube:
            return (all(length % self.cube == 0 for length in shape),) * len(shape)
        return tuple(length == self.wrap_length for length in shape)

    def standard_shape(self, chips: int) -> tuple[int, ...] | None:
        """Return the most compact shape with that many chips, or None where there is none.

        >>> TorusRules(3, 1.0, 0.0, 1.0, lengths=(1, 2, 4), cube=4).standard_shape(256)
        (4, 8, 8)
        """
        shapes = _rising(chips, self.rank, 1)
        return min(filter(self.allows, shapes), key=sum, default=None)

    def nearest(self, chips: int, count: int) -> list[tuple[int, tuple[int, ...]]]:
        """Return so many numbers of chips with their shapes, of those looked at the nearest."""
        most = self.maximum_chips or MOST_CHIPS
        start = min(chips, most)
        around = (start + sign * far for far in range(MOST_TRIED) for sign in (-1, 1)[far == 0 :])
        found = []
        for one in around:
            shape = self.standard_shape(one) if 1 <= one <= most else None
            if shape is not None:
                found.append((one, shape))
            if len(found) == count:
                break
        return sorted(found)


def _rising(chips: int, rank: int, least: int) -> Iterator[tuple[int, ...]]:
    """The ways to write `chips` as a product of `rank` numbers that do not fall."""
    if rank == 1:
        yield from ((chips,),) if chips >= least else ()
        return
    length = least
    while length**rank <= chips:
        if chips % length == 0:
            yield from ((length, *rest) for rest in _rising(chips // length, rank - 1, length))
        length += 1


@dataclass(frozen=True, slots=True)
class SwitchRules:
    """A switched level of a family: its rates, and how many units it joins (None: any number)."""

    chip_bandwidth: float
    latency_seconds: float
    efficiency: float
    size: int | None = None
    pair_bandwidth: float = math.inf
    pipelined: float = 1.0
    start_seconds: float = 0.0
    reduces: bool = False
    name: str = "switch"
