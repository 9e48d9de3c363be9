"""Ops that look up places in a dimension of which each device holds a part.

A device's part of a dimension starts at its own place times the part's length. An index less that
start is an index into the part; where it falls outside, the place is another device's.

    gather           zeros for places of others, so that the sum over the devices is the whole
    dynamic slice    likewise, of one place
    scatter          what belongs to others is dropped; where the updates are cut, one device adds
                     to the operand and the others to neutral elements
    dynamic update   the device that has the place writes, the others write back what is there
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.lax import GatherScatterMode

from autoshard import compat
from autoshard.lower.parts.cut import Cut, refused


def _start(cut: Cut, operand: int, dimension: int, length: int) -> Any:
    """Where this device's part of a dimension begins."""
    axes = cut.axes(operand, dimension)
    return cut.devices.place(axes) * length if axes else 0


def _own_place(start: Any, size: int, cut: Cut, dimension: int, length: int) -> tuple[Any, Any]:
    """Where a place of the first operand's dimension is in this device's part, and if it is there.

    Args:
      start: the place in the whole dimension, of `size`; beyond an end it is the last one there.
      size: of the dimension.
      cut: how it is cut.
      dimension: of the first operand.
      length: of the device's part of it.
    """
    place = jnp.clip(start, 0, size - 1)
    place = place - _start(cut, 0, dimension, length).astype(place.dtype)
    return jnp.clip(place, 0, length - 1), (place >= 0) & (place < length)


def _is_first(cut: Cut, axes: Sequence[int]) -> Any:
    return cut.devices.place(axes) == 0


def gather(equation: Any, arrays: Sequence[Any], cut: Cut) -> list[Any]:
    """`lax.gather` on parts."""
    params = equation.params
    numbers, mode = params["dimension_numbers"], params["mode"]
    operand, indices = arrays
    shape = equation.invars[0].aval.shape
    sizes = list(params["slice_sizes"])
    # What takes all of a dimension starts at 0, or is filled: so it does on each part.
    looked_up = [d for d in numbers.start_index_map if cut.axes(0, d) and sizes[d] < shape[d]]
    for d, size in enumerate(shape):
        if not cut.axes(0, d) or d in numbers.operand_batching_dims:
            continue
        if d in looked_up:
            if sizes[d] != 1:
                raise refused(cut, f"it looks up {sizes[d]} places at once in dimension {d}")
        elif sizes[d] != size:
            raise refused(cut, f"it takes a part of dimension {d}, which is cut")
        else:
            sizes[d] = operand.shape[d]
    if not looked_up:
        return compat.bind_equation(equation, arrays, slice_sizes=tuple(sizes))

    columns, outside, mine = [], False, True
    for column, d in enumerate(numbers.start_index_map):
        index, last = indices[..., column], shape[d] - params["slice_sizes"][d]
        if mode == GatherScatterMode.FILL_OR_DROP:
            outside = outside | (index < 0) | (index > last)
        index = jnp.clip(index, 0, last)
        if d in looked_up:
            index = index - _start(cut, 0, d, operand.shape[d]).astype(index.dtype)
            mine = mine & (index >= 0) & (index < operand.shape[d])
            index = jnp.clip(index, 0, operand.shape[d] - 1)
        columns.append(index)
    result = compat.bind_equation(
        equation,
        [operand, jnp.stack(columns, axis=-1)],
        slice_sizes=tuple(sizes),
        mode=GatherScatterMode.CLIP,
        fill_value=None,
    )[0]
    batch = [d for d in range(result.ndim) if d not in numbers.offset_dims]

    def spread(mask: Any) -> Any:
        return lax.broadcast_in_dim(mask, result.shape, batch)

    zero = jnp.zeros((), result.dtype)
    if mode == GatherScatterMode.FILL_OR_DROP:
        fill = _fill(params["fill_value"], result.dtype)
        filled = jnp.where(_is_first(cut, cut.partial), fill, zero)
        found = jnp.where(spread(mine), result, zero)
        return [jnp.where(spread(outside), filled, found)]
    return [jnp.where(spread(mine), result, zero)]


def _fill(value: Any, dtype: Any) -> Any:
    """What `lax.gather` puts where an index is out of bounds, unless told otherwise."""
    if value is not None:
        return jnp.asarray(value, dtype)
    if jnp.issubdtype(dtype, jnp.inexact):
        return jnp.asarray(jnp.nan, dtype)
    if jnp.issubdtype(dtype, jnp.bool_):
        return jnp.asarray(True)
    limits = jnp.iinfo(dtype)
    return jnp.asarray(
        limits.min if jnp.issubdtype(dtype, jnp.signedinteger) else limits.max, dtype
    )


def scatter(equation: Any, arrays: Sequence[Any], cut: Cut) -> list[Any]:
    """`lax.scatter` and its combining kin on parts."""
    params = equation.params
    numbers, mode = params["dimension_numbers"], params["mode"]
    operand, indices, updates = arrays
    shape = equation.invars[0].aval.shape
    window = iter(numbers.update_window_dims)
    widths = {
        d: 1 if d in numbers.inserted_window_dims else equation.invars[2].aval.shape[next(window)]
        for d in range(len(shape))
        if d not in numbers.operand_batching_dims
    }
    # A window of all of a dimension starts at 0, or is dropped: so it does on each part.
    looked_up = [
        d
        for d in numbers.scatter_dims_to_operand_dims
        if cut.axes(0, d) and (d in numbers.inserted_window_dims or widths[d] < shape[d])
    ]
    if cut.partial:
        name = equation.primitive.name
        if name.endswith("add"):
            first = _is_first(cut, cut.partial)
            operand = jnp.where(first, operand, jnp.zeros((), operand.dtype))
        elif not name.endswith(("min", "max")):
            raise refused(cut, "of several updates of a place, one would have to be chosen")
    if not looked_up:
        return compat.bind_equation(equation, [operand, indices, updates])
    wide = [d for d in looked_up if widths[d] > 1]
    if wide:
        raise refused(cut, f"it updates windows of dimension {wide[0]}, which is cut")
    columns = []
    for column, d in enumerate(numbers.scatter_dims_to_operand_dims):
        index = indices[..., column]
        if mode == GatherScatterMode.CLIP:
            index = jnp.clip(index, 0, shape[d] - widths[d])
        if d in looked_up:
            length = operand.shape[d]
            index = index - _start(cut, 0, d, length).astype(index.dtype)
            index = jnp.where((index >= 0) & (index < length), index, length)
        columns.append(index)
    return compat.bind_equation(
        equation,
        [operand, jnp.stack(columns, axis=-1), updates],
        mode=GatherScatterMode.FILL_OR_DROP,
    )


def slice_of_place(equation: Any, arrays: Sequence[Any], cut: Cut) -> list[Any]:
    """`lax.dynamic_slice` on parts: zeros where a place is another device's."""
    operand, *starts = arrays
    shape, sizes = equation.invars[0].aval.shape, list(equation.params["slice_sizes"])
    mine: Any = True
    for d, size in enumerate(shape):
        if not cut.axes(0, d):
            continue
        if sizes[d] == size:
            sizes[d] = operand.shape[d]
            continue
        if sizes[d] != 1:
            raise refused(cut, f"it slices dimension {d}, which is cut")
        starts[d], owned = _own_place(starts[d], size, cut, d, operand.shape[d])
        mine = mine & owned
    (found,) = compat.bind_equation(equation, [operand, *starts], slice_sizes=tuple(sizes))
    return [found if mine is True else jnp.where(mine, found, jnp.zeros((), found.dtype))]


def update_slice(equation: Any, arrays: Sequence[Any], cut: Cut) -> list[Any]:
    """`lax.dynamic_update_slice` on parts."""
    operand, update, *starts = arrays
    shape, part = equation.invars[0].aval.shape, equation.invars[1].aval.shape
    if 0 in part:
        return [operand]
    here = True
    for d, size in enumerate(shape):
        if not cut.axes(0, d) or part[d] == size:
            continue
        if part[d] != 1:
            raise refused(cut, f"it updates {part[d]} places of dimension {d}, which is cut")
        starts[d], owned = _own_place(starts[d], size, cut, d, operand.shape[d])
        here = here & owned
    if here is not True:
        there = lax.dynamic_slice(operand, starts, update.shape, allow_negative_indices=False)
        update = jnp.where(here, update, there)
    return compat.bind_equation(equation, [operand, update, *starts])
