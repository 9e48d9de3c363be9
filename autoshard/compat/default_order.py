"""Arrays whose dimensions lie in memory in the order in which they are written, on XLA:CPU.

XLA chooses the order of an array's dimensions in memory. XLA:CPU computes Fourier transforms in the
default order alone, asks for no other, and fails as it runs where a neighbour of a transform (a
gather along the last dimension, a product that sums over the first) is better off with another:

    LayoutUtil::IsMonotonicWithDim0Major(input_shape_.layout())

So the order is asked for around them. The other compilers ask for it by themselves, and see nothing
of this.
"""

from __future__ import annotations

import functools
from typing import Any


def in_default_order(array: Any) -> Any:
    """`array` in the default order of its dimensions on XLA:CPU, and as it is on all others."""
    return _primitive().bind(array)


@functools.lru_cache(maxsize=1)
def _primitive() -> Any:
    import jax
    from jax.experimental.layout import Layout, with_layout_constraint
    from jax.extend.core import Primitive
    from jax.interpreters import ad, batching, mlir

    primitive = Primitive("in_default_order")

    def asked_for(array: Any) -> Any:
        return with_layout_constraint(array, Layout(tuple(range(array.ndim))))

    def batched(arrays: Any, dimensions: Any) -> Any:
        return primitive.bind(*arrays), dimensions[0]

    primitive.def_impl(jax.jit(primitive.bind))
    primitive.def_abstract_eval(lambda array: array)
    mlir.register_lowering(primitive, lambda _, array: [array])
    on_cpu = mlir.lower_fun(asked_for, multiple_results=False)
    mlir.register_lowering(primitive, on_cpu, platform="cpu")
    ad.deflinear2(primitive, lambda cotangent, _: [cotangent])
    batching.primitive_batchers[primitive] = batched
    return primitive
