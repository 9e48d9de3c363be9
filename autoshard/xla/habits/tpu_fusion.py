"""What XLA:TPU writes to memory, and what it computes anew in every kernel that reads it.

Products are kernels of its own making, so that what is computed element by element runs inside of
them, too. What a lookup reads and what is scattered is written first.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from autoshard.xla.habits.records import Built, Habit
from autoshard.xla.habits.tpu_probes import alone, bf16, f32, indices, products, written

_ROWS = f32(16384, 8192)


def _activated(x: Any, w: Any) -> Any:
    return jax.nn.gelu(x * 2 + 1) @ w


def _into_product(built: Built) -> bool:
    (only,) = built.kernels("tanh")
    return only.opcodes >= {"convolution", "multiply", "add"} and only in products(built)


def _scaled_twice(x: Any, v: Any, w: Any) -> tuple[Any, Any]:
    return (x * 2) @ v, (x * 2) @ w


def _made_in_both(built: Built) -> bool:
    first, second = products(built)
    both = first.opcodes & second.opcodes
    return "multiply" in both and not written(built, "bf16[65536,2048]")


def _sum_of_three(a: Any, b: Any, c: Any, *weights: Any) -> tuple[Any, ...]:
    total = a + b + c
    return tuple(total @ w for w in weights)


def _written_for_four(built: Built) -> bool:
    (total,) = written(built, "bf16[65536,1024]")
    readers = products(built)
    return len(readers) == 4 and all(
        total.name in one.operands and "add" not in one.opcodes for one in readers
    )


def _gradient(x: Any, w: Any, v: Any) -> Any:
    def loss(x: Any, w: Any, v: Any) -> Any:
        return jnp.sum((jax.nn.gelu(x @ w) @ v).astype(jnp.float32) ** 2)

    return jax.grad(loss, (0, 1, 2))(x, w, v)


def _argument_waits(built: Built) -> bool:
    """Its argument and the argument's cotangent are written; what is made of it is not."""
    argument, cotangent = written(built, "bf16[32768,8192]")
    anew = [one for one in built.kernels("tanh", "convolution") if argument.name in one.operands]
    return "tanh" not in argument.opcodes and len(anew) == 3 and cotangent in anew


def _exact_gradient(x: Any, w: Any, v: Any) -> Any:
    def loss(x: Any, w: Any, v: Any) -> Any:
        made = jax.nn.gelu(x @ w, approximate=False) @ v
        return jnp.sum(made.astype(jnp.float32) ** 2)

    return jax.grad(loss, (0, 1, 2))(x, w, v)


def _long_anew(built: Built) -> bool:
    (argument,) = written(built, "f32[16384,4096]")
    anew = built.kernels("divide", "select", "exponential", "convolution")
    return len(anew) == 3 and all(argument.name in one.operands for one in anew)


def _long_written(built: Built) -> bool:
    """The product that makes its argument writes it, too; nothing else computes it."""
    first, *others = products(built)
    twice = first.writes == ("bf16[32768,8192]",) * 2
    return twice and "divide" in first.opcodes and not any("divide" in k.opcodes for k in others)


def _reduced(x: Any, y: Any) -> Any:
    return jnp.sum(jnp.tanh(x) * y, axis=1)


def _in_reduction(built: Built) -> bool:
    (only,) = built.kernels()
    return only.opcodes >= {"tanh", "multiply", "reduce"}


def _barred(x: Any, y: Any) -> tuple[Any, Any]:
    return lax.optimization_barrier(jnp.tanh(x)) * 3 + x, jnp.tanh(y) * 3 + y


def _apart_at_barrier(built: Built) -> bool:
    kinds = sorted("multiply" in one.opcodes for one in built.kernels("tanh"))
    return kinds == [False, True]


def _looked_up(table: Any, ids: Any) -> Any:
    return (table * 2 + 1)[ids]


def _table_written(built: Built) -> bool:
    (table,) = written(built, "f32[131072,1024]")
    (found,) = built.kernels("gather")
    return "multiply" in table.opcodes and table.name in found.operands


def _converted(table: Any, ids: Any) -> Any:
    return table[ids].astype(jnp.bfloat16)


def _found_converted(built: Built) -> bool:
    (found,) = built.kernels("gather")
    return found.writes == ("bf16[65536,1024]",) and "f32[131072,1024]" in found.reads


def _scattered(ids: Any, x: Any) -> Any:
    return jnp.zeros((131072, 1024), jnp.float32).at[ids].add(jnp.tanh(x))


def _updates_written(built: Built) -> bool:
    (made,) = built.kernels("tanh")
    (scatter,) = built.kernels("scatter")
    return made.writes == ("f32[65536,1024]",) and made.name in scatter.operands


HABITS: tuple[Habit, ...] = (
    alone(
        "elementwise-into-products",
        "What is computed element by element and read by a product runs in the product's kernel.",
        _activated,
        (bf16(1024, 2048), bf16(2048, 512)),
        _into_product,
    ),
    alone(
        "made-anew-for-two-products",
        "What is made of one array element by element is made anew in each of two products.",
        _scaled_twice,
        (bf16(65536, 2048), bf16(2048, 256), bf16(2048, 512)),
        _made_in_both,
        results=2,
    ),
    alone(
        "written-for-many-readers",
        "A sum of three arrays that four products read is written once.",
        _sum_of_three,
        (*(bf16(65536, 1024),) * 3, *(bf16(1024, n) for n in (256, 512, 768, 1280))),
        _written_for_four,
        results=4,
    ),
    alone(
        "activations-made-anew",
        "The backward pass computes an activation function anew from its argument, which waits.",
        _gradient,
        (bf16(32768, 1024), bf16(1024, 8192), bf16(8192, 512)),
        _argument_waits,
        results=3,
    ),
    alone(
        "long-functions-made-anew",
        "A float32 function of dozens of instructions is computed anew by each of three products.",
        _exact_gradient,
        (f32(16384, 1024), f32(1024, 4096), f32(4096, 1024)),
        _long_anew,
        results=3,
    ),
    alone(
        "long-narrow-functions-written",
        "A bfloat16 function of dozens of instructions is written for the backward pass.",
        _exact_gradient,
        (bf16(32768, 1024), bf16(1024, 8192), bf16(8192, 512)),
        _long_written,
        results=3,
    ),
    alone(
        "elementwise-into-reductions",
        "What is computed element by element and reduced runs in the reduction's kernel.",
        _reduced,
        (_ROWS, _ROWS),
        _in_reduction,
    ),
    alone(
        "barriers-part-kernels",
        "Nothing is fused across an optimization barrier.",
        _barred,
        (_ROWS, _ROWS),
        _apart_at_barrier,
        results=2,
    ),
    alone(
        "tables-written-for-lookups",
        "A table that is computed element by element is written before it is looked up.",
        _looked_up,
        (f32(131072, 1024), indices(65536)),
        _table_written,
    ),
    alone(
        "lookups-convert-what-they-find",
        "What is looked up is converted in the lookup's kernel.",
        _converted,
        (f32(131072, 1024), indices(65536)),
        _found_converted,
    ),
    alone(
        "updates-written-for-scatters",
        "What is scattered is written first, although it is computed element by element.",
        _scattered,
        (indices(65536), f32(65536, 1024)),
        _updates_written,
    ),
)
