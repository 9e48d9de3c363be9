"""Ops that look up single places of a dimension that is cut, in the forms that XLA cuts rightly.

XLA's partitioner gives each device the places that lie in its own part, but not for every form of
an op that says the same. What a cut dimension asks for is written in the form for which it does:

    dynamic_update_slice  a start beyond an end is dropped where a part ends: clamped before; of
                          a short type, places of parts are computed in it and overflow: widened
    scatter               a window of one place keeps the dimension whole: a place without window
    dynamic_slice         of a result that is cut, XLA makes one slice of both, and forgets that the
                          start of the first was clamped (seen with jaxlib 0.10.2, not with 0.12):
                          clamped before
    gather                takes what is cut in windows of one place as it is

One place alone has no such form: each device looks for it in its own part (`one_place`). The
lowering for one device (`autoshard.lower.parts.indexed`) needs none of these.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.lax import GatherScatterMode

from autoshard import compat
from autoshard.program.vocabulary import SCATTERS


def bind_looked_up(equation: Any, arrays: Sequence[Any], cut: frozenset[int]) -> list[Any] | None:
    """The results of an op whose first operand is cut along some dimensions, in the right form.

    Args:
      equation: of the op.
      arrays: its operands.
      cut: the dimensions of the first one that are cut.

    Returns None where the op is right as it is.
    """
    form = _FORMS.get(equation.primitive.name)
    return form(equation, arrays, cut) if form is not None and cut else None


def one_place(equation: Any) -> frozenset[int]:
    """The dimensions of the first operand of which an op looks up, or changes, one place in all.

    Where one of them is cut, each device is told to look in its own part. XLA makes slices of such
    gathers (XLA:GPU) and scatters (all compilers) before it partitions the program, and gathers
    what is sliced (seen with jaxlib 0.10.2 and 0.12).
    """
    name, params = equation.primitive.name, equation.params
    if name == "dynamic_slice":
        shape, sizes = equation.invars[0].aval.shape, params["slice_sizes"]
        return frozenset(d for d, size in enumerate(sizes) if size == 1 < shape[d])
    if name != "gather" and name not in SCATTERS:
        return frozenset()
    if math.prod(equation.invars[1].aval.shape[:-1]) != 1:
        return frozenset()
    numbers = params["dimension_numbers"]
    found = numbers.start_index_map if name == "gather" else numbers.scatter_dims_to_operand_dims
    return frozenset(found)


def _clamped(equation: Any, arrays: Sequence[Any], cut: frozenset[int]) -> list[Any] | None:
    operand, update, *starts = arrays
    if 0 in update.shape or not any(update.shape[d] < operand.shape[d] for d in cut):
        return None
    lasts = [size - taken for size, taken in zip(operand.shape, update.shape, strict=True)]
    return compat.bind_equation(equation, [operand, update, *map(_start_within, starts, lasts)])


def _start_within(start: Any, last: int) -> Any:
    """A start from 0 to `last`, in a type in which the partitioner can subtract parts' places."""
    limits = np.iinfo(jnp.result_type(start))
    end = np.asarray(min(last, int(limits.max)), limits.dtype)
    within = lax.clamp(np.asarray(0, limits.dtype), jnp.asarray(start), end)
    return within.astype(jnp.int32) if limits.bits < 32 else within


def starts_within(equation: Any, arrays: Sequence[Any]) -> list[Any]:
    """The operands of a `dynamic_slice`, or parts, with starts that keep it within the whole."""
    operand, *starts = arrays
    shape, sizes = equation.invars[0].aval.shape, equation.params["slice_sizes"]
    lasts = [size - taken for size, taken in zip(shape, sizes, strict=True)]
    return [operand, *map(_start_within, starts, lasts)]


def _without_window(equation: Any, arrays: Sequence[Any], cut: frozenset[int]) -> list[Any] | None:
    operand, indices, updates = arrays
    numbers = equation.params["dimension_numbers"]
    windowed = [
        d
        for d in range(operand.ndim)
        if d not in numbers.inserted_window_dims and d not in numbers.operand_batching_dims
    ]
    place = dict(zip(windowed, numbers.update_window_dims, strict=True))
    single = {
        d: place[d]
        for d in cut & place.keys() & set(numbers.scatter_dims_to_operand_dims)
        if updates.shape[place[d]] == 1 < operand.shape[d]
    }
    if not single:
        return None
    gone = sorted(single.values())
    kept = tuple(
        int(d - sum(other < d for other in gone))
        for d in numbers.update_window_dims
        if d not in gone
    )
    new = numbers._replace(
        update_window_dims=kept,
        inserted_window_dims=tuple(sorted({*numbers.inserted_window_dims, *single})),
    )
    return compat.bind_equation(
        equation, [operand, indices, lax.squeeze(updates, gone)], dimension_numbers=new
    )


def settled_gather(equation: Any, arrays: Sequence[Any], settle: Callable[[Any], Any]) -> Any:
    """A gather whose partial results are settled before what lies outside is filled in.

    That is what JAX makes of a gather that fills, with `settle` between its two parts.
    """
    params = equation.params
    if params["mode"] != GatherScatterMode.FILL_OR_DROP:
        return settle(*compat.bind_equation(equation, arrays))
    operand, indices = arrays
    numbers, sizes = params["dimension_numbers"], params["slice_sizes"]
    (found,) = compat.bind_equation(equation, arrays, mode=GatherScatterMode.CLIP)
    found = settle(found)
    lasts = np.array([operand.shape[d] - sizes[d] for d in numbers.start_index_map])
    inside = jnp.all((indices >= 0) & (indices <= _largest(lasts, indices)), axis=-1)
    batch = tuple(d for d in range(found.ndim) if d not in numbers.offset_dims)
    filled = lax.full_like(found, _fill(params["fill_value"], found.dtype))
    return lax.select(lax.broadcast_in_dim(inside, found.shape, batch), found, filled)


def _largest(lasts: Any, indices: Any) -> Any:
    """The last starts, as far as the type of the indices reaches."""
    limits = np.iinfo(indices.dtype)
    return np.minimum(lasts, limits.max).astype(limits.dtype)


def _fill(value: Any, dtype: Any) -> Any:
    """What JAX fills in: what the gather says, else NaN, or the integer that is least likely."""
    if value is not None:
        return value
    if jnp.issubdtype(dtype, jnp.inexact):
        return jnp.nan
    if dtype == jnp.bool_:
        return True
    limits = jnp.iinfo(dtype)
    return limits.min if jnp.issubdtype(dtype, jnp.signedinteger) else limits.max


_FORMS: Mapping[str, Callable[[Any, Sequence[Any], frozenset[int]], list[Any] | None]] = {
    "dynamic_update_slice": _clamped,
    **dict.fromkeys(SCATTERS, _without_window),
}
