"""Sums that stay unreduced, for a compiler that knows only whole arrays.

A product whose contracted dimension is cut over `n` devices is a sum of `n` products. To say so
without a partial layout, the contracted dimension is written as two, and the outer one is kept:

    x[i, k] w[k, j]   ->   x[i, (n k')] w[(n k'), j]   ->   terms[n, i, j]     with n @ axis

Each device then has exactly its own term. Terms are added up as they are, and the sum over the
leading dimensions, which is sharded, is the one all-reduce or reduce-scatter that was planned. In
a sum that is settled in steps, terms are left of the axes of the all-reduce alone; those of the
reduce-scatter before it are summed by the product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jax import lax

from autoshard import compat
from autoshard.program.rules.ask_shardy import Rule


def terms_of_product(
    equation: Any,
    arrays: Sequence[Any],
    rule: Rule,
    assignment: Sequence[int],
    axes: Sequence[int],
    sizes: Sequence[int],
    constrain: Callable[[Any, Sequence[Sequence[int]]], Any],
) -> Any:
    """The terms of a `dot_general`, one leading dimension for each of `axes`.

    Args:
      equation: the product.
      arrays: its operands, whole.
      rule: its sharding rule.
      assignment: the factor of every mesh axis.
      axes: the mesh axes over which the result stays partial, in mesh order.
      sizes: of all mesh axes.
      constrain: lays an array out, by the axes of each of its dimensions.
    """
    (left, right), batch = equation.params["dimension_numbers"]
    new = []
    for array, mapping, contracted, batched in zip(
        arrays, rule.operands, (left, right), batch, strict=True
    ):
        shape: list[int] = []
        state: list[tuple[int, ...]] = []
        place: list[int] = []  # of every old dimension, or of what is left of it
        outer: dict[int, int] = {}
        for dimension, size in enumerate(array.shape):
            on = [a for a, k in enumerate(assignment) if k in mapping[dimension]]
            for axis in on if dimension in contracted else ():
                outer[axis] = len(shape)
                shape.append(sizes[axis])
                state.append((axis,))
                size //= sizes[axis]
            place.append(len(shape))
            shape.append(size)
            state.append(() if dimension in contracted else tuple(on))
        settled = sorted(outer.keys() - set(axes))  # are summed with the rest of the dimension
        new.append(
            (
                constrain(lax.reshape(array, shape), state),
                (*(outer[axis] for axis in settled), *(place[d] for d in contracted)),
                (*(outer[axis] for axis in axes), *(place[d] for d in batched)),
            )
        )
    numbers = ((new[0][1], new[1][1]), (new[0][2], new[1][2]))
    (terms,) = compat.bind_equation(
        equation, [array for array, _, _ in new], dimension_numbers=numbers
    )
    return terms


def add_up(terms: Any, count: int) -> Any:
    """The sum over the leading `count` dimensions."""
    return lax.reduce_sum(terms, tuple(range(count)))
