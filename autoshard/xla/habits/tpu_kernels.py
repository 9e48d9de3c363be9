"""Which ops XLA:TPU runs as one kernel, and which it keeps apart."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from autoshard.xla.habits.records import Built, Habit
from autoshard.xla.habits.tpu_probes import (
    INNER,
    X,
    alone,
    bf16,
    cycles,
    f32,
    habit,
    indices,
    pinned,
    products,
    written,
)

_ROWS = f32(16384, 8192)


def _added(a: Any, b: Any, u: Any, v: Any) -> Any:
    return a @ u + b @ v


def _added_in_product(built: Built) -> bool:
    first, second = products(built)
    return first.name in second.operands and "add" in second.opcodes and "add" not in first.opcodes


def _adam(w: Any, m: Any, v: Any, g: Any) -> tuple[Any, ...]:
    m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
    return w - m / (jnp.sqrt(v) + 1e-8), m, v


def _three_results(built: Built) -> bool:
    (only,) = built.kernels()
    return len(only.writes) == 3 and len(only.reads) == 4


def _reduced_twice(x: Any) -> tuple[Any, Any]:
    return jnp.sum(x, 1), jnp.max(jnp.tanh(x), 1)


def _two_reductions(built: Built) -> bool:
    (only,) = built.kernels()
    return only.writes == ("f32[16384]", "f32[16384]") and "tanh" in only.opcodes


def _softmax(x: Any) -> Any:
    return jax.nn.softmax(x, axis=-1)


def _three_passes(built: Built) -> bool:
    largest, total, shares = built.kernels()
    alike = "exponential" in total.opcodes & shares.opcodes
    return alike and largest.writes == total.writes == ("f32[16384]",)


def _transposed(x: Any, w: Any) -> Any:
    return x.T @ w


def _read_as_it_lies(built: Built) -> bool:
    (only,) = products(built)
    types = set(only.reads)
    return types == {"bf16[8192,4096]", "bf16[8192,2048]"} and not built.kernels("copy")


def _sums_of_table(ids: Any, dx: Any, logits: Any, hidden: Any) -> Any:
    scattered = jnp.zeros((16384, 512), jnp.float32).at[ids].add(dx)
    return scattered + lax.dot_general(logits, hidden, (((0,), (0,)), ((), ())))


def _starts_from_product(built: Built) -> bool:
    (product,) = products(built)
    (scatter,) = built.kernels("scatter")
    return product.name in scatter.operands and "add" not in product.opcodes


def _exchanged_sums_of_table(ids: Any, dx: Any, logits: Any, hidden: Any) -> Any:
    scattered = pinned(jnp.zeros((16384, 512), jnp.float32).at[ids].add(dx), None, "x")
    scattered = pinned(scattered, "x", None)
    return scattered + lax.dot_general(logits, hidden, (((0,), (0,)), ((), ())))


def _product_is_late(built: Built) -> bool:
    (product,) = products(built)
    (scatter,) = built.kernels("scatter")
    return "add" in product.opcodes and scatter.position < product.position


def _pool_gradient(x: Any) -> Any:
    def loss(x: Any) -> Any:
        windows = (1, 2, 2, 1)
        return jnp.sum(lax.reduce_window(x, -jnp.inf, lax.max, windows, windows, "VALID") ** 2)

    return jax.grad(loss)(jnp.tanh(x))


def _selects_and_scatters(built: Built) -> bool:
    (only,) = built.kernels("select-and-scatter")
    return only.writes == ("f32[64,56,56,128]",) and not built.kernels("scatter")


def _three_products(a: Any, b: Any, c: Any, d: Any) -> tuple[Any, Any]:
    return a @ b, c @ d


def _one_pass(built: Built) -> bool:
    (wide,) = written(built, "f32[4096,4096]")
    (narrow,) = written(built, "bf16[4096,4096]")
    return cycles(wide) < 1.3 * cycles(narrow)


HABITS: tuple[Habit, ...] = (
    alone(
        "products-added-to-products",
        "Of a sum of two products the second starts from the first, and nothing else is written.",
        _added,
        (bf16(4096, 1024), bf16(4096, 1536), bf16(1024, 2048), bf16(1536, 2048)),
        _added_in_product,
    ),
    alone(
        "optimizers-in-one-kernel",
        "Elementwise kernels of one shape that read the same arrays are one, with several results.",
        _adam,
        (_ROWS,) * 4,
        _three_results,
        results=3,
        donated=(0, 1, 2),
    ),
    alone(
        "reductions-of-one-array-together",
        "Two reductions of one array are one kernel.",
        _reduced_twice,
        (_ROWS,),
        _two_reductions,
        results=2,
    ),
    alone(
        "row-reductions-apart",
        "A softmax of rows of an input is three kernels, each of which reads it.",
        _softmax,
        (_ROWS,),
        _three_passes,
    ),
    alone(
        "products-read-transposed",
        "A product reads its operands in either order, and no copy is made for it.",
        _transposed,
        (bf16(8192, 4096), bf16(8192, 2048)),
        _read_as_it_lies,
    ),
    alone(
        "scatters-start-from-products",
        "A scatter onto zeros that is added to a product starts from the product.",
        _sums_of_table,
        (indices(8192), f32(8192, 512), f32(8192, 16384), f32(8192, 512)),
        _starts_from_product,
    ),
    habit(
        "late-products",
        "A product that is added to an exchanged scatter runs after it, and adds it.",
        _exchanged_sums_of_table,
        (indices(8192), f32(8192, 512), f32(8192, 16384), f32(8192, 512)),
        ((), INNER, INNER, ()),
        (X,),
        _product_is_late,
    ),
    alone(
        "pools-select-and-scatter",
        "The gradient of a max-pool is one select-and-scatter, without indices.",
        _pool_gradient,
        (f32(64, 56, 56, 128),),
        _selects_and_scatters,
    ),
    alone(
        "float32-products-in-one-pass",
        "At default precision a float32 product takes no more cycles than a bfloat16 one.",
        _three_products,
        (f32(4096, 4096), f32(4096, 4096), bf16(4096, 4096), bf16(4096, 4096)),
        _one_pass,
        results=2,
    ),
)
