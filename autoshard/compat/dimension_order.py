"""Arrays whose dimensions lie in memory in an order that is asked for.

XLA chooses the order of an array's dimensions in memory. Where it chooses badly, it is asked for
one.

XLA:CPU computes Fourier transforms in the default order alone, asks for no other, and fails as it
runs where a neighbour of a transform (a gather along the last dimension, a product that sums over
the first) is better off with another:

    LayoutUtil::IsMonotonicWithDim0Major(input_shape_.layout())

The other compilers ask for it by themselves, and see nothing of this. XLA:TPU puts products in
order anew that a loop saves by rows and another loop reads by columns
(`autoshard.xla.dim_order.column_major`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def in_default_order(array: Any) -> Any:
    """`array` in the default order of its dimensions on XLA:CPU, and as it is on all others."""
    return _primitive("in_default_order", "cpu", _default).bind(array)


def by_columns(array: Any) -> Any:
    """`array` with its last two dimensions exchanged in memory on XLA:TPU, and as it is on others.

    Its shape stays.
    """
    return _primitive("by_columns", "tpu", _columns).bind(array)


def _default(rank: int) -> tuple[int, ...]:
    return tuple(range(rank))


def _columns(rank: int) -> tuple[int, ...]:
    return (*range(rank - 2), rank - 1, rank - 2)


@functools.lru_cache(maxsize=2)
def _primitive(name: str, platform: str, order: Callable[[int], tuple[int, ...]]) -> Any:
    """The identity, by which a platform is asked for the order of as many dimensions."""
    import jax
    from jax.experimental.layout import Layout, with_layout_constraint
    from jax.extend.core import Primitive
    from jax.interpreters import ad, batching, mlir

    primitive = Primitive(name)

    def asked_for(array: Any) -> Any:
        return with_layout_constraint(array, Layout(order(array.ndim)))

    def batched(arrays: Any, dimensions: Any) -> Any:
        return primitive.bind(*arrays), dimensions[0]

    primitive.def_impl(jax.jit(primitive.bind))
    primitive.def_abstract_eval(lambda array: array)
    mlir.register_lowering(primitive, lambda _, array: [array])
    there = mlir.lower_fun(asked_for, multiple_results=False)
    mlir.register_lowering(primitive, there, platform=platform)
    ad.deflinear2(primitive, lambda cotangent, _: [cotangent])
    batching.primitive_batchers[primitive] = batched
    return primitive
