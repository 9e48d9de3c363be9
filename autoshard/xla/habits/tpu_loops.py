"""What XLA:TPU does with stacks that loops read and write in slices."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas

from autoshard.xla.habits.records import Built, Habit
from autoshard.xla.habits.tpu_probes import alone, bf16, f32, products, unprobed, written


def _layers(x: Any, weights: Any) -> Any:
    def layer(x: Any, w: Any) -> tuple[Any, None]:
        return jnp.tanh(x @ w.astype(x.dtype)), None

    return lax.scan(layer, x, weights)[0]


def _sliced_in_product(built: Built) -> bool:
    (product,) = products(built)
    in_place = "dynamic-slice" in product.opcodes and "bf16[6,4096,4096]" in product.reads
    copies = [*built.kernels(writes="bf16[4096,4096]"), *built.kernels(writes="bf16[1,4096,4096]")]
    return in_place and product.depth == 1 and not copies


def _stack_converted(built: Built) -> bool:
    (stack,) = written(built, "bf16[6,4096,4096]")
    (product,) = products(built)
    converted = "convert" in stack.opcodes and stack.depth == 0
    return converted and product.depth == 1 and "bf16[6,4096,4096]" in product.reads


def _stacked(x: Any, w: Any) -> Any:
    def turn(x: Any, number: Any) -> tuple[Any, Any]:
        return jnp.tanh(x), x @ w

    return lax.scan(turn, x, jnp.arange(8))[1]


def renewed(stack: Any, x: Any) -> tuple[Any, Any]:
    """A loop that reads a stack and makes one of the same slices."""

    def turn(x: Any, one: Any) -> tuple[Any, Any]:
        one = lax.dynamic_update_slice(one, jnp.tanh(x)[:1], (0, 0))
        return jnp.tanh(x + one), one

    x, stack = lax.scan(turn, x, stack)
    return stack, x


def _renewed_beside(built: Built) -> bool:
    (copied,) = built.kernels("copy", writes="bf16[8,8192,4096]")
    return copied.depth == 0 and built.temporary_bytes >= 8 * 8192 * 4096 * 2


def _written_in_stack(built: Built) -> bool:
    (product,) = products(built)
    updates = "dynamic-update-slice" in product.opcodes and product.depth == 1
    return updates and "bf16[8,8192,2048]" in product.writes


def in_turns(x: Any, stack: Any) -> Any:
    """A loop whose kernel reads a slice of a stack in each turn."""

    def kernel(given: Any, one: Any, made: Any) -> None:
        made[...] = given[...] + one[...]

    call = pallas.pallas_call(kernel, jax.ShapeDtypeStruct(x.shape, x.dtype))
    return lax.scan(lambda x, one: (call(jnp.tanh(x), one), None), x, stack)[0]


def _written_for_kernel(built: Built) -> bool:
    slices = built.kernels("dynamic-slice", writes="f32[256,512]")
    (call,) = [one for one in built.kernels("custom-call") if one.depth == 1]
    return len(slices) == 1 and slices[0].depth == 1 and slices[0].name in call.operands


HABITS: tuple[Habit, ...] = (
    alone(
        "stacks-beside-what-they-renew",
        "The stack of slices that a loop makes of a donated one, which it reads, lies beside that, "
        "and is copied over it after the loop.",
        renewed,
        (bf16(8, 8192, 4096), bf16(8192, 4096)),
        _renewed_beside,
        donated=(0,),
    ),
    alone(
        "slices-read-in-place",
        "A product reads its slice of a stack where that lies, and no copy of it is written.",
        _layers,
        (bf16(16384, 4096), bf16(6, 4096, 4096)),
        _sliced_in_product,
    ),
    alone(
        "slices-written-for-kernels",
        "A slice of a stack that a kernel of Pallas reads is written first, in each turn.",
        in_turns,
        (f32(256, 512), f32(8, 256, 512)),
        _written_for_kernel,
    ),
    alone(
        "stacks-converted-before-loops",
        "A stack whose slices a loop converts is converted as a whole before the loop.",
        _layers,
        (bf16(16384, 4096), f32(6, 4096, 4096)),
        _stack_converted,
    ),
    alone(
        "products-write-into-stacks",
        "A product whose results a loop stacks writes them into the stack.",
        _stacked,
        (bf16(8192, 1024), bf16(1024, 2048)),
        _written_in_stack,
    ),
    unprobed(
        "loops-run-depth-first",
        "Where collectives are hidden, the kernels of loops start from a depth-first order.",
        "xla/hlo/transforms/simplifiers/hlo_memory_scheduler.cc",
        ("TPU v5e",),
    ),
)
