"""Ragged products on the parts of one device, see `autoshard.program.ragged`.

XLA's partitioner gathers rows and groups. Here every device runs the product itself on its part:

    rows cut      the part of each group that lies in the device's rows has the sizes
                  clip(ends, first, last) - clip(starts, first, last)
    groups cut    the rows of the device's own groups are rolled to the front, where their sizes
                  find them; results are rolled back, and zero in all other rows

What else is cut (columns, contracted and batch dimensions) leaves the product as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from autoshard import compat
from autoshard.lower.parts.cut import Cut
from autoshard.program.ragged import RaggedKind, RaggedProduct, ragged_product


def ragged_dot(equation: Any, arrays: Sequence[Any], cut: Cut) -> list[Any]:
    """The results of a ragged product on one device; partial where what it sums over is cut."""
    product = ragged_product(equation)
    left, right, sizes = arrays
    if product.kind is RaggedKind.BATCH:
        return compat.bind_equation(equation, arrays)
    rows = cut.axes(0, product.ragged)
    if rows:
        sizes = _sizes_of_rows(sizes, cut.devices.place(rows), left.shape[product.ragged])
    groups = _axes_of_groups(product, cut)
    if not groups:
        return compat.bind_equation(equation, [left, right, sizes])
    count = sizes.shape[-1] // cut.devices.count(groups)
    start = cut.devices.place(groups) * count
    before = jnp.sum(jnp.where(jnp.arange(sizes.shape[-1]) < start, sizes, 0))
    own = lax.dynamic_slice_in_dim(sizes, start, count)
    left = jnp.roll(left, -before, product.ragged)
    if product.kind is RaggedKind.CONTRACTED:
        right = jnp.roll(right, -before, product.ragged_right)
        return compat.bind_equation(equation, [left, right, own])
    (result,) = compat.bind_equation(equation, [left, right, own])
    row = lax.broadcasted_iota(own.dtype, result.shape, product.ragged_result)
    result = jnp.where(row < jnp.sum(own), result, jnp.zeros((), result.dtype))
    return [jnp.roll(result, before, product.ragged_result)]


def _sizes_of_rows(sizes: Any, place: Any, count: int) -> Any:
    """How many rows of each group lie in part `place` of `count` rows."""
    first = place.astype(sizes.dtype) * count
    ends = jnp.cumsum(sizes, axis=-1, dtype=sizes.dtype)
    starts = ends - sizes
    return jnp.clip(ends, first, first + count) - jnp.clip(starts, first, first + count)


def _axes_of_groups(product: RaggedProduct, cut: Cut) -> tuple[int, ...]:
    """The mesh axes that cut the groups, major first."""
    if product.group is not None:
        return cut.axes(1, product.group)
    return tuple(axis for axis, d in enumerate(cut.written[0]) if d == 0)
