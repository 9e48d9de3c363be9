"""What cuDNN's fused attention computes and moves.

    products    two of queries, keys and values forward, five backward: the scores are made anew
    skipped     tiles of scores that the mask hides, counted in tiles of 128 x 128
    memory      operands and results once; keys that several tiles read lie in the cache meanwhile

cuDNN documents that masked tiles are skipped, not how large they are; 128 x 128 are those of
FlashAttention-2 and 3 (https://arxiv.org/abs/2307.08691, https://arxiv.org/abs/2407.08608).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from autoshard import compat
from autoshard.program.kernels.records import Arithmetic, KernelWork
from autoshard.program.kernels.ring import length_dimension, ring_of

TILE = 128
"""Queries, and keys, of a tile of scores."""

FORWARD_ELEMENTWISE, BACKWARD_ELEMENTWISE = 4.0, 5.0
"""FLOP of a score beside products and its exponential: scale, mask, maximum and sum; or scale,
mask, two differences and a product."""


def attention_work(equation: Any) -> KernelWork:
    """The work of an equation of cuDNN's attention on whole arrays."""
    call = compat.fused_attention(equation)
    queries, keys, values = (atom.aval.shape for atom in equation.invars[:3])
    length = length_dimension(call)
    heads = 3 - length
    places = keys[length]
    if call.paged:
        places *= equation.invars[8].aval.shape[2]
    rows = queries[0] * queries[heads]
    scores = rows * queries[length] * places * visible_share(call, queries[length], places)
    width, value_width = queries[3], values[3]
    products = (3 * width + 2 * value_width) if call.backward else (width + value_width)
    elementwise = BACKWARD_ELEMENTWISE if call.backward else FORWARD_ELEMENTWISE
    atoms = (*equation.invars, *equation.outvars)
    return KernelWork(
        name="cudnn_attention_backward" if call.backward else "cudnn_attention",
        grid=(queries[0], keys[heads]),
        arithmetic=Arithmetic(2.0 * products * scores, elementwise * scores, scores),
        dtype=str(equation.invars[0].aval.dtype),
        bytes=float(sum(math.prod(one.aval.shape) * one.aval.dtype.itemsize for one in atoms)),
        guessed=call.padded or call.packed,
        whole=tuple((axis, MODIFIED) for axis in (0, 1)) if call.modified else (),
        rings=() if (ring := ring_of(equation)) is None else (ring,),
    )


MODIFIED = "the function that changes the scores may read its place along it"


def visible_share(call: compat.FusedAttention, queries: int, keys: int) -> float:
    """The share of the tiles of scores in which a query sees a key."""
    down, across = -(-queries // TILE), -(-keys // TILE)
    row, column = np.arange(down)[:, None], np.arange(across)[None]
    seen = np.ones((down, across), bool)
    if call.causal:
        seen &= column <= row
    if call.window is not None:
        seen &= (column + 1) * TILE - 1 > row * TILE - call.window
    return float(seen.mean())
