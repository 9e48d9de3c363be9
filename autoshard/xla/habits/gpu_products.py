"""How XLA:GPU computes products and convolutions: as calls of libraries.

A library reads whole arrays and writes one, beside a workspace of its own. It can start from an
array instead of zero, so that a sum of two products needs no addition.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from autoshard.xla.habits.gpu_probes import (
    INNER,
    WHOLE,
    X,
    bf16,
    f32,
    habit,
    indices,
    products,
)
from autoshard.xla.habits.records import Built, Habit

_REWRITER = "xla/service/gpu/transforms/gemm_rewriter.cc"
_ROWS, _WEIGHT = bf16(8192, 512), bf16(512, 256)
_SUM = "bf16[1024,256]"
_TERMS = (bf16(8192, 512), bf16(512, 256), bf16(8192, 384), bf16(384, 256))
_THIRD = (bf16(8192, 640), bf16(640, 256))


def _slices(x: Any, stack: Any) -> Any:
    return lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, stack)[0]


def _slices_scaled(x: Any, stack: Any) -> Any:
    return lax.scan(lambda x, w: (jnp.tanh(x * w), None), x, stack)[0]


def _of_one_row(x: Any, w: Any, y: Any, v: Any) -> Any:
    return jnp.tanh(jnp.tanh(x) @ w), jnp.tanh(jnp.tanh(y) @ v)


def _of_one_array(x: Any, w: Any, v: Any) -> Any:
    return jnp.tanh(x @ w), jnp.tanh(x @ v)


def _of_heads(x: Any, heads: Any, flat: Any) -> tuple[Any, Any]:
    """Products of one row in a loop, whose columns are of two dimensions and of one."""

    def turn(x: Any, weights: Any) -> tuple[Any, Any]:
        of_heads, of_one = weights
        made = jnp.tanh(jnp.einsum("bsd,dkh->bskh", x, of_heads)).reshape(x.shape)
        return x + made, jnp.tanh(jnp.sin(x) @ of_one)

    return lax.scan(turn, x, (heads, flat))


def _large_product(x: Any, w: Any) -> Any:
    made = lax.optimization_barrier(x @ w)
    return jnp.sum(lax.optimization_barrier(jnp.tanh(made)), axis=0)


def _large_elementwise(x: Any) -> Any:
    made = lax.optimization_barrier(jnp.sin(x))
    return jnp.sum(lax.optimization_barrier(jnp.tanh(made)), axis=0)


def _table_gradient(rows: Any, logits: Any, h: Any, dx: Any) -> Any:
    return jnp.zeros((4096, 512), jnp.bfloat16).at[rows].add(dx) + logits.T @ h


def _pool_gradient(x: Any, dy: Any) -> Any:
    def pool(x: Any) -> Any:
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")

    return jax.vjp(pool, x)[1](dy)[0]


def _convolved(x: Any, w: Any) -> Any:
    return lax.conv_general_dilated(
        x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def _renewed(w: Any, m: Any, x: Any, u: Any) -> tuple[Any, Any, Any]:
    """A step of two convolutions with momentum: the second one, `w`, is of single points."""

    def loss(w: Any, u: Any) -> Any:
        h = jax.nn.relu(_convolved(x, u.astype(jnp.bfloat16)))
        return jnp.sum(jax.nn.relu(_convolved(h, w.astype(jnp.bfloat16))).astype(jnp.float32) ** 2)

    dw, du = jax.grad(loss, (0, 1))(w, u)
    m = 0.9 * m + dw
    return w - 0.1 * m, m, u - 0.1 * du


def _is_call(built: Built) -> bool:
    (only,) = products(built)
    return only.reads == ("bf16[1024,512]", "bf16[512,256]") and only.writes[0] == _SUM


def _has_workspace(size: int, built: Built) -> bool:
    (only,) = products(built)
    return only.writes == (_SUM, f"s8[{size}]") and built.temporary_bytes >= size


def _operand_written(built: Built) -> bool:
    made, product = built.kernels()
    return "tanh" in made.opcodes and made.name in product.operands and product in products(built)


def _result_written(built: Built) -> bool:
    product, made = built.kernels()
    return {"tanh", "add"} <= made.opcodes and product.name in made.operands


def _sum_of_two(built: Built) -> bool:
    first, second = products(built)
    no_kernel = len(built.kernels()) == 2
    return no_kernel and len(first.reads) == 2 and second.operands[2] == first.name


def _third_added(built: Built) -> bool:
    (addition,) = built.kernels("add")
    third = products(built)[-1]
    return third.reads == ("bf16[1024,640]", "bf16[640,256]") and third.name in addition.operands


def _slice_written(built: Built) -> bool:
    (product,) = (one for one in products(built) if one.depth == 1)
    (slice_,) = built.kernels("dynamic-slice", reads="bf16[4,512,512]")
    return slice_.depth == 1 and product.operands[1] == slice_.name


def _slice_in_place(built: Built) -> bool:
    (kernel,) = built.kernels("dynamic-slice", reads="bf16[4,1024,512]")
    return {"tanh", "multiply"} <= kernel.opcodes


def _only_large_is_call(built: Built) -> bool:
    (call,) = products(built)
    (multiplied,) = built.kernels("multiply", reads="bf16[4096,512]")
    (summed,) = built.kernels("reduce", writes="bf16[512]")
    return call.reads[1] == "bf16[4096,4096]" and multiplied.name in {*summed.operands, summed.name}


def _heads_alone_turned(built: Built) -> bool:
    (turned,) = built.kernels("transpose", reads="bf16[4,2048,16,128]")
    inside = built.kernels("transpose", reads="bf16[4,2048,384]")
    return turned.depth == 0 and turned.writes == ("bf16[4,16,128,2048]",) and not inside


def _one_call_of_copies(built: Built) -> bool:
    (call,) = products(built)
    (copied,) = built.kernels("concatenate")
    weights = {"bf16[512,256]", "bf16[512,384]"}
    return weights <= set(copied.reads) and copied.name in call.operands


def _starts_from_product(built: Built) -> bool:
    (product,), (scatter,) = products(built), built.kernels("scatter")
    return product.name in scatter.operands and len(built.kernels()) == 2


def _scatters_to_indices(built: Built) -> bool:
    (scatter,) = built.kernels("scatter", writes="f32[8,32,32,16]")
    (finds,) = built.kernels("reduce-window", writes="f32[8,16,16,16]")
    places = [one for one in finds.writes if one == "s32[8,16,16,16]"]
    return (
        finds.reads == ("f32[8,32,32,16]",) and len(places) == 4 and finds.name in scatter.operands
    )


def _renewal_and_turned(built: Built) -> bool:
    """One kernel renews weight and moment and turns the weight; the error's product reads it."""
    (renewal,) = (one for one in built.kernels() if one.writes.count("f32[1,1,256,64]") == 2)
    (summed,) = (one for one in built.kernels("all-reduce-done") if one.name in renewal.operands)
    waits = [one for one in built.kernels("custom-call") if renewal.name in one.operands]
    return "bf16[1,1,256,64]" in renewal.writes and bool(waits) and bool(summed)


HABITS: tuple[Habit, ...] = (
    habit(
        "products-are-calls",
        "A product is a call of cuBLAS, which reads its operands as arrays of their own.",
        _REWRITER,
        lambda x, w: x @ w,
        (_ROWS, _WEIGHT),
        (X, WHOLE),
        (X,),
        _is_call,
    ),
    habit(
        "workspace-of-blackwell",
        "A call of cuBLAS takes a workspace of 32 MiB on Blackwell, in one tuple with its result.",
        _REWRITER,
        lambda x, w: x @ w,
        (_ROWS, _WEIGHT),
        (X, WHOLE),
        (X,),
        lambda built: _has_workspace(32 << 20, built),
        machine="b200-8",
        chips=("B200", "GB200", "B300", "GB300"),
    ),
    habit(
        "product-operands-written",
        "What is computed element by element for a product is written first.",
        _REWRITER,
        lambda x, w: jnp.tanh(x) @ w,
        (_ROWS, _WEIGHT),
        (X, WHOLE),
        (X,),
        _operand_written,
    ),
    habit(
        "product-results-written",
        "What is computed element by element of a product reads its written result.",
        _REWRITER,
        lambda x, w: jnp.tanh(x @ w) + x,
        (_ROWS, bf16(512, 512)),
        (X, WHOLE),
        (X,),
        _result_written,
    ),
    habit(
        "small-products-of-a-row-are-sums",
        "A product of a single row is multiplied and summed up by kernels, not by cuBLAS, if its "
        "matrix has less than ten million elements.",
        "xla/service/gpu/transforms/algebraic_simplifier.cc",
        _of_one_row,
        (bf16(1, 4096), bf16(4096, 512), bf16(1, 4096), bf16(4096, 4096)),
        (WHOLE,) * 4,
        (WHOLE,) * 2,
        _only_large_is_call,
    ),
    habit(
        "stacks-turned-for-wide-rows",
        "Where such a product reads a slice of a stack whose columns are of several dimensions, "
        "the whole stack is put in an order before the loop in which what is contracted is "
        "innermost.",
        "xla/hlo/transforms/simplifiers/algebraic_simplifier.cc",
        _of_heads,
        (bf16(1, 1, 2048), bf16(4, 2048, 16, 128), bf16(4, 2048, 384)),
        (WHOLE,) * 3,
        (WHOLE,) * 2,
        _heads_alone_turned,
    ),
    habit(
        "products-of-one-array-merged",
        "Products that read one array are one call, for which the operands that differ are copied "
        "side by side, where one of them has at most 64 MiB of operands and result.",
        "xla/hlo/transforms/simplifiers/dot_merger.cc",
        _of_one_array,
        (_ROWS, _WEIGHT, bf16(512, 384)),
        (X, WHOLE, WHOLE),
        (X, X),
        _one_call_of_copies,
    ),
    habit(
        "products-start-from-products",
        "Of a sum of two products one starts from the other: nothing is added apart.",
        _REWRITER,
        lambda a, b, c, d: a @ b + c @ d,
        _TERMS,
        (X, WHOLE) * 2,
        (X,),
        _sum_of_two,
    ),
    habit(
        "third-product-added",
        "A third product, right of a sum of two, is added by a kernel of its own.",
        _REWRITER,
        lambda a, b, c, d, e, f: (a @ b + c @ d) + e @ f,
        (*_TERMS, *_THIRD),
        (X, WHOLE) * 3,
        (X,),
        _third_added,
    ),
    habit(
        "slices-written-for-products",
        "A slice of a stack that a loop multiplies with is written first, in each iteration.",
        "xla/service/gpu/transforms/priority_fusion.cc",
        _slices,
        (_ROWS, bf16(4, 512, 512)),
        (X, WHOLE),
        (X,),
        _slice_written,
    ),
    habit(
        "slices-read-in-place",
        "A slice of a stack that an elementwise op reads is read in place.",
        "xla/service/gpu/transforms/priority_fusion.cc",
        _slices_scaled,
        (_ROWS, bf16(4, 8192, 512)),
        (X, INNER),
        (X,),
        _slice_in_place,
    ),
    habit(
        "products-not-written-over",
        "An elementwise op writes a temporary beside the product that it reads, not over it: that "
        "is part of a tuple.",
        "xla/service/gpu/transforms/gemm_rewriter.cc",
        _large_product,
        (f32(131072, 64), f32(64, 1024)),
        (X, WHOLE),
        (WHOLE,),
        lambda built: built.temporary_bytes >= 2 * (64 << 20),
    ),
    habit(
        "elementwise-written-over",
        "An elementwise op writes over an array of its size that dies with it.",
        "xla/service/buffer_assignment.cc",
        _large_elementwise,
        (f32(131072, 1024),),
        (X,),
        (WHOLE,),
        lambda built: 64 << 20 <= built.temporary_bytes < 72 << 20,
    ),
    habit(
        "scatters-start-from-terms",
        "A scatter onto zeros, added to an array, starts from that array: of a table that is "
        "looked up and multiplied with, the gradients become one without an addition.",
        "xla/hlo/transforms/simplifiers/algebraic_simplifier.cc",
        _table_gradient,
        (indices(1024), bf16(1024, 4096), bf16(1024, 512), bf16(1024, 512)),
        (WHOLE, WHOLE, INNER, INNER),
        (INNER,),
        _starts_from_product,
    ),
    habit(
        "pool-gradients-scatter",
        "The gradient of a pool is a scatter to indices, one for every dimension, which a kernel "
        "finds that waits for what was pooled alone.",
        "observed",
        _pool_gradient,
        (f32(64, 32, 32, 16), f32(64, 16, 16, 16)),
        (X, X),
        (X,),
        _scatters_to_indices,
    ),
    habit(
        "renewal-turns-weight",
        "A weight's renewal runs as one with what turns the weight for the convolution of the "
        "error, which so waits for the gradient's sum.",
        "xla/service/gpu/transforms/multi_output_fusion.cc",
        _renewed,
        (f32(1, 1, 256, 64), f32(1, 1, 256, 64), bf16(64, 16, 16, 32), f32(3, 3, 32, 256)),
        (WHOLE, WHOLE, X, WHOLE),
        (WHOLE,) * 3,
        _renewal_and_turned,
        donated=(0, 1, 3),
    ),
)
