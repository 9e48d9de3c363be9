"""Which kernels of XLA:GPU run as one: those that read the same arrays, and those of whole rows.

Kernels of one shape that read the same become one with several results. A reduction of rows whose
elements lie beside each other runs in the kernel of Triton that reads it, if nothing else does. And
a kernel that no step shows: what copies a stack over the one that it renews.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from autoshard.xla.habits.gpu_probes import INNER, X, bf16, end_of, f32, habit
from autoshard.xla.habits.records import Built, Habit
from autoshard.xla.habits.tpu_loops import renewed

_TRITON = "xla/service/gpu/transforms/softmax_rewriter_triton.cc"
_TOGETHER = "xla/service/gpu/transforms/multi_output_fusion.cc"
_ROWS = f32(8192, 512)


def _adam(w: Any, m: Any, v: Any, g: Any) -> tuple[Any, Any, Any]:
    m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
    return w - m / (jnp.sqrt(v) + 1e-6), m, v


def _norm(x: Any) -> Any:
    mean = jnp.mean(x, -1, keepdims=True)
    spread = jnp.mean((x - mean) ** 2, -1, keepdims=True)
    return (x - mean) * lax.rsqrt(spread + 1e-5)


def _largest_read_twice(x: Any) -> tuple[Any, Any]:
    largest = jnp.max(x, -1, keepdims=True)
    return jnp.exp(x - largest), jnp.sort(largest.reshape(-1, 64), axis=1)


def _three_results(built: Built) -> bool:
    (only,) = built.kernels()
    return only.writes == ("f32[1024,512]",) * 3 and len(only.reads) == 4


def _joined(built: Built) -> bool:
    (only,) = built.kernels()
    return {"reduce", "tanh", "exponential"} <= only.opcodes and sorted(only.writes) == [
        "f32[1024,512]",
        "f32[1024]",
    ]


def _one_of_triton(built: Built) -> bool:
    (only,) = built.kernels()
    return "reduce" in only.opcodes and "__triton" in only.text and only.reads == only.writes


def _apart(built: Built) -> bool:
    """Of its rows one number is written, which both of its readers read."""
    (largest,) = built.kernels("reduce", writes="f32[1024]")
    (exponential,) = built.kernels("exponential", writes="f32[1024,512]")
    (sort,) = built.kernels("sort")
    return largest.name in exponential.operands and largest.name in sort.operands


def _before_sum(built: Built) -> bool:
    (sum_,) = built.collectives("all-reduce")
    (part,) = built.kernels("reduce", writes="f32[512]")
    (reader,) = built.kernels("subtract", writes="f32[512,1024]")
    return part.name in sum_.operands and end_of(built, sum_).name in reader.operands


def _by_columns(built: Built) -> bool:
    names = [sorted(one.opcodes & {"reduce", "exponential", "divide"}) for one in built.kernels()]
    return names == [["reduce"], ["exponential"], ["reduce"], ["divide"]]


def _renewed_beside(built: Built) -> bool:
    (copied,) = built.kernels("copy", writes="bf16[8,1024,1024]")
    return copied.depth == 0 and built.temporary_bytes >= 8 * 1024 * 1024 * 2


HABITS: tuple[Habit, ...] = (
    habit(
        "siblings-run-as-one",
        "Elementwise kernels of one shape that read the same arrays run as one, which reads each "
        "array once: an optimizer's weight and moments.",
        _TOGETHER,
        _adam,
        (_ROWS,) * 4,
        (X,) * 4,
        (X,) * 3,
        _three_results,
        donated=(0, 1, 2),
    ),
    habit(
        "reductions-join-siblings",
        "A reduction runs in the kernel of an elementwise op that reads the same array.",
        _TOGETHER,
        lambda x: (jnp.tanh(x), jnp.sum(jnp.exp(x), axis=1)),
        (_ROWS,),
        (X,),
        (X, X),
        _joined,
    ),
    habit(
        "softmax-in-one-kernel",
        "A softmax along rows is one kernel of Triton, which reads its operand once.",
        _TRITON,
        lambda x: jax.nn.softmax(x, axis=-1),
        (_ROWS,),
        (X,),
        (X,),
        _one_of_triton,
    ),
    habit(
        "norm-in-one-kernel",
        "A norm along rows, two reductions and what reads them, is one kernel of Triton.",
        _TRITON,
        _norm,
        (_ROWS,),
        (X,),
        (X,),
        _one_of_triton,
    ),
    habit(
        "rows-read-elsewhere-alone",
        "A reduction of rows that something else reads, too, is a kernel of its own.",
        _TRITON,
        _largest_read_twice,
        (_ROWS,),
        (X,),
        (X, X),
        _apart,
    ),
    habit(
        "cut-rows-alone",
        "A reduction of rows that are cut over devices is a kernel of its own, before the sum.",
        _TRITON,
        lambda x: x - jnp.max(x, -1, keepdims=True),
        (f32(512, 8192),),
        (INNER,),
        (INNER,),
        _before_sum,
    ),
    habit(
        "columns-in-several-kernels",
        "A softmax along columns is four kernels, and its exponentials are written.",
        _TRITON,
        lambda x: jax.nn.softmax(x, axis=0),
        (f32(512, 8192),),
        (INNER,),
        (INNER,),
        _by_columns,
    ),
    habit(
        "stacks-beside-what-they-renew",
        "A stack of slices that a loop makes of a donated one, which it reads, lies beside that, "
        "and is copied over it after the loop.",
        "xla/service/copy_insertion.cc",
        renewed,
        (bf16(8, 8192, 1024), bf16(8192, 1024)),
        (INNER, X),
        (INNER, X),
        _renewed_beside,
        donated=(0,),
    ),
)
