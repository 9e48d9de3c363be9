"""How XLA:TPU computes products of rows that lie in groups: by a kernel, but for gradients."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from autoshard.xla.habits.records import Built, Habit
from autoshard.xla.habits.tpu_probes import alone, bf16, indices, products

_CONTRACTED = lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), [0], [])


def _rows(x: Any, w: Any, sizes: Any) -> Any:
    return lax.ragged_dot(x, w, sizes)


def _gradient(x: Any, dy: Any, sizes: Any) -> Any:
    return lax.ragged_dot_general(x, dy, sizes, _CONTRACTED, preferred_element_type=jnp.bfloat16)


def _in_a_kernel(built: Built) -> bool:
    (kernel,) = built.kernels("custom-call", writes="bf16[1024,768]")
    return "ragged-dot" in kernel.name and not products(built)


def _masked_inside(built: Built) -> bool:
    (product,) = products(built)
    return "select" in product.opcodes and product.writes == ("bf16[8,512,768]",)


HABITS: tuple[Habit, ...] = (
    alone(
        "ragged-rows-in-a-kernel",
        "A ragged product multiplies each row with its own group's matrix alone, in one kernel.",
        _rows,
        (bf16(1024, 512), bf16(8, 512, 768), indices(8)),
        _in_a_kernel,
    ),
    alone(
        "ragged-gradients-once-per-group",
        "The gradient of a ragged product's matrices takes all rows once per group, and masks them "
        "inside of the product.",
        _gradient,
        (bf16(1024, 512), bf16(1024, 768), indices(8)),
        _masked_inside,
    ),
)
