"""How XLA:GPU computes products of rows that lie in groups: densely, once per group."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from autoshard.xla.habits.gpu_probes import INNER, WHOLE, bf16, habit, indices, products
from autoshard.xla.habits.records import Built, Habit

_EXPANDER = "xla/hlo/transforms/expanders/ragged_dot_rewriter.cc"
_CONTRACTED = lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), [0], [])


def _rows(x: Any, w: Any, sizes: Any) -> Any:
    return lax.ragged_dot(x, w, sizes)


def _gradient(x: Any, dy: Any, sizes: Any) -> Any:
    return lax.ragged_dot_general(x, dy, sizes, _CONTRACTED, preferred_element_type=jnp.bfloat16)


def _rows_written(built: Built) -> bool:
    (written,) = built.kernels("select", writes="bf16[1024,8,512]")
    (product,) = products(built)
    return written.name in product.operands and product.reads[0] == "bf16[1024,4096]"


def _both_written(built: Built) -> bool:
    written = {one.name for one in built.kernels("select", writes="bf16[8,1024,*]")}
    (product,) = products(built)
    return len(written) == 2 and written == set(product.operands)


HABITS: tuple[Habit, ...] = (
    habit(
        "ragged-once-per-group",
        "Rows of a ragged product are written once per group, 0 where they are of another, and "
        "multiplied with all matrices as one.",
        _EXPANDER,
        _rows,
        (bf16(1024, 512), bf16(8, 512, 768), indices(8)),
        (WHOLE, (None, None, "x"), WHOLE),
        (INNER,),
        _rows_written,
    ),
    habit(
        "ragged-gradients-once-per-group",
        "For the gradient of a ragged product's matrices both operands are written once per group.",
        _EXPANDER,
        _gradient,
        (bf16(1024, 512), bf16(1024, 768), indices(8)),
        (WHOLE, INNER, WHOLE),
        ((None, None, "x"),),
        _both_written,
    ),
)
