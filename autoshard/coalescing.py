"""Whether a transposition reads and writes memory in whole transactions.

XLA:GPU transposes through tiles in shared memory, where the dimension that is innermost before and
the one that is innermost after are both large enough; else it reads element by element, and each
read fetches a whole transaction. The rule is that of its own timeline, found by transposing arrays
of many shapes: 4 bytes an element of bfloat16 where it is coalesced, 66 where it is not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

Order = tuple[int, ...]
"""Dimensions, the outermost in memory first."""

TILE, FLAT_TILE, FLAT_TILE_AREA = 16, 8, 64 * 64
"""Elements along which a transposing kernel of XLA:GPU must read and write; fewer are enough where
the two dimensions together have more elements than an area."""


def is_coalesced(sizes: Sequence[int], lies: Order, wanted: Order) -> bool:
    """Whether whole memory transactions are used where `lies` is read and `wanted` is written.

    Args:
      sizes: of the dimensions.
      lies, wanted: orders of the dimensions larger than one.

    >>> is_coalesced((8, 4096, 512, 4), (0, 1, 2, 3), (0, 1, 3, 2))
    False
    """
    before, extents = _merged(sizes, lies, wanted)
    rank = len(before)
    if rank < 2 or before[-1] == rank - 1:
        return True
    # `before` numbers the merged dimensions as they lie by their place in the wanted order.
    read, written = extents[before[-1]], extents[rank - 1]
    if min(read, written) >= (FLAT_TILE if read * written > FLAT_TILE_AREA else TILE):
        return True
    if written < TILE:
        return False
    # Few elements lie together, but a kernel that reverses three dimensions packs them.
    return before[-3:] == [rank - 1, rank - 2, rank - 3] and before[:-3] == list(range(rank - 3))


def _merged(sizes: Sequence[int], lies: Order, wanted: Order) -> tuple[list[int], list[int]]:
    """Dimensions that stay neighbours become one: (places in `wanted` as they lie, sizes there)."""
    place = {dimension: number for number, dimension in enumerate(wanted)}
    runs: list[list[int]] = []
    for dimension in lies:
        if runs and place[dimension] == runs[-1][-1] + 1:
            runs[-1].append(place[dimension])
        else:
            runs.append([place[dimension]])
    ranked = {run[0]: number for number, run in enumerate(sorted(runs))}
    extents = [math.prod(sizes[wanted[place]] for place in run) for run in sorted(runs)]
    return [ranked[run[0]] for run in runs], extents
