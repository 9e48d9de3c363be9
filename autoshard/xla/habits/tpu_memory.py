"""What XLA:TPU keeps in its vector memory, and what it writes over."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from autoshard.xla.habits.records import Built, Habit
from autoshard.xla.habits.tpu_probes import (
    MIB,
    WHOLE,
    X,
    alone,
    bf16,
    habit,
    in_vector_memory,
    products,
    unprobed,
    written,
)


def _read_twice(x: Any, w: Any) -> Any:
    made = lax.optimization_barrier(x @ w)
    return jnp.max(made + jnp.sum(made, 0), 0)


def _stays(built: Built) -> bool:
    (made,) = written(built, "bf16[8192,3072]")
    return in_vector_memory(made) and built.temporary_bytes < MIB


def _does_not_fit(built: Built) -> bool:
    (made,) = written(built, "bf16[32768,8192]")
    return not in_vector_memory(made) and built.temporary_bytes >= 512 * MIB


def _moved_out(built: Built) -> bool:
    (made,) = written(built, "bf16[8192,3072]")
    return not in_vector_memory(made)


def _two_products(a: Any, b: Any, u: Any, v: Any) -> Any:
    return a @ u + b @ v


def _fetched_ahead(built: Built) -> bool:
    first, second = products(built)
    started = [one for one in built.kernels("copy-start") if "bf16[4096,1536]" in one.writes]
    (start,) = started
    (done,) = [one for one in built.kernels("copy-done") if start.name in one.operands]
    return start.position < first.position < done.position < second.position and (
        in_vector_memory(done)
    )


def _summed(x: Any) -> Any:
    total = lax.optimization_barrier(jnp.sum(x * 2 + 1, 0))
    return jnp.max(total + jnp.max(total, 0), 0)


def _summed_in_place(built: Built) -> bool:
    made, total = written(built, "bf16[32768,4096]")
    in_place = 256 * MIB <= built.temporary_bytes < 400 * MIB
    return total.opcode == "all-reduce" and made.name in total.operands and in_place


def _cached(cache: Any, x: Any, w: Any) -> tuple[Any, Any]:
    def turn(state: Any, number: Any) -> tuple[Any, None]:
        cache, x = state
        x = x @ w
        cache = lax.dynamic_update_slice(cache, x[None], (number, 0, 0))
        return (cache, x + jnp.max(cache[number], 0)), None

    return lax.scan(turn, (cache, x), jnp.arange(16))[0]


def _updated_in_place(built: Built) -> bool:
    (update,) = written(built, "bf16[16,8192,1024]")
    small = built.temporary_bytes < 64 * MIB
    return "dynamic-update-slice" in update.opcodes and update.depth == 1 and small


def _kept(x: Any, weights: Any) -> Any:
    """Keeps the results of ten products until the last of them is there."""
    made = []
    for weight in weights:
        x = jnp.tanh(x @ weight)
        made.append(x)
    for weight, value in zip(weights[::-1], made[::-1], strict=True):
        x = jnp.tanh(x @ weight.T) * value
    return x


def _computes_again(built: Built) -> bool:
    return any(".remat" in kernel.name for kernel in built.kernels())


def _keeps_all(built: Built) -> bool:
    return not _computes_again(built)


_LIMIT = "observed; the flag xla_jf_rematerialization_percent_shared_memory_limit is 95 by default"

HABITS: tuple[Habit, ...] = (
    alone(
        "short-lived-in-vector-memory",
        "An array of 48 MiB that is read at once lies in the vector memory of 128 MiB alone.",
        _read_twice,
        (bf16(8192, 1024), bf16(1024, 3072)),
        _stays,
    ),
    alone(
        "large-arrays-in-main-memory",
        "An array that is larger than the vector memory lies in the main memory.",
        _read_twice,
        (bf16(32768, 1024), bf16(1024, 8192)),
        _does_not_fit,
    ),
    alone(
        "vector-memory-of-v4-is-smaller",
        "On v4, whose vector memory has 32 MiB, an array of 48 MiB lies in the main memory.",
        _read_twice,
        (bf16(8192, 1024), bf16(1024, 3072)),
        _moved_out,
        machine="v4-1",
        chips=("TPU v4",),
    ),
    alone(
        "operands-fetched-ahead",
        "Operands are copied into the vector memory while the product before them runs.",
        _two_products,
        (bf16(4096, 1024), bf16(4096, 1536), bf16(1024, 2048), bf16(1536, 2048)),
        _fetched_ahead,
    ),
    habit(
        "sums-in-place",
        "An all-reduce writes over what it adds up.",
        _summed,
        (bf16(8, 32768, 4096),),
        (X,),
        (WHOLE,),
        _summed_in_place,
    ),
    alone(
        "updates-in-place",
        "A donated cache that a loop updates is never copied.",
        _cached,
        (bf16(16, 8192, 1024), bf16(8192, 1024), bf16(1024, 1024)),
        _updated_in_place,
        results=2,
        donated=(0,),
    ),
    alone(
        "keeps-below-its-limit",
        "What takes 14.7 GiB, 93 % of what v5e allocates, is kept.",
        _kept,
        (bf16(2568960, 256), (bf16(256, 256),) * 10),
        _keeps_all,
        donated=(0,),
        source=_LIMIT,
    ),
    alone(
        "computes-again-above-it",
        "Of what takes 15.2 GiB, more than 95 % of what v5e allocates, a part is computed again.",
        _kept,
        (bf16(2656256, 256), (bf16(256, 256),) * 10),
        _computes_again,
        donated=(0,),
        source=_LIMIT,
    ),
    unprobed(
        "half-of-vector-memory-stays",
        "About half of the vector memory holds arrays that live long enough to be read again.",
    ),
)
