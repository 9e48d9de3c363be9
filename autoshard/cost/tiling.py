"""What arrays take in a memory of tiles.

A TPU keeps an array in tiles: of its two innermost dimensions, 8 sublanes of 128 lanes. A tile that
an array does not fill is there whole. Of a dimension of 4 or less the tile has 4, 2 or 1 sublanes.
The chip states lanes and sublanes (`Chip.lanes`); any compiler is expected to fill its tiles.

    bf16[64, 16, 196, 196]    16 sublanes of 196 -> 256 lanes: 1.31 of its own bytes

Which two dimensions are the innermost is the compiler's choice, for each array; here they are those
that waste least, but of what a convolution of windows reads the batch and the features: images of
three channels take 2.7 times their bytes there and more. What a kernel of Pallas reads and writes
lies as it is numbered: heads of 64 take twice their bytes. For the gradient of their layer XLA:TPU
lays them so; a forward convolution alone reads them by batch and width. Arrays of one dimension are
taken as they are. Tiles count in memory alone: of what is moved, arrays are their own bytes.

A pad that no other kernel can run is one of its own, and goes tile by tile: its time is that of the
tiles that it makes, whatever their type (`Chip.pad_tile_seconds`).

Sources: https://openxla.org/xla/tiled_layout (tiles, padding);
https://docs.jax.dev/en/latest/pallas/tpu/details.html (8 x 128 of 32 bits).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from autoshard.machine.chip import Chip
from autoshard.program.graph import Value

Floats = NDArray[np.float64]


def padding(sizes: NDArray[np.int64], chip: Chip, innermost: Sequence[int] | None = None) -> Floats:
    """Bytes that arrays take in the chip's memory for each of their own.

    Args:
      sizes: of their dimensions, on one device; `[arrays, rank]`.
      chip: `lanes` and `sublanes` are of its tiles; 1 and 1 if it has none.
      innermost: the two dimensions of the tiles; the last one alone if these are it and the one
        before it, in this order; None if the compiler may take any.

    >>> from autoshard.machine import load
    >>> padding(np.array([[16, 196, 196]]), load("v5e-1").chip).round(2).tolist()
    [1.31]
    """
    count, rank = sizes.shape
    denies = chip.compiler.denies
    if rank < 2 or chip.lanes * chip.sublanes == 1 or denies("tpu.tiles-of-8-by-128"):
        return np.ones(count)
    full, rows = np.maximum(sizes, 1), np.full_like(sizes, chip.sublanes)
    if not denies("tpu.tiles-of-few-rows"):
        rows = np.minimum(rows, 2 ** np.ceil(np.log2(full)).astype(np.int64))
    lanes, sublanes = _filled(full, chip.lanes), _filled(full, rows)
    if innermost is not None and len(innermost) == 1:
        (last,) = innermost
        return lanes[:, last] * sublanes[:, last - 1]
    if innermost is None and denies("tpu.tiles-waste-least"):
        return lanes[:, -1] * sublanes[:, -2]
    pairs = lanes[:, :, None] * sublanes[:, None, :]
    pairs[:, np.arange(rank), np.arange(rank)] = np.inf
    if innermost is not None:
        pairs = pairs[:, innermost][:, :, innermost]
    return pairs.reshape(count, -1).min(axis=1)


def pad_seconds(held: Floats, value: Value, chip: Chip) -> Floats:
    """Seconds of kernels that only pad, to a value whose parts take so many bytes in tiles.

    0 where they take what their bytes do.
    """
    if not chip.compiler.has("tpu.pads-go-tile-by-tile"):
        return np.zeros(len(held))
    return held / (value.itemsize * chip.lanes * chip.sublanes) * chip.pad_tile_seconds


def _filled(sizes: NDArray[np.int64], tile: NDArray[np.int64] | int) -> Floats:
    """The sizes with their last tile filled, as multiples of the sizes."""
    return -(-sizes // tile) * tile / sizes
