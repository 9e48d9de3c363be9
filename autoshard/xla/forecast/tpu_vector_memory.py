"""Find the arrays that stay in a TPU's vector memory (VMEM) and take no main memory (HBM).

A TPU computes on data in its vector memory, and XLA:TPU keeps arrays there that are read again
soon. Arrays that wait longer are moved to main memory in between. This model places arrays greedily
by the length of their live range, shortest first. An array is placed as a whole, if there is room
for it during its entire live range. Half of the vector memory is available for this. The other half
holds the working sets of running kernels and what is prefetched for the next ones. The half is an
assumption: with it the peaks of 15 of 17 plans of an MLP and a ViT on v5e, none of them made at
distorted prices, are within 10 % of the compiled ones, and of the others at most 13 % too high.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

SHARE = 0.5
"""The fraction of the vector memory that is available for arrays that stay there."""


class Life(NamedTuple):
    """The live range of an array, in program points, and its bytes per device."""

    start: int
    stop: int
    bytes: float


def spared(lives: Iterable[Life], capacity: float, end: int) -> Iterator[Life]:
    """Yield the arrays that fit in a vector memory of `capacity` bytes; the step has `end` points.

    >>> lives = [Life(0, 9, 40.0), Life(2, 4, 30.0), Life(5, 6, 50.0)]
    >>> list(spared(lives, capacity=100.0, end=10))
    [Life(start=5, stop=6, bytes=50.0), Life(start=2, stop=4, bytes=30.0)]
    """
    room = np.full(end + 1, SHARE * capacity)
    small = (life for life in lives if life.bytes <= SHARE * capacity)
    for life in sorted(small, key=lambda one: (one.stop - one.start, one)):
        if (room[life.start : life.stop] >= life.bytes).all():
            room[life.start : life.stop] -= life.bytes
            yield life
