"""What XLA:GPU writes to memory, and what it computes anew in every kernel that reads it.

Its fusion is led by costs: an elementwise result is computed again in each reader while that moves
less than writing and reading it. Sorting keeps kernels apart in these programs: nothing is fused
into it, and what is read after it cannot run with what is read before.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from autoshard.xla.habits.gpu_probes import INNER, WHOLE, X, f32, habit, indices
from autoshard.xla.habits.records import Built, Habit

_PRIORITY = "xla/service/gpu/transforms/priority_fusion.cc"
_ROWS = f32(8192, 512)


def _twice(made: Any, other: Any, third: Any) -> Any:
    """Something read by two kernels of which the second waits for the first."""
    return jnp.sort(made + jnp.sort(made * other, axis=1) * third, axis=1)


def _chain(x: Any) -> Any:
    return jnp.tanh(x * 2 + 1) * x


def _cheap(x: Any, y: Any, z: Any) -> Any:
    return _twice(jnp.maximum(x, 0) * 2, y, z)


def _dear(*x: Any) -> Any:
    made = sum(a * b for a, b in zip(x[::2], x[1::2], strict=True))
    return _twice(made, x[0], x[1])


def _long(x: Any, y: Any, z: Any, w: Any) -> tuple[Any, Any]:
    return _twice(lax.erfc(x), y, z), _twice(jnp.tanh(w), y, z)


def _barrier(x: Any, y: Any) -> tuple[Any, Any]:
    return lax.optimization_barrier(jnp.tanh(x)) * x, jnp.exp(y) * y


def _sorted(x: Any) -> Any:
    return jnp.sort(jnp.sin(jnp.sort(jnp.tanh(x), axis=1)), axis=1)


def _in_one_kernel(built: Built) -> bool:
    (only,) = built.kernels()
    return {"tanh", "add", "multiply"} <= only.opcodes and only.reads == ("f32[1024,512]",)


def _made_anew(built: Built) -> bool:
    first, second = built.kernels("maximum")
    return "add" in second.opcodes and len(first.writes) == len(second.writes) == 1


def _written_once(built: Built) -> bool:
    """Eight arrays are read by the kernel that writes their sum beside what is sorted."""
    first, second = built.kernels("multiply")
    return len(first.reads) == 8 and len(first.writes) == 2 and first.name in second.operands


def _only_long_written(built: Built) -> bool:
    (long,) = built.kernels("exponential")
    return len(built.kernels("tanh")) == 2 and any(
        long.name in one.operands for one in built.kernels("add") if one is not long
    )


def _apart(built: Built) -> bool:
    (tanh,), (exponential,) = built.kernels("tanh"), built.kernels("exponential")
    return "multiply" not in tanh.opcodes and "multiply" in exponential.opcodes


def _sorts_alone(built: Built) -> bool:
    (before,), (after,) = built.kernels("tanh"), built.kernels("sine")
    sorts = built.kernels("sort")
    return len(sorts) == 2 and before not in sorts and after not in sorts


def _in_reduction(built: Built) -> bool:
    (only,) = built.kernels()
    return {"tanh", "reduce"} <= only.opcodes


HABITS: tuple[Habit, ...] = (
    habit(
        "elementwise-chain",
        "A chain of elementwise ops is one kernel.",
        _PRIORITY,
        _chain,
        (_ROWS,),
        (X,),
        (X,),
        _in_one_kernel,
    ),
    habit(
        "cheap-computed-anew",
        "An elementwise result that is made of one array is not written for two readers: each "
        "computes it.",
        _PRIORITY,
        _cheap,
        (_ROWS,) * 3,
        (X,) * 3,
        (X,),
        _made_anew,
    ),
    habit(
        "dear-written",
        "An elementwise result that is made of many arrays is written where two kernels read it.",
        _PRIORITY,
        _dear,
        (_ROWS,) * 8,
        (X,) * 8,
        (X,),
        _written_once,
    ),
    habit(
        "long-functions-written",
        "A function of dozens of instructions (erfc) is computed once and written for several "
        "readers; a short one (tanh) is computed in each.",
        _PRIORITY,
        _long,
        (_ROWS,) * 4,
        (X,) * 4,
        (X, X),
        _only_long_written,
    ),
    habit(
        "nothing-over-barriers",
        "Nothing is fused across an optimization_barrier.",
        "xla/hlo/transforms/expanders/optimization_barrier_expander.cc",
        _barrier,
        (_ROWS, _ROWS),
        (X, X),
        (X, X),
        _apart,
    ),
    habit(
        "algorithms-alone",
        "A sort computes nothing of what it reads, and nothing computes a sort anew.",
        "xla/service/gpu/gpu_fusible.cc",
        _sorted,
        (_ROWS,),
        (X,),
        (X,),
        _sorts_alone,
    ),
    habit(
        "rows-compute-operands",
        "A reduction along rows computes the elementwise op that it reads.",
        "xla/service/gpu/gpu_fusible.cc",
        lambda x: jnp.sum(jnp.tanh(x), axis=1),
        (_ROWS,),
        (X,),
        (X,),
        _in_reduction,
    ),
    habit(
        "scatters-compute-updates",
        "A scatter computes the elementwise op that makes what it adds.",
        _PRIORITY,
        lambda table, rows, x: table.at[rows].add(jnp.tanh(x) * 3),
        (f32(4096, 512), indices(1024), f32(1024, 512)),
        (INNER, WHOLE, INNER),
        (INNER,),
        lambda built: [one.opcodes >= {"scatter", "tanh"} for one in built.kernels()] == [True],
        donated=(0,),
    ),
)
