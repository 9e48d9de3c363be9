"""How XLA:GPU writes a collective: along which dimension, in which order, and in which type.

A collective moves whole blocks of memory. So an array lies with the dimension first along which it
is gathered or scattered, and what is made of it is put in order again.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.lax import with_sharding_constraint as constrained
from jax.sharding import PartitionSpec

from autoshard.xla.habits.gpu_probes import (
    INNER,
    WHOLE,
    X,
    bf16,
    end_of,
    f32,
    habit,
    indices,
    products,
)
from autoshard.xla.habits.records import Built, Habit

_LAYOUTS = "xla/service/gpu/transforms/layout_assignment.cc"
_PARTITIONER = "xla/service/spmd/spmd_partitioner.cc"
_LEFT, _RIGHT = bf16(1024, 4096), bf16(4096, 512)


def _gathered(w: Any) -> Any:
    return constrained(w, PartitionSpec()) * 2


def _product_of_gathered(a: Any, b: Any) -> Any:
    return jnp.einsum("bkqs,bksh->bkqh", constrained(jnp.tanh(a), PartitionSpec()), b)


def _exchanged_back(x: Any) -> Any:
    return constrained(jnp.tanh(x), PartitionSpec(None, "x"))


def _renewed(w: Any, a: Any, b: Any) -> Any:
    return w - a @ b


def _renewed_by_made(w: Any, a: Any, b: Any) -> Any:
    return w - lax.optimization_barrier(jnp.tanh(a @ b))


def _looked_up(rows: Any, table: Any) -> Any:
    return constrained(table, PartitionSpec())[rows].astype(jnp.bfloat16)


def _layers(x: Any, stack: Any) -> Any:
    stack = constrained(stack, PartitionSpec())
    return lax.scan(lambda x, w: (jnp.tanh(x @ w.astype(x.dtype)), None), x, stack)[0]


def _first_gathered(built: Built) -> bool:
    """Along the second dimension: the shard is transposed before, the whole after."""
    (gather,) = built.collectives("all-gather")
    (before,) = built.kernels("transpose", reads="f32[1024,64]")
    (after,) = built.kernels("transpose", writes="f32[1024,512]")
    ordered = before.position < gather.position < after.position
    return gather.orders == ((1, 0), (1, 0)) and "dimensions={1}" in gather.text and ordered


def _not_turned(built: Built) -> bool:
    (gather,) = built.collectives("all-gather")
    return set(gather.orders) == {(0, 1)} and not built.kernels("transpose")


def _product_scattered_first(built: Built) -> bool:
    (scatter,) = built.collectives("reduce-scatter")
    (product,) = products(built)
    (turned,) = built.kernels("transpose", writes="bf16[1024,64]")
    return (
        scatter.orders == ((1, 0), (1, 0))
        and product.orders[0] == (1, 0)
        and turned.position > scatter.position
    )


def _turned_for_scatter(built: Built) -> bool:
    """The product is one of matrices; its rows are written with the scattered ones first."""
    (scatter,) = built.collectives("reduce-scatter")
    (turned,) = built.kernels("transpose", writes="bf16[512,16,256]")
    (product,) = products(built)
    return (
        product.writes[0] == "bf16[8192,256]"
        and turned.operands == (product.name,)
        and scatter.operands == (turned.name,)
    )


def _sent_in_order(built: Built) -> bool:
    """Blocks that do not lie one after another are written so first."""
    (exchange,) = built.collectives("all-to-all")
    (before,) = built.kernels("transpose")
    return exchange.orders[-1] == (1, 0, 2) and before.position < exchange.position


def _beside(built: Built) -> bool:
    (scatter,) = built.collectives("reduce-scatter")
    (renewal,) = built.kernels("subtract")
    (copy,) = built.kernels("copy", writes="bf16[1024,64]")
    return (
        scatter.orders[-1] == (1, 0)
        and "transpose" in renewal.opcodes
        and copy.operands == (renewal.name,)
    )


def _made_of_scattered_so(built: Built) -> bool:
    """The renewal reads what is made of the scattered product out of order."""
    (scatter,) = built.collectives("reduce-scatter")
    (made,) = built.kernels("tanh")
    (renewal,) = built.kernels("subtract", "transpose")
    (copy,) = built.kernels("copy", writes="bf16[1024,64]")
    follows = made.position > scatter.position and "transpose" not in made.opcodes
    return follows and made.name in renewal.operands and copy.operands == (renewal.name,)


def _in_place(built: Built) -> bool:
    (renewal,) = built.kernels("subtract")
    return renewal.writes == ("bf16[128,512]",) and not built.kernels("copy")


def _one_sum(built: Built) -> bool:
    first, second = products(built)
    (sum_,) = built.collectives("all-reduce")
    return second.operands[2] == first.name and sum_.operands == (second.name,)


def _scatters(built: Built) -> bool:
    (scatter,) = built.collectives("reduce-scatter")
    return scatter.writes[-1] == "bf16[128,512]" and not built.collectives("all-reduce")


def _asynchronous(built: Built) -> bool:
    begins = built.collectives()
    kinds = sorted(one.opcode for one in begins)
    return kinds == ["all-gather-start", "all-reduce-start"] and all(
        end_of(built, one).position > one.position for one in begins
    )


def _in_float32(built: Built) -> bool:
    (gather,) = built.collectives("all-gather")
    return gather.writes[-1] == "f32[4096,512]"


def _stack_in_float32(built: Built) -> bool:
    (gather,) = built.collectives("all-gather")
    (convert,) = built.kernels("convert", "dynamic-slice")
    return gather.depth == 0 and gather.writes[-1] == "f32[4,512,512]" and convert.depth == 1


def _converted_first(built: Built) -> bool:
    (gather,) = built.collectives("all-gather")
    (convert,) = built.kernels("convert", reads="f32[64,1024]")
    return gather.writes[-1] == "bf16[512,1024]" and convert.name in gather.operands


def _put_in_order_for_product(built: Built) -> bool:
    (gather,), (turned,) = built.collectives("all-gather"), built.kernels("transpose")
    (product,) = products(built)
    return (
        gather.orders[-1][:2] == (1, 0)
        and gather.position < turned.position < product.position
        and turned.writes == ("bf16[8,8,512,256]",)
    )


HABITS: tuple[Habit, ...] = (
    habit(
        "gathers-along-first-dimension",
        "What is gathered along another dimension than the first lies with that dimension first: "
        "the shard is transposed before, and the whole where it must lie otherwise.",
        _LAYOUTS,
        _gathered,
        (f32(1024, 512),),
        (INNER,),
        (WHOLE,),
        _first_gathered,
    ),
    habit(
        "gathers-as-it-lies",
        "What is gathered along its first dimension is not transposed.",
        _LAYOUTS,
        _gathered,
        (f32(1024, 512),),
        (X,),
        (WHOLE,),
        _not_turned,
    ),
    habit(
        "batches-read-in-order",
        "What a batched product reads of an array that is gathered along another dimension than "
        "the first is put in order before.",
        _LAYOUTS,
        _product_of_gathered,
        (bf16(8, 8, 512, 256), bf16(8, 8, 256, 128)),
        (INNER, WHOLE),
        (WHOLE,),
        _put_in_order_for_product,
    ),
    habit(
        "scatters-along-first-dimension",
        "A product that is scattered along its second dimension is written with that first, and "
        "its part is put in order afterwards.",
        _LAYOUTS,
        lambda a, b: a @ b,
        (_LEFT, _RIGHT),
        (INNER, X),
        (INNER,),
        _product_scattered_first,
    ),
    habit(
        "made-of-scattered-lies-so",
        "What is made element by element of a product that is scattered along its second "
        "dimension lies as that does.",
        _LAYOUTS,
        _renewed_by_made,
        (bf16(1024, 512), _LEFT, _RIGHT),
        (INNER, INNER, X),
        (INNER,),
        _made_of_scattered_so,
        donated=(0,),
    ),
    habit(
        "inner-rows-copied-for-scatters",
        "A product that is scattered along one of several dimensions of its left operand, not "
        "the first one, is written once more with that first.",
        _LAYOUTS,
        lambda a, b: jnp.einsum("aim,mj->aij", a, b),
        (bf16(16, 512, 2048), bf16(2048, 256)),
        ((None, None, "x"), X),
        (INNER,),
        _turned_for_scatter,
    ),
    habit(
        "all-to-alls-cut-first-dimension",
        "What an all-to-all cuts along another dimension than the first is written in the order "
        "of the blocks first.",
        _PARTITIONER,
        _exchanged_back,
        (f32(1024, 512),),
        (X,),
        (INNER,),
        _sent_in_order,
    ),
    habit(
        "results-beside",
        "A donated weight's renewal that reads its gradient out of order lies beside the weight, "
        "and is copied into its place.",
        "xla/service/copy_insertion.cc",
        _renewed,
        (bf16(1024, 512), _LEFT, _RIGHT),
        (INNER, INNER, X),
        (INNER,),
        _beside,
        donated=(0,),
    ),
    habit(
        "results-in-place",
        "A donated weight's renewal that reads its gradient as it lies is written over the weight.",
        "xla/service/copy_insertion.cc",
        _renewed,
        (bf16(1024, 512), _LEFT, _RIGHT),
        (X, INNER, X),
        (X,),
        _in_place,
        donated=(0,),
    ),
    habit(
        "terms-stay-partial",
        "Terms of a sum that are partial over the same devices are added before one all-reduce.",
        _PARTITIONER,
        lambda a, b, c, d: a @ b + c @ d,
        (_LEFT, _RIGHT, bf16(1024, 2048), bf16(2048, 512)),
        (INNER, X, INNER, X),
        (WHOLE,),
        _one_sum,
    ),
    habit(
        "sums-are-scattered",
        "A partial sum that is wanted in parts is scattered, rather than reduced and cut.",
        "xla/service/gpu/transforms/reduce_scatter_creator.cc",
        lambda a, b: a @ b,
        (_LEFT, _RIGHT),
        (INNER, X),
        (X,),
        _scatters,
    ),
    habit(
        "collectives-begin-and-end",
        "Collectives are asynchronous: a begin and an end.",
        "xla/service/gpu/transforms/collectives/async_collective_annotator.cc",
        lambda w, a, b: (_gathered(w), a @ b),
        (f32(1024, 512), _LEFT, _RIGHT),
        (X, INNER, X),
        (WHOLE, WHOLE),
        _asynchronous,
    ),
    habit(
        "lookups-gathered-as-stored",
        "A table that is gathered, looked up and converted is gathered in its own type.",
        "observed",
        _looked_up,
        (indices(8192), f32(4096, 512)),
        (X, X),
        (X,),
        _in_float32,
    ),
    habit(
        "stacks-gathered-as-stored",
        "A stack that is gathered before the loop that converts its slices is gathered in its own "
        "type.",
        "observed",
        _layers,
        (bf16(8192, 512), f32(4, 512, 512)),
        (X, INNER),
        (X,),
        _stack_in_float32,
    ),
    habit(
        "weights-gathered-as-read",
        "A weight that is converted for the product which reads it is converted before it is "
        "gathered.",
        "observed",
        lambda x, w: x @ constrained(w, PartitionSpec()).astype(x.dtype),
        (bf16(8192, 512), f32(512, 1024)),
        (X, X),
        (X,),
        _converted_first,
    ),
)
