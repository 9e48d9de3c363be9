"""In which order XLA:GPU lays the dimensions of arrays in memory, and what it transposes.

Most ops keep the order of what they read, whatever numbers JAX gives the dimensions. Products have
orders of their own, and what crosses the edge of a loop lies as it is numbered.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.lax import with_sharding_constraint as constrained
from jax.sharding import PartitionSpec

from autoshard.xla.habits.gpu_probes import INNER, WHOLE, X, bf16, f32, habit, is_tiled, products
from autoshard.xla.habits.records import Built, Habit

_LAYOUTS = "xla/service/gpu/transforms/layout_assignment.cc"
_RATE = 3.35e12
"""Bytes a second of an H100's memory."""
_CARRY = "bf16[4,2,128,8,64]"


def _renumbered(x: Any, w: Any) -> Any:
    return jnp.tanh((x @ w).reshape(-1, 16, 64).transpose(1, 0, 2)).sum(2)


def _disagreeing(a: Any, b: Any, c: Any, d: Any) -> Any:
    left, right = jnp.einsum("bij,bjk->bik", a, b), jnp.einsum("bij,bjk->bik", c, d)
    sums = jnp.tanh(left) + jnp.tanh(right).transpose(0, 2, 1)
    return jnp.sum(sums.astype(jnp.float32), (1, 2))


def _turned(x: Any, y: Any) -> tuple[Any, Any]:
    """With a sum over devices, for the compiler writes times where there is a collective."""
    return jnp.swapaxes(x, 2, 3) * 2, jnp.sum(y)


def _attention(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("bqkgh,bskh->bkgqs", q, k)
    shares = jax.nn.softmax(scores.astype(jnp.float32), -1).astype(jnp.bfloat16)
    return jnp.einsum("bkgqs,bskh->bqkgh", shares, v)


def _gathered_for_loop(x: Any, w: Any) -> Any:
    w = constrained(jnp.tanh(w), PartitionSpec())
    return lax.scan(lambda x, _: (jnp.tanh(x @ w), None), x, None, length=4)[0]


def _cached(cache: Any, q: Any, k: Any) -> tuple[Any, Any]:
    """A loop that writes a part of its carry, and multiplies with slices of it."""

    def body(carry: Any, i: Any) -> tuple[Any, None]:
        cache, q = carry
        cache = lax.dynamic_update_slice(cache, k[None], (i, 0, 0, 0, 0))
        one = lax.dynamic_index_in_dim(cache, i, 0, False)
        scores = jnp.einsum("bqkh,bskh->bkqs", q, one)
        return (cache, jnp.tanh(jnp.einsum("bkqs,bskh->bqkh", scores, one))), None

    return lax.scan(body, (cache, q), jnp.arange(4))[0]


def _read(cache: Any, q: Any) -> Any:
    """A loop that multiplies with slices of a stack."""

    def body(q: Any, one: Any) -> tuple[Any, None]:
        scores = jnp.einsum("bqkh,bskh->bkqs", q, one)
        return jnp.tanh(jnp.einsum("bkqs,bskh->bqkh", scores, one)), None

    return lax.scan(body, q, cache)[0]


def _updated(cache: Any, x: Any) -> Any:
    def body(cache: Any, i: Any) -> tuple[Any, None]:
        return lax.dynamic_update_slice(cache, x[None] * i.astype(x.dtype), (i, 0, 0)), None

    return lax.scan(body, cache, jnp.arange(4))[0]


def _layers(x: Any, stack: Any) -> Any:
    return lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, stack)[0]


def _stacked(x: Any, a: Any, b: Any) -> Any:
    def body(x: Any, ab: Any) -> tuple[Any, Any]:
        made = constrained(ab[0] @ ab[1], PartitionSpec(None, "x"))
        return jnp.tanh(x), made * 2

    return lax.scan(body, x, (a, b))


def _no_transposition(built: Built) -> bool:
    """The sum lies as the product does: its 16 heads, written first, are 64 neighbours each."""
    product, summed = built.kernels()
    return (
        product in products(built)
        and summed.writes == ("bf16[16,1024]",)
        and ("transpose" not in summed.opcodes)
    )


def _all_turned(*arrays: Any) -> tuple[Any, ...]:
    return tuple(jnp.swapaxes(array, 1, 2) * 2 for array in arrays)


def _reversed_and_rolled(x: Any, y: Any) -> tuple[Any, Any]:
    return x.transpose(0, 3, 2, 1) * 2, y.transpose(0, 2, 3, 1) * 2


def _tiled(built: Built) -> list[str]:
    """What is read by transpositions through tiles."""
    return sorted(one.reads[0] for one in built.kernels("transpose") if is_tiled(one))


def _right_turned(built: Built) -> bool:
    (turned,) = built.kernels("transpose")
    return turned.reads == ("bf16[8,384,256]",) and turned.writes == ("bf16[8,256,384]",)


def _batch_left_right(built: Built) -> bool:
    (product,) = products(built)
    return product.writes[0] == "bf16[8,256,512]" and product.orders[0] == (0, 1, 2)


def _scores_turned(built: Built) -> bool:
    """Written with the groups innermost: what reads the shares gets them transposed."""
    scores = products(built)[0]
    turned = built.kernels("transpose", "exponential", writes="bf16[2,4,512,4,512]")
    return scores.writes[0] == "bf16[8,512,2048]" and [is_tiled(one) for one in turned] == [False]


def _read_as_they_lie(built: Built) -> bool:
    """One key head and one sequence: no operand is transposed for the scores."""
    scores = products(built)[0]
    parameters = [name for name in scores.operands if name.startswith("param")]
    return scores.writes[0] == "bf16[512,2048]" and len(parameters) == 2


def _nothing_but_product(built: Built) -> bool:
    (only,) = built.kernels()
    return only in products(built) and only.reads == ("bf16[512,1024]", "bf16[256,512]")


def _seconds_a_byte(built: Built) -> float:
    (only,) = built.kernels("transpose")
    return built.seconds_of(only) / (2 * 32 << 20)


def _in_place(built: Built) -> bool:
    """One kernel of the loop writes the cache, and nothing has its size besides."""
    (update,) = built.kernels(writes="bf16[4,1024,512]")
    inside = update.depth == 1 and "dynamic-update-slice" in update.opcodes
    return inside and built.temporary_bytes < 4096


def _carry_turned(built: Built) -> bool:
    before, after = built.kernels("transpose", reads=_CARRY)
    updated = built.kernels("dynamic-update-slice", writes="bf16[4,2,8,64,128]")
    as_numbered = built.kernels("dynamic-update-slice", writes=_CARRY)
    inside = [one.depth for one in updated] == [1] and not as_numbered
    return before.depth == after.depth == 0 and after.writes == (_CARRY,) and inside


def _stack_turned(built: Built) -> bool:
    (gather,) = built.collectives("all-gather")
    (turned,) = built.kernels("transpose", reads="bf16[4,512,64]")
    return gather.depth == 1 and turned.depth == 0 and turned.writes == ("bf16[64,4,512]",)


def _carry_turned_for_sums(built: Built) -> bool:
    turned = built.kernels("transpose", reads=_CARRY)
    return bool(turned) and turned[0].depth == 0 and not products(built)


def _read_turned(built: Built) -> bool:
    """The stack is alive beside its copy, which both products read."""
    (turned,) = built.kernels("transpose", reads=_CARRY)
    calls = [one for one in built.kernels("custom-call") if one.depth == 1]
    size = 4 * 2 * 128 * 8 * 64 * 2
    return turned.depth == 0 and bool(calls) and built.temporary_bytes >= size


def _rows_before_loop(built: Built) -> bool:
    """It is made as it was gathered, and once more as it is numbered."""
    (gather,) = built.collectives("all-gather")
    (turned,) = built.kernels("transpose", writes="bf16[512,512]")
    (product,) = (one for one in products(built) if one.depth == 1)
    return gather.orders[1] == (1, 0) and turned.depth == 0 and turned.position < product.position


def _stacks_out_of_order(built: Built) -> bool:
    (scatter,) = built.collectives("reduce-scatter")
    (update,) = built.kernels("dynamic-update-slice")
    turned = built.kernels("transpose", reads="bf16[4,1024,64]")
    return (
        scatter.orders[-1] == (1, 0)
        and "multiply" in update.opcodes
        and update.depth == 1
        and [one.depth for one in turned] == [0]
        and turned[0].position > update.position
    )


HABITS: tuple[Habit, ...] = (
    habit(
        "transposes-renumber",
        "A transpose only gives the dimensions other numbers: what reads it reads the array as it "
        "lies.",
        _LAYOUTS,
        _renumbered,
        (bf16(8192, 512), bf16(512, 1024)),
        (X, WHOLE),
        (INNER,),
        _no_transposition,
    ),
    habit(
        "left-order-prevails",
        "Where two products that an elementwise op reads lie in different orders, that of the "
        "left one prevails, and the other is transposed.",
        _LAYOUTS,
        _disagreeing,
        (bf16(64, 256, 128), bf16(64, 128, 384), bf16(64, 384, 128), bf16(64, 128, 256)),
        (X,) * 4,
        (X,),
        _right_turned,
    ),
    habit(
        "products-write-batch-left-right",
        "A product writes its batch first, then the dimensions of its left operand and of its "
        "right one.",
        _LAYOUTS,
        lambda a, b: jnp.einsum("bij,bjk->bik", a, b),
        (bf16(64, 256, 128), bf16(64, 128, 512)),
        (X, X),
        (X,),
        _batch_left_right,
    ),
    habit(
        "matrices-read-transposed",
        "A product of matrices reads either operand transposed: nothing is copied.",
        "xla/service/gpu/transforms/gemm_rewriter.cc",
        lambda a, b: a.T @ b.T,
        (bf16(512, 8192), bf16(256, 512)),
        (INNER, WHOLE),
        (X,),
        _nothing_but_product,
    ),
    habit(
        "grouped-scores-transposed",
        "Scores of attention with grouped queries come out with the groups innermost, and are "
        "transposed element by element for the product with the values.",
        _LAYOUTS,
        _attention,
        (bf16(16, 512, 4, 4, 64), bf16(16, 512, 4, 64), bf16(16, 512, 4, 64)),
        (X, X, X),
        (X,),
        _scores_turned,
    ),
    habit(
        "batch-of-one-is-none",
        "A product whose batch has one element on a device is one of plain matrices, which reads "
        "its operands as they lie.",
        "xla/hlo/transforms/simplifiers/algebraic_simplifier.cc",
        _attention,
        (bf16(8, 512, 1, 4, 64), bf16(8, 512, 1, 64), bf16(8, 512, 1, 64)),
        (X, X, X),
        (X,),
        _read_as_they_lie,
    ),
    habit(
        "transposes-through-tiles",
        "A transposition that reads and writes along enough elements goes through tiles in shared "
        "memory, in about the time that its bytes take.",
        "xla/backends/gpu/codegen/emitters/transpose.cc",
        _turned,
        (bf16(64, 1024, 64, 32), f32(1024)),
        (X, X),
        (X, WHOLE),
        lambda built: is_tiled(*built.kernels("transpose")) and _seconds_a_byte(built) < 2 / _RATE,
    ),
    habit(
        "transposes-element-by-element",
        "A transposition along four elements reads each with a memory transaction of its own, and "
        "takes more than ten times as long.",
        "xla/service/gpu/model/coalescing_analysis.cc",
        _turned,
        (bf16(64, 1024, 512, 4), f32(1024)),
        (X, X),
        (X, WHOLE),
        lambda built: (
            not is_tiled(*built.kernels("transpose")) and _seconds_a_byte(built) > 10 / _RATE
        ),
    ),
    habit(
        "tiles-of-sixteen-elements",
        "A transposition goes through tiles where both innermost dimensions have 16 elements, or "
        "8 where they have more than 4096 together.",
        "xla/service/gpu/ir_emission_utils.cc",
        _all_turned,
        tuple(bf16(8192, *sizes) for sizes in ((64, 16), (64, 12), (1024, 8), (256, 8))),
        (X,) * 4,
        (X,) * 4,
        lambda built: _tiled(built) == ["bf16[1024,1024,8]", "bf16[1024,64,16]"],
    ),
    habit(
        "reversals-through-tiles",
        "A transposition that reverses three dimensions goes through tiles though few elements "
        "are innermost; one that rolls them does not.",
        "xla/service/gpu/ir_emission_utils.cc",
        _reversed_and_rolled,
        (bf16(8192, 4, 64, 32), bf16(8192, 4, 64, 32)),
        (X, X),
        (X, X),
        lambda built: (
            [is_tiled(one) for one in built.kernels("transpose")] == [True, False]
            and built.kernels(writes="bf16[1024,32,64,4]") == built.kernels("transpose")[:1]
        ),
    ),
    habit(
        "loop-edges-as-numbered",
        "What crosses the edge of a loop lies in the order of its dimensions: what was gathered "
        "along another than the first is written once more before the loop.",
        _LAYOUTS,
        _gathered_for_loop,
        (bf16(8192, 512), bf16(512, 512)),
        (X, INNER),
        (X,),
        _rows_before_loop,
    ),
    habit(
        "updates-in-place",
        "A loop's update of a donated cache writes the cache in place.",
        "xla/service/buffer_assignment.cc",
        _updated,
        (bf16(4, 8192, 512), bf16(8192, 512)),
        (INNER, X),
        (INNER,),
        _in_place,
        donated=(0,),
    ),
    habit(
        "carries-put-in-order",
        "Where a product reads a slice of a loop's carry in another order, the whole carry is put "
        "in that order before the loop, and in its own again after it.",
        _LAYOUTS,
        _cached,
        (bf16(4, 16, 128, 8, 64), bf16(16, 32, 8, 64), bf16(16, 1, 8, 64)),
        (INNER, X, X),
        (INNER, X),
        _carry_turned,
        donated=(0,),
    ),
    habit(
        "caches-put-in-order-for-sums",
        "A loop's carry of which a product of one row reads a slice is put in the order of a "
        "product before the loop, though the product is a sum.",
        _LAYOUTS,
        _cached,
        (bf16(4, 16, 128, 8, 64), bf16(16, 1, 8, 64), bf16(16, 1, 8, 64)),
        (INNER, X, X),
        (INNER, X),
        _carry_turned_for_sums,
        donated=(0,),
    ),
    habit(
        "stacks-turned-for-products",
        "Where a product reads a slice of a stack in another order, the whole stack is put in that "
        "order before the loop.",
        _LAYOUTS,
        _read,
        (bf16(4, 16, 128, 8, 64), bf16(16, 32, 8, 64)),
        (INNER, X),
        (X,),
        _read_turned,
    ),
    habit(
        "stacks-put-in-order",
        "A stack whose slices a loop gathers along an inner dimension is put in the order of the "
        "gather once, before the loop.",
        _LAYOUTS,
        _layers,
        (bf16(8192, 512), bf16(4, 512, 512)),
        (X, (None, None, "x")),
        (X,),
        _stack_turned,
    ),
    habit(
        "stacked-out-of-order",
        "What a loop stacks is written in place by the kernel that makes it, in the order in "
        "which that reads; the stack is put in its own order after the loop.",
        _LAYOUTS,
        _stacked,
        (f32(8192), bf16(4, 1024, 4096), bf16(4, 4096, 512)),
        (X, (None, None, "x"), INNER),
        (X, (None, None, "x")),
        _stacks_out_of_order,
    ),
)
