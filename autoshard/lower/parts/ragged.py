"""Ragged products on the parts of one device, see `autoshard.program.ragged`.

XLA's partitioner gathers rows and groups. Here every device runs the product itself on its part:

    rows cut      the part of each group that lies in the device's rows has the sizes
                  clip(ends, first, last) - clip(starts, first, last)
    groups cut    the rows of the device's own groups are rolled to the front, where their sizes
                  find them; results are rolled back, and zero in all other rows
    both cut      over the same axes: rows are sent to their groups (`row_exchange`)
    batches       of which each has sizes of its own: one product after another

What else is cut (columns, contracted and batch dimensions) leaves the product as it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from autoshard import compat
from autoshard.lower.parts.cut import Cut
from autoshard.lower.parts.row_exchange import exchange
from autoshard.program.ragged import (
    RaggedKind,
    RaggedProduct,
    ragged_product,
    sizes_of_rows,
    without_batch,
)


def ragged_dot(equation: Any, arrays: Sequence[Any], cut: Cut) -> list[Any]:
    """The results of a ragged product on one device; partial where what it sums over is cut."""
    product = ragged_product(equation)
    left, right, sizes = arrays
    if product.kind is RaggedKind.BATCH:
        return compat.bind_equation(equation, arrays)
    rows, groups = cut.axes(0, product.ragged), _axes_of_groups(product, cut)
    both = tuple(axis for axis in rows if axis in groups)
    if both:
        return [_exchanged(equation, product, arrays, cut, both)]
    if rows:
        count = left.shape[product.ragged]
        sizes = sizes_of_rows(sizes, cut.devices.place(rows) * count, count)
    if not groups:
        return _of_each_batch(equation, product, left, right, sizes)
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


def _of_each_batch(
    equation: Any, product: RaggedProduct, left: Any, right: Any, sizes: Any
) -> list[Any]:
    """The product, of each batch by itself where batches have sizes of their own.

    XLA:TPU knows no such product ("group_sizes with rank > 1 are not yet supported", libtpu of
    JAX 0.12.0). The parts of a user's `shard_map` are batches, of which a device has one mostly.
    """
    batch = len(product.batch)
    lefts, rights = zip(*product.batch, strict=True) if batch else ((), ())
    if not batch or product.before != tuple(lefts):
        return compat.bind_equation(equation, [left, right, sizes])
    front = range(batch)
    lead = tuple(left.shape[d] for d in lefts)
    one, other = jnp.moveaxis(left, lefts, front), jnp.moveaxis(right, rights, front)
    count = math.prod(lead)
    arrays = [array.reshape(count, *array.shape[batch:]) for array in (one, other, sizes)]
    numbers = without_batch(product)
    params = equation.params

    def run(given: Sequence[Any]) -> Any:
        left, right, sizes = given
        return lax.ragged_dot_general(
            left,
            right,
            sizes,
            numbers,
            precision=params["precision"],
            preferred_element_type=params["preferred_element_type"],
        )

    result = run([array[0] for array in arrays])[None] if count == 1 else lax.map(run, arrays)
    result = result.reshape(*lead, *result.shape[1:])
    if product.kind is RaggedKind.CONTRACTED:  # of which groups come first
        result = jnp.moveaxis(result, batch, 0)
    return [result]


def _exchanged(
    equation: Any, product: RaggedProduct, arrays: Sequence[Any], cut: Cut, both: tuple[int, ...]
) -> Any:
    """The product of this device's groups with their rows, wherever these lie."""
    left, right, sizes = arrays
    rows_cut, groups_cut = (
        tuple(axis for axis in axes if axis not in both)
        for axes in (cut.axes(0, product.ragged), _axes_of_groups(product, cut))
    )
    rows = left.shape[product.ragged]
    sent = exchange(sizes, cut, axes=both, rows_cut=rows_cut, groups_cut=groups_cut, rows=rows)
    left = jnp.moveaxis(left, product.ragged, 0)
    made = equation.outvars[0].aval
    if product.kind is RaggedKind.CONTRACTED:
        right = jnp.moveaxis(right, product.ragged_right, 0)

        def add(number: Any, total: Any) -> Any:
            mine = jnp.moveaxis(sent.arrive(left, number), 0, product.ragged)
            theirs = jnp.moveaxis(sent.arrive(right, number), 0, product.ragged_right)
            own = [mine, theirs, sent.sizes(number).astype(sizes.dtype)]
            return total + compat.bind_equation(equation, own)[0]

        return sent.in_rounds(add, jnp.zeros(cut.local_results[0], made.dtype))

    def put(number: Any, found: Any) -> Any:
        mine = jnp.moveaxis(sent.arrive(left, number), 0, product.ragged)
        own = [mine, right, sent.sizes(number).astype(sizes.dtype)]
        (window,) = compat.bind_equation(equation, own)
        return sent.come_back(jnp.moveaxis(window, product.ragged_result, 0), found, number)

    local = list(cut.local_results[0])
    local.insert(0, local.pop(product.ragged_result))
    found = sent.in_rounds(put, jnp.zeros(local, made.dtype))
    return jnp.moveaxis(found, 0, product.ragged_result)


def _axes_of_groups(product: RaggedProduct, cut: Cut) -> tuple[int, ...]:
    """The mesh axes that cut the groups, major first."""
    if product.group is not None:
        return cut.axes(1, product.group)
    return tuple(axis for axis, d in enumerate(cut.written[0]) if d == 0)
