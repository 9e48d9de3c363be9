"""What probes of XLA:TPU have in common: slices of a few chips, and how kernels are told apart.

A product is a ``convolution`` in XLA:TPU's modules, and a reduce-scatter a fusion of an all-reduce
and the slice of it. ``S(1)`` in a layout says that an array lies in the vector memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from autoshard.xla.habits.records import Built, Habit, Kernel, Probe, seen

PROBED = {
    "0.10.2": "libtpu 0.0.42.1",
    "0.11.2": "libtpu 0.0.48.1",
    "0.12.0.1": "libtpu 0.0.50.1",
}
"""Compilers that were asked, by the release of jaxlib that they belong to."""
X = ("x",)
"""The first dimension over all devices."""
INNER = (None, "x")
"""The second one."""
WHOLE = ()
"""Replicated."""
MIB = 2**20

Specs = tuple[tuple[Any, ...], ...]
Step = Callable[..., Any]
Reads = Callable[[Built], bool]


def bf16(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def indices(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def pinned(x: Any, *spec: Any) -> Any:
    """A value in a layout, as a plan says it; replicated by default."""
    return lax.with_sharding_constraint(x, PartitionSpec(*spec))


def habit(
    name: str,
    claim: str,
    step: Step,
    arguments: Sequence[Any],
    inputs: Specs,
    outputs: Specs,
    reading: Reads,
    *,
    source: str = "observed",
    machine: str = "v5e-8",
    mesh: tuple[tuple[str, int], ...] = (("x", 8),),
    chips: tuple[str, ...] = (),
    flags: str = "default",
) -> Habit:
    """A habit of XLA:TPU with its probe, by default on eight v5e."""
    probe = Probe(
        build=lambda: (step, tuple(arguments)),
        machine=machine,
        mesh=dict(mesh),
        inputs=inputs,
        outputs=outputs,
        reading=reading,
        flags=flags,
    )
    name = f"tpu.{name}"
    return Habit(name, "xla:tpu", claim, source, seen(name, PROBED), probe, chips)


def alone(
    name: str,
    claim: str,
    step: Step,
    arguments: Sequence[Any],
    reading: Reads,
    *,
    results: int = 1,
    donated: tuple[int, ...] = (),
    source: str = "observed",
    machine: str = "v5e-1",
    chips: tuple[str, ...] = (),
) -> Habit:
    """A habit with a probe on one chip, where nothing is communicated."""
    probe = Probe(
        build=lambda: (step, tuple(arguments)),
        machine=machine,
        mesh={"x": 1},
        inputs=(WHOLE,) * len(arguments),
        outputs=(WHOLE,) * results,
        reading=reading,
        donated=donated,
    )
    name = f"tpu.{name}"
    return Habit(name, "xla:tpu", claim, source, seen(name, PROBED), probe, chips)


def unprobed(name: str, claim: str, source: str = "observed", chips: tuple[str, ...] = ()) -> Habit:
    """A habit of XLA:TPU that nobody knows how to ask for with a small program."""
    return Habit(f"tpu.{name}", "xla:tpu", claim, source, chips=chips)


def products(built: Built) -> Sequence[Kernel]:
    """Kernels with a product in them, in order."""
    return built.kernels("convolution")


def written(built: Built, type_: str) -> list[Kernel]:
    """Kernels that compute arrays of a type; what only moves them between memories is left out."""
    moves = ("copy-start", "copy-done", "slice-start", "slice-done", "custom-call")
    return [one for one in built.kernels(writes=type_) if one.opcode not in moves]


def layout_of(kernel: Kernel) -> str:
    """The text of a kernel's results, with their layouts."""
    return kernel.text.partition(f" {kernel.opcode}(")[0]


def cycles(kernel: Kernel) -> int:
    """The compiler's estimate of what a kernel takes, which it writes with it."""
    return int(kernel.text.partition('"estimated_cycles":"')[2].partition('"')[0])


def in_vector_memory(kernel: Kernel) -> bool:
    """Whether some result of a kernel lies in the vector memory."""
    return "S(1)" in layout_of(kernel)


def is_scatter(kernel: Kernel) -> bool:
    """Whether a kernel is a reduce-scatter, as XLA:TPU writes it."""
    return kernel.opcodes >= {"fusion", "all-reduce", "dynamic-slice"}
