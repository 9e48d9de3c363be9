"""Products computed as the plan says (`autoshard.program.dim_order`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jax import lax

from autoshard import compat
from autoshard.program.dim_order import Order, ProductOrder


def product_in_order(
    equation: Any,
    arrays: Sequence[Any],
    told: ProductOrder,
    *,
    kept: bool = False,
    settle: Callable[[Any, Order], Any] | None = None,
) -> Any:
    """The result of a `dot_general`, with the dimensions of `equation`'s.

    Both operands are transposed to batch, free, contracted, and the result from the order in which
    it is wanted. A compiler makes these transpositions by laying the arrays out, where it can.

    Args:
      equation: the product.
      arrays: its operands, or parts of them.
      told: how it is computed.
      kept: whether a barrier keeps XLA from computing the transposed product instead.
      settle: what is done with the product before it is put in order, given where each dimension of
        the result lies in it.
    """
    (summed, others), batches = equation.params["dimension_numbers"]
    pairs = sorted(zip(summed, others, strict=True))
    pairs = [pairs[number] for number in told.contracted or range(len(pairs))]
    batch = len(batches[0])
    turned, first = [], batch
    for number, array in enumerate(arrays):
        contracted = tuple(pair[number] for pair in pairs)
        free = [d for d in range(array.ndim) if d not in {*contracted, *batches[number]}]
        lying = [free[d - first] for d in told.result if 0 <= d - first < len(free)]
        turned.append(lax.transpose(array, (*batches[number], *lying, *contracted)))
        first += len(free)
    exchanged = batch < turned[0].ndim - len(pairs) <= told.result[batch]
    left, right = reversed(turned) if exchanged else turned
    precision = equation.params["precision"]
    if exchanged and isinstance(precision, tuple):
        precision = precision[::-1]
    numbers = (
        tuple(tuple(range(one.ndim - len(pairs), one.ndim)) for one in (left, right)),
        (tuple(range(batch)),) * 2,
    )
    (result,) = compat.bind_equation(
        equation, [left, right], dimension_numbers=numbers, precision=precision
    )
    order = _inverse(told.result)
    if settle is not None:
        result = settle(result, order)
    if kept:
        result = lax.optimization_barrier(result)
    return lax.transpose(result, order)


def _inverse(order: Order) -> Order:
    return tuple(sorted(range(len(order)), key=order.__getitem__))
