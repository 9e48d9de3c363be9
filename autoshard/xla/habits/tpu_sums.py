"""Which collectives XLA:TPU makes of partial sums, and which of these it combines."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from autoshard.xla.habits.records import Built, Habit
from autoshard.xla.habits.tpu_probes import (
    INNER,
    WHOLE,
    X,
    bf16,
    habit,
    is_scatter,
    pinned,
    products,
)

_TERMS = bf16(64, 4096, 1024)
_GRID = (("x", 4), ("y", 4))
_SLICES = (("slice", 2), ("x", 8))
_ALL = (("slice", "x"),)


def _sum(x: Any) -> Any:
    return jnp.sum(x * 2 + 1, 0)


def _whole(built: Built) -> bool:
    """An all-reduce of the whole sum, and the slice of it by itself."""
    (total,) = built.collectives("all-reduce")
    slices = [one for one in built.kernels("dynamic-slice") if total.name in one.operands]
    return total.writes == ("bf16[4096,1024]",) and total.opcode == "all-reduce" and len(slices) > 0


def _scattered(built: Built) -> bool:
    (total,) = built.collectives("all-reduce")
    return is_scatter(total) and len(total.writes) == 1


def _sum_times(x: Any, y: Any) -> Any:
    return _sum(x) * y


def _cut_by_reader(built: Built) -> bool:
    (total,) = built.collectives("all-reduce")
    (reader,) = [one for one in built.kernels() if total.name in one.operands]
    return not is_scatter(total) and reader.opcodes >= {"dynamic-slice", "multiply"}


def _two_sums(a: Any, b: Any) -> tuple[Any, Any]:
    return jnp.sum(a * 2 + 1, 0), jnp.sum(b * 3 + 1, 0)


def _one_of_two(built: Built) -> bool:
    (total,) = built.collectives("all-reduce")
    return total.writes == ("bf16[4096,4096]",) * 2


def _gradients_of_loop(x: Any, a: Any, b: Any, c: Any) -> Any:
    def loss(stacks: Any) -> Any:
        def layer(x: Any, weights: Any) -> tuple[Any, None]:
            for w in weights:
                x = jnp.tanh(x @ pinned(w))
            return x, None

        return jnp.sum(lax.scan(layer, x, stacks)[0].astype(jnp.float32))

    return jax.grad(loss)((a, b, c))


def _three_in_loop(built: Built) -> bool:
    (total,) = built.collectives("all-reduce")
    return total.writes == ("bf16[1024,1024]",) * 3 and total.depth == 1


def _product_of_parts(x: Any, y: Any) -> Any:
    return lax.dot_general(x, y, (((0,), (0,)), ((), ())))


def _ring_of_products(built: Built) -> bool:
    permutes = built.collectives("collective-permute")
    parts = [one for one in products(built) if one.depth == 1]
    others = built.collectives("all-reduce")
    return len(permutes) >= 4 and len(parts) >= 2 and not others


def _layer(x: Any, w: Any) -> Any:
    return jnp.tanh(x @ w)


def _ring_of_gathers(built: Built) -> bool:
    return _ring_of_products(built) and not built.collectives("all-gather")


def _gathered_whole(built: Built) -> bool:
    """The whole sum is gathered; what is written last is a part of it."""
    (whole,) = built.collectives("all-gather")
    last = built.kernels()[-1]
    return whole.writes == ("bf16[4096,1024]",) and last.writes == ("bf16[256,1024]",)


def _parts_sent(built: Built) -> bool:
    """What goes from slice to slice is one of eight parts, and nothing is gathered."""
    sent = built.kernels("send")
    elements = [math.prod(map(int, one.writes[0][5:-1].split(","))) for one in sent]
    return elements == [4096 * 1024 // 8] and not built.collectives("all-gather")


HABITS: tuple[Habit, ...] = (
    habit(
        "no-scatter-across-slices",
        "A reduce-scatter over chips of several slices gathers the whole sum within each slice.",
        _sum,
        (_TERMS,),
        (_ALL,),
        (_ALL,),
        _gathered_whole,
        machine="2xv5e-8",
        mesh=_SLICES,
    ),
    habit(
        "sums-across-slices-in-steps",
        "Of a sum over chips of several slices that is wanted in parts within each, parts alone go "
        "from slice to slice.",
        _sum,
        (_TERMS,),
        (_ALL,),
        (X,),
        _parts_sent,
        machine="2xv5e-8",
        mesh=_SLICES,
    ),
    habit(
        "no-scatter-over-whole-square",
        "A reduce-scatter over all of a square torus is an all-reduce and a slice.",
        _sum,
        (_TERMS,),
        (X,),
        (X,),
        _whole,
        machine="v5e-16",
        mesh=(("x", 16),),
    ),
    habit(
        "no-scatter-over-whole-cube",
        "A reduce-scatter over all of a torus of three dimensions is an all-reduce and a slice.",
        _sum,
        (_TERMS,),
        (X,),
        (X,),
        _whole,
        machine="v5p-64",
        mesh=(("x", 64),),
    ),
    habit(
        "scatters-around-oblongs",
        "Over all of a torus of 2 x 4 chips a reduce-scatter goes round one ring.",
        _sum,
        (_TERMS,),
        (X,),
        (X,),
        _scattered,
    ),
    habit(
        "scatters-along-one-dimension",
        "Over one dimension of a torus a reduce-scatter is one.",
        _sum,
        (_TERMS,),
        (("x", None, "y"),),
        (("x", "y"),),
        _scattered,
        machine="v5e-16",
        mesh=_GRID,
    ),
    habit(
        "no-scatter-onto-two-dimensions",
        "A sum that is scattered onto two dimensions of an array is an all-reduce and a slice.",
        _sum,
        (_TERMS,),
        ((("x", "y"),),),
        (("x", "y"),),
        _whole,
        machine="v5e-16",
        mesh=(("x", 2), ("y", 2), ("z", 4)),
    ),
    habit(
        "readers-cut-whole-sums",
        "What reads a part of a sum that is made as a whole cuts out that part.",
        _sum_times,
        (_TERMS, bf16(4096, 1024)),
        (X, X),
        (X,),
        _cut_by_reader,
        machine="v5e-16",
        mesh=(("x", 16),),
    ),
    habit(
        "sums-are-combined",
        "Two sums of one type that nothing waits for are one all-reduce.",
        _two_sums,
        (bf16(8, 4096, 4096),) * 2,
        (X, X),
        (WHOLE, WHOLE),
        _one_of_two,
    ),
    habit(
        "gradients-are-combined-in-loops",
        "In a loop, too, gradients are summed as one, and as a whole over a torus of 2 x 2 x 2.",
        _gradients_of_loop,
        (bf16(8192, 1024), *(bf16(4, 1024, 1024),) * 3),
        (X, *(INNER,) * 3),
        (INNER,) * 3,
        _three_in_loop,
        machine="v5p-8",
    ),
    habit(
        "products-scatter-around-rings",
        "A product whose sum is scattered runs in parts, between permutes of what is summed.",
        _product_of_parts,
        (bf16(16384, 4096), bf16(16384, 4096)),
        (X, X),
        (X,),
        _ring_of_products,
        machine="v5e-16",
        mesh=(("x", 16),),
        source="xla/service/spmd/dot_handler.cc",
    ),
    habit(
        "products-gather-around-rings",
        "A product of a sharded weight runs in parts, between permutes of the weight's shards.",
        _layer,
        (bf16(16384, 2048), bf16(2048, 2048)),
        (X, X),
        (X,),
        _ring_of_gathers,
        source="xla/service/spmd/dot_handler.cc",
    ),
)
