"""The networks that a machine is nested of: tori and switched domains.

Bandwidths are bytes per second that **one chip sends in one direction** while all the others do the
same. A torus gives the figure of one link, of which a chip has two per dimension (one at the ends
of a line): an all-gather along a ring of bandwidth ``W`` a link moves ``2 W``, along a line ``W``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Torus:
    """Chips on a grid, each wired to its two neighbours in every dimension.

    Attributes:
      dimensions: chips along each dimension.
      wraps: per dimension, whether the last chip is wired to the first (a ring, not a line).
      link_bandwidth: bytes/s of one link in one direction.
      hop_seconds: latency of one link.
      efficiency: fraction of `link_bandwidth` that programs reach.
      name: how the vendor calls the network.
    """

    dimensions: tuple[int, ...]
    wraps: tuple[bool, ...]
    link_bandwidth: float
    hop_seconds: float
    efficiency: float
    name: str = "torus"

    @property
    def chips(self) -> int:
        return math.prod(self.dimensions)

    def faster(self, factor: float) -> Torus:
        """The same network with `factor` times the bandwidth."""
        return replace(self, link_bandwidth=factor * self.link_bandwidth)

    def __str__(self) -> str:
        shape = "x".join(
            f"{size}{'' if wrap else '|'}"
            for size, wrap in zip(self.dimensions, self.wraps, strict=True)
        )
        return f"{self.name} {shape} ({self.link_bandwidth / 1e9:g} GB/s a link)"


@dataclass(frozen=True, slots=True)
class Switch:
    """Units (chips, or whole inner levels) that reach each other at equal speed.

    Attributes:
      size: units joined.
      chip_bandwidth: bytes/s that one chip sends through it, all chips sending at once.
      latency_seconds: one message, end to end; a collective takes one after another.
      efficiency: fraction of `chip_bandwidth` that programs reach.
      pair_bandwidth: bytes/s between one pair, where pairs have wires of their own (a full mesh
        without a switch); infinite where only `chip_bandwidth` limits.
      pipelined: of a gather over this level and those inside of it, the share of the faster levels'
        time that runs beside the slowest one; at 0 the levels take turns.
      start_seconds: before its first message a collective meets all units, however few they are.
      reduces: an all-reduce over it is one kernel, which starts once and whose two halves share
        their messages, and no reduce-scatter with an all-gather behind it.
      name: how the vendor calls the network.
    """

    size: int
    chip_bandwidth: float
    latency_seconds: float
    efficiency: float
    pair_bandwidth: float = math.inf
    pipelined: float = 1.0
    start_seconds: float = 0.0
    reduces: bool = False
    name: str = "switch"

    @property
    def chips(self) -> int:
        return self.size

    def faster(self, factor: float) -> Switch:
        """The same network with `factor` times the bandwidth."""
        return replace(
            self,
            chip_bandwidth=factor * self.chip_bandwidth,
            pair_bandwidth=factor * self.pair_bandwidth,
        )

    def __str__(self) -> str:
        return f"{self.name} of {self.size} ({self.chip_bandwidth / 1e9:g} GB/s a chip)"


Level = Torus | Switch
Network = tuple[Level, ...]
