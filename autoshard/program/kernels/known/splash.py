"""JAX's splash attention for TPUs: its kernels, read and run on parts.

A kernel carries the sizes of its blocks with it. Its mask stands in arrays of the whole sequence:
they are those of a causal mask, or of a full one, if the library makes equal ones of such a mask.
Other masks, arrays that are arguments of the step, segments, sinks, other layouts, and a backward
kernel that makes all gradients at once, are not read.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from autoshard import compat
from autoshard.program.bodies import equations_in
from autoshard.program.kernels.known.joinable import Joinable, ring_of_parts, tile
from autoshard.program.kernels.known.record import LANES, literals_in, made_again

HIDDEN = -1e4
"""Literals below are what hidden scores are set to."""
SCALARS = 2
"""Arrays of the mask before the queries: which block is next, and which are left out."""
DIMENSIONS = 3
"""Of the grid of one call, and of its queries `[h, s, d]`."""


def read(equation: Any) -> Joinable | None:
    """What is known of a kernel."""
    call = compat.kernel_call(equation)
    _, kind, phase, *_ = compat.kernel_function(equation)[0].split("_")
    batches = len(call.grid) - DIMENSIONS
    count, results = len(equation.invars) - SCALARS, len(equation.outvars)
    causal = count in (4, 7)
    if call.scalars != SCALARS or count - causal != (3 if phase == "fwd" else 6):
        return None
    saved = call.name.endswith("_residuals") and not call.name.endswith("no_residuals")
    made = {"fwd": 1 + saved, "dq": 1, "dkv": 2}[phase]
    side = batches + 1
    shapes = _shapes(equation.invars[SCALARS : SCALARS + count - causal], side)

    def traced(options: compat.SplashOptions) -> Any:
        return lambda *arrays: compat.splash(arrays, options, saved=saved)

    forms = _options(equation, call, phase, causal, kind == "mqa", batches)
    options = made_again(equation, forms, traced, shapes)
    if options is None:
        return None
    length = {"rows": side, "keys": side - options.shared, "repeated": side + 1}
    kinds = ["rows", "keys", "keys", "repeated", "rows", "repeated"][: len(shapes)]
    lengths = {SCALARS + k: length[one] for k, one in enumerate(kinds)}
    first = len(equation.invars) + results - made  # older ones have scratch among their results
    lengths |= {first + k: length["keys" if phase == "dkv" else "rows"] for k in range(made)}
    repeats = {SCALARS + k: side for k, one in enumerate(kinds) if one == "repeated"}
    if phase == "fwd" and saved:
        repeats = {first + 1: side + 1}
    silent = 0 if saved or phase != "fwd" else LANES * np.dtype(np.float32).itemsize
    ring = ring_of_parts(
        equation,
        lengths,
        causal=causal,
        keys=(SCALARS + 1, SCALARS + 2),
        summed=(first, first + 1) if phase == "dkv" else (),
        repeated=repeats,
        beside=silent / (shapes[0].shape[-1] * shapes[0].dtype.itemsize),
    )
    if ring is None:
        return None

    def run(arrays: Sequence[Any], causal: bool) -> list[Any]:
        sides = (arrays[0].shape[-2], *[arrays[1].shape[-2]] * 2)
        sizes = {
            name: tile(options.sizes[name], size)
            for name, size in zip(options.blocks, sides, strict=False)
        }
        changed = replace(options, causal=causal, sizes={**options.sizes, **sizes})
        return compat.splash(arrays, changed)

    mask = _mask(equation, options, shapes)
    return Joinable(
        ring, lengths, phase == "fwd", run, _of(made), repeats=repeats, first=first, constants=mask
    )


def _of(count: int) -> Callable[[Sequence[Any]], list[Any]]:
    """So many of what a kernel makes."""
    return lambda made: list(made)[:count]


def _shapes(atoms: Sequence[Any], side: int) -> list[jax.ShapeDtypeStruct]:
    """The arrays as the functions take them: statistics without the dimension that repeats."""
    found = []
    for number, atom in enumerate(atoms):
        shape = atom.aval.shape
        thin = (*shape[:side], *shape[side + 1 :]) if number in STATISTICS else shape
        found.append(jax.ShapeDtypeStruct(thin, atom.aval.dtype))
    return found


def _mask(
    equation: Any, options: compat.SplashOptions, shapes: Sequence[jax.ShapeDtypeStruct]
) -> dict[int, Any]:
    """The operands that say what the mask is, by number."""
    heads, rows = shapes[0].shape[-3:-1]
    info, _ = compat.splash_mask(options, heads, rows, shapes[1].shape[-2])
    mask = {0: info.data_next, 1: info.block_mask}
    if options.causal:
        along = (1, -1) if options.phase == "dkv" else (-1, 1)
        shape = equation.invars[-1].aval.shape
        mask[len(equation.invars) - 1] = np.broadcast_to(info.q_sequence.reshape(along), shape)
    return mask


STATISTICS = (3, 5)
"""The operands of backward kernels, from queries on, that repeat one number for each row."""


def _options(
    equation: Any, call: compat.KernelCall, phase: str, causal: bool, shared: bool, batches: int
) -> Iterator[compat.SplashOptions]:
    """In which ways a kernel may have been called."""
    said = dict(equation.params["metadata"] or {}).get("xprof_metadata")
    if said is None:
        return
    sizes = json.loads(said)
    numbers = literals_in(call.body, np.floating)
    hidden = [one for one in numbers if one < HIDDEN] or [HIDDEN]  # a full mask hides nothing
    capped = any(one.primitive.name == "tanh" for one in equations_in(call.body))
    for value, cap, small in itertools.product(
        hidden, numbers if capped else [None], (True, False)
    ):
        yield compat.SplashOptions(
            *(phase, causal, shared, batches, sizes, value, cap, small),
            interpret=equation.params["interpret"],
        )
