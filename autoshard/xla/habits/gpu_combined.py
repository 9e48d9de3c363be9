"""Which collectives XLA:GPU runs as one.

Those of one kind over the same devices, none of which needs another, as long as their results take
no more than 30 MiB together.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from autoshard.xla.habits.gpu_probes import INNER, WHOLE, X, bf16, f32, habit
from autoshard.xla.habits.records import Built, Habit

_GATHERS = "xla/hlo/transforms/collectives/all_gather_combiner.cc"
_SUMS = "xla/hlo/transforms/collectives/all_reduce_combiner.cc"
_SCATTERS = "xla/hlo/transforms/collectives/reduce_scatter_combiner.cc"
_ROWS = bf16(8192, 512)
_TWO_SUMS = (bf16(1024, 4096), bf16(4096, 512), bf16(512, 4096), bf16(4096, 384))
_SQUARE = bf16(2560, 2560)
"""Of 12.5 MiB: two of them are combined, and three are not."""


def _two_layers(x: Any, v: Any, w: Any) -> Any:
    return (x @ v) @ w.T


def _three_layers(x: Any, a: Any, b: Any, c: Any) -> Any:
    return ((x @ a) @ b) @ c


def _looped(x: Any, v: Any, w: Any) -> Any:
    def body(x: Any, vw: Any) -> tuple[Any, None]:
        return jnp.tanh(jnp.tanh(x @ vw[0]) @ vw[1]), None

    return lax.scan(body, x, (v, w))[0]


def _summed_in_loop(x: Any, y: Any, a: Any, b: Any) -> tuple[Any, Any]:
    def body(none: Any, ab: Any) -> tuple[Any, tuple[Any, Any]]:
        return none, (jnp.tanh(x.T @ ab[0]), jnp.tanh(y.T @ ab[1]))

    return lax.scan(body, 0.0, (a, b))[1]


def _two_products(a: Any, b: Any, c: Any, d: Any) -> tuple[Any, Any]:
    return a @ b, c @ d


def _three_products(a: Any, b: Any, c: Any, d: Any, e: Any, f: Any) -> tuple[Any, Any, Any]:
    return a @ b, c @ d, e @ f


def _two_types_summed(x: Any, a: Any, b: Any) -> tuple[Any, Any]:
    return x.T @ a, x.astype(jnp.float32).T @ b


def _both(kind: str, *results: str) -> Any:
    def reading(built: Built) -> bool:
        (only,) = built.collectives(kind)
        return sorted(only.writes[len(results) :]) == sorted(results)

    return reading


def _two_and_one(built: Built) -> bool:
    counts = [one.writes.count("bf16[2560,2560]") for one in built.collectives("all-gather")]
    return sorted(counts) == [1, 2]


def _sums_two_and_one(built: Built) -> bool:
    sizes = [one.reads for one in built.collectives("all-reduce")]
    return sorted(sizes) == [("bf16[13107200]",), ("bf16[2560,2560]",)]


def _one_array(built: Built) -> bool:
    (sum_,) = built.collectives("all-reduce")
    (joined,) = built.kernels("concatenate")
    parts = [one for one in built.kernels("slice") if one.position > sum_.position]
    return sum_.reads == ("bf16[720896]",) and joined.name in sum_.operands and len(parts) == 2


def _in_loop(built: Built) -> bool:
    (gather,) = built.collectives("all-gather")
    return gather.depth == 1 and gather.writes[2:] == ("bf16[512,768]", "bf16[768,512]")


def _apart(kind: str, built: Built) -> bool:
    return [len(one.reads) for one in built.collectives(kind)] == [1, 1]


HABITS: tuple[Habit, ...] = (
    habit(
        "gathers-combined",
        "Gathers over the same devices run as one, though the second is read later.",
        _GATHERS,
        _two_layers,
        (_ROWS, bf16(512, 1024), bf16(512, 1024)),
        (X, X, X),
        (X,),
        _both("all-gather", "bf16[512,1024]", "bf16[512,1024]"),
    ),
    habit(
        "gathers-combined-in-loops",
        "Gathers of what a loop slices run as one in each iteration.",
        _GATHERS,
        _looped,
        (_ROWS, bf16(4, 512, 768), bf16(4, 768, 512)),
        (X, INNER, INNER),
        (X,),
        _in_loop,
    ),
    habit(
        "gathers-combined-to-30-mib",
        "Gathers run as one while their results take at most 30 MiB: of three of 12.5 MiB, two.",
        f"{_GATHERS}, xla_gpu_all_gather_combine_threshold_bytes",
        _three_layers,
        (bf16(8192, 2560), _SQUARE, _SQUARE, _SQUARE),
        (X,) * 4,
        (X,),
        _two_and_one,
    ),
    habit(
        "gathers-over-axes-apart",
        "Gathers over different devices do not run as one.",
        _GATHERS,
        lambda x, v, w: (x @ v, x @ w),
        (bf16(8192, 512), bf16(512, 1024), bf16(512, 640)),
        (WHOLE, ("a",), ("b",)),
        (WHOLE, WHOLE),
        lambda built: _apart("all-gather", built),
        mesh=(("a", 4), ("b", 2)),
    ),
    habit(
        "sums-combined",
        "All-reduces of one type over the same devices run as one, of one array into which a "
        "kernel writes all operands, and from which others take the results.",
        "xla/hlo/transforms/collectives/all_reduce_contiguous.cc",
        _two_products,
        _TWO_SUMS,
        (INNER, X) * 2,
        (WHOLE, WHOLE),
        _one_array,
    ),
    habit(
        "sums-combined-in-loops",
        "All-reduces of one iteration of a loop run as one.",
        "xla/hlo/transforms/collectives/all_reduce_contiguous.cc",
        _summed_in_loop,
        (_ROWS, bf16(8192, 384), bf16(4, 8192, 256), bf16(4, 8192, 128)),
        (X, X, INNER, INNER),
        (WHOLE, WHOLE),
        lambda built: (
            [(one.depth, one.reads) for one in built.collectives("all-reduce")]
            == [(1, ("bf16[180224]",))]
        ),
    ),
    habit(
        "sums-combined-to-30-mib",
        "All-reduces run as one while their results take at most 30 MiB: of three of 12.5 MiB, "
        "two.",
        f"{_SUMS}, xla_gpu_all_reduce_combine_threshold_bytes",
        _three_products,
        (bf16(2560, 4096), bf16(4096, 2560)) * 3,
        (INNER, X) * 3,
        (WHOLE,) * 3,
        _sums_two_and_one,
    ),
    habit(
        "sums-of-types-apart",
        "All-reduces of different types do not run as one.",
        _SUMS,
        _two_types_summed,
        (_ROWS, bf16(8192, 256), f32(8192, 384)),
        (X, X, X),
        (WHOLE, WHOLE),
        lambda built: _apart("all-reduce", built),
    ),
    habit(
        "scatters-combined",
        "Reduce-scatters of one type over the same devices run as one.",
        _SCATTERS,
        _two_products,
        _TWO_SUMS,
        (INNER, X) * 2,
        (X, X),
        _both("reduce-scatter", "bf16[128,512]", "bf16[64,384]"),
    ),
)
