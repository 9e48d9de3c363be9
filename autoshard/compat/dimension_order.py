"""Arrays whose dimensions lie in memory in the order in which they are written.

XLA chooses the order of an array's dimensions in memory. XLA:CPU computes Fourier transforms in the
default order alone, asks for no other, and fails as it runs where a neighbour of a transform (a
gather along the last dimension, a product that sums over the first) is better off with another:

    LayoutUtil::IsMonotonicWithDim0Major(input_shape_.layout())

So the order is asked for around them. The other compilers ask for it by themselves, and see nothing
of this. XLA:TPU is asked for it where it would write a product by columns, and put what a loop has
saved by rows in order anew for that (`autoshard.xla.dim_order.row_major`).
"""

from __future__ import annotations

import functools
from typing import Any

from autoshard.compat.versions import installed_jaxlib


def in_default_order(array: Any) -> Any:
    """`array` in the default order of its dimensions on XLA:CPU, and as it is on all others."""
    return _primitive("in_default_order", "cpu").bind(array)


def by_rows(array: Any) -> Any:
    """`array` in the default order of its dimensions on XLA:TPU, and as it is on all others.

    As it is before JAX 0.11, too (`rows_can_be_asked_for`).
    """
    return _primitive("by_rows", "tpu").bind(array) if rows_can_be_asked_for() else array


def rows_can_be_asked_for() -> bool:
    """Whether XLA:TPU leaves an array cut whose order is asked for.

    That of JAX 0.10 gathers the whole array.
    """
    return installed_jaxlib() >= (0, 11)


@functools.cache
def _primitive(name: str, platform: str) -> Any:
    """The identity, in which one platform is asked for the default order."""
    import jax
    from jax.experimental.layout import Layout, with_layout_constraint
    from jax.extend.core import Primitive
    from jax.interpreters import ad, batching, mlir

    primitive = Primitive(name)

    def asked_for(array: Any) -> Any:
        return with_layout_constraint(array, Layout(tuple(range(array.ndim))))

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
