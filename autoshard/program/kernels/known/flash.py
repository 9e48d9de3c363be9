"""JAX's flash attention for TPUs: its three kernels, read and run on parts.

Options are read off a kernel: blocks are those of its operands, inner blocks the sides of its
products, the scale is one of its numbers, and a causal mask counts places. Calls with a bias or
with segments have more operands, and are not read.

The forward kernel of a step that is not differentiated makes no statistics of rows. On parts it
does; a whole row has `m` the largest score, and `l = exp(log-sum-exp - m)`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from autoshard import compat
from autoshard.program.bodies import equations_in
from autoshard.program.kernels.known.joinable import Joinable, ring_of_parts, tile
from autoshard.program.kernels.known.record import LANES, literals_in, made_again

SEQUENCE = 2
"""The dimension of all arrays `[b, h, s, ...]` along which the sequence lies."""


def forward(equation: Any) -> Joinable | None:
    """What is known of the forward kernel."""
    count = len(equation.outvars)
    if len(equation.invars) != 3:
        return None
    call = compat.kernel_call(equation)
    queries, keys = (call.blocks[k].sizes for k in (0, 1))
    sides = [one for one in _sides(call) if keys[SEQUENCE] % one == 0]
    tiles = [(queries[0], queries[SEQUENCE], keys[SEQUENCE], one) for one in sides]
    saved = count == 3

    def traced(options: compat.FlashOptions) -> Any:
        return lambda *arrays: compat.flash_output(arrays, options, saved=saved)

    options = made_again(equation, _options(equation, call, tiles), traced, _shapes(equation, 3))
    if options is None:
        return None
    query = equation.invars[0].aval
    statistics = 2.0 * LANES * np.dtype(np.float32).itemsize
    repeats = {4: SEQUENCE + 1, 5: SEQUENCE + 1} if saved else {}
    ring = ring_of_parts(
        equation,
        dict.fromkeys(range(3 + count), SEQUENCE),
        causal=options.causal,
        keys=(1, 2),
        repeated=repeats,
        beside=0.0 if saved else statistics / (query.shape[-1] * query.dtype.itemsize),
    )

    def run(arrays: Sequence[Any], causal: bool) -> list[Any]:
        rows, keys = (arrays[k].shape[SEQUENCE] for k in (0, 1))
        batch, *sides = options.tiles
        tiles = (tile(one, size) for one, size in zip(sides, (rows, keys, keys), strict=True))
        changed = replace(options, causal=causal, tiles=(batch, *tiles))
        out, total, most = compat.flash_output(arrays, changed, saved=True)
        return [out, most + jnp.log(total), most]

    def results(made: Sequence[Any]) -> list[Any]:
        out, log_sum, most = made
        return [out, jnp.exp(log_sum - most), most][:count]

    if ring is None:
        return None
    return Joinable(ring, dict(ring.places), True, run, results, repeats, 3)


def to_keys(equation: Any) -> Joinable | None:
    """What is known of the kernel that makes the gradients of keys and values."""
    if len(equation.invars) != 7:
        return None
    call = compat.kernel_call(equation)
    rows, keys = (call.blocks[k].sizes[SEQUENCE] for k in (0, 1))
    inner = itertools.product(_sides(call), repeat=2)
    tiles = [(rows, a, keys, b) for a, b in inner if rows % a == 0 and keys % b == 0]
    return _backward(equation, call, tiles, "rrkk", compat.flash_to_keys, (7, 8))


def to_queries(equation: Any) -> Joinable | None:
    """What is known of the kernel that makes the gradient of queries."""
    if len(equation.invars) != 7 or len(equation.outvars) != 1:
        return None
    call = compat.kernel_call(equation)
    rows, keys = (call.blocks[k].sizes[SEQUENCE] for k in (0, 1))
    tiles = [(rows, keys, one) for one in _sides(call) if keys % one == 0]
    return _backward(equation, call, tiles, "rkk", compat.flash_to_queries, ())


def _backward(
    equation: Any,
    call: compat.KernelCall,
    tiles: Sequence[tuple[int, ...]],
    sides: str,
    kernel: Any,
    summed: tuple[int, ...],
) -> Joinable | None:
    """What is known of a backward kernel.

    Args:
      equation: of the kernel.
      call: the same, read.
      tiles: what its blocks may be.
      sides: of each of them whether it is one of rows or of keys.
      kernel: which of them it is.
      summed: its results that go round.
    """

    def traced(options: compat.FlashOptions) -> Any:
        return lambda *arrays: kernel(arrays, options)

    shapes = _shapes(equation, 7)
    options = made_again(equation, _options(equation, call, tiles), traced, shapes)
    if options is None:
        return None
    repeats: dict[int, int] = dict.fromkeys(STATISTICS, SEQUENCE + 1)
    ring = ring_of_parts(
        equation,
        dict.fromkeys(range(7 + len(equation.outvars)), SEQUENCE),
        causal=options.causal,
        keys=(1, 2),
        summed=summed,
        repeated=repeats,
    )

    def run(arrays: Sequence[Any], causal: bool) -> list[Any]:
        sizes = {"r": arrays[0].shape[SEQUENCE], "k": arrays[1].shape[SEQUENCE]}
        tiles = (tile(one, sizes[side]) for one, side in zip(options.tiles, sides, strict=True))
        changed = replace(options, causal=causal, tiles=tuple(tiles))
        return kernel(arrays, changed)

    if ring is None:
        return None
    return Joinable(ring, dict(ring.places), False, run, list, repeats, 7)


STATISTICS = (3, 4, 6)
"""The operands of backward kernels that repeat one number for each row."""


def _shapes(equation: Any, count: int) -> list[jax.ShapeDtypeStruct]:
    """The operands as the functions take them."""
    found = []
    for number, atom in enumerate(equation.invars):
        shape = atom.aval.shape
        thin = shape[:-1] if count == 7 and number in STATISTICS else shape
        found.append(jax.ShapeDtypeStruct(thin, atom.aval.dtype))
    return found


def _sides(call: compat.KernelCall) -> list[int]:
    """The sides of the products of a kernel, each once."""
    found: dict[int, None] = {}
    for one in equations_in(call.body):
        if one.primitive.name == "dot_general":
            found |= dict.fromkeys(one.outvars[0].aval.shape)
    return list(found)


def _options(
    equation: Any, call: compat.KernelCall, tiles: Sequence[tuple[int, ...]]
) -> Iterator[compat.FlashOptions]:
    """In which ways a kernel with one of these tiles may have been called."""
    causal = any(one.primitive.name == "iota" for one in equations_in(call.body))
    scales = [*literals_in(call.body, np.floating), 1.0]
    for scale, one in itertools.product(dict.fromkeys(scales), tiles):
        yield compat.FlashOptions(causal, scale, equation.params["debug"], one)
