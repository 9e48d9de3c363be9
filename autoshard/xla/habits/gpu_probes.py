"""What probes of XLA:GPU have in common: a host of eight H100s, and how kernels are told apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from autoshard.xla.habits.records import Built, Habit, Kernel, Probe, seen

PROBED = {
    "0.10.2": "jax-cuda12-plugin 0.10.2",
    "0.11.2": "jax-cuda12-plugin 0.11.2",
    "0.12.0.1": "jax-cuda13-plugin 0.12.0.1",
}
"""Compilers that were asked, by the release of jaxlib that they belong to."""
X = ("x",)
"""The first dimension over all devices."""
INNER = (None, "x")
"""The second one."""
WHOLE = ()
"""Replicated."""

Specs = tuple[tuple[Any, ...], ...]
Step = Callable[..., Any]


def bf16(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def indices(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def habit(
    name: str,
    claim: str,
    source: str,
    step: Step,
    arguments: Sequence[Any],
    inputs: Specs,
    outputs: Specs,
    reading: Callable[[Built], bool],
    *,
    donated: tuple[int, ...] = (),
    machine: str = "h100-8",
    mesh: tuple[tuple[str, int], ...] = (("x", 8),),
    chips: tuple[str, ...] = (),
    flags: str = "default",
) -> Habit:
    """A habit of XLA:GPU with its probe, by default on one host."""
    probe = Probe(
        build=lambda: (step, tuple(arguments)),
        machine=machine,
        mesh=dict(mesh),
        inputs=inputs,
        outputs=outputs,
        reading=reading,
        donated=donated,
        flags=flags,
    )
    name = f"gpu.{name}"
    return Habit(name, "xla:gpu", claim, source, seen(name, PROBED), probe, chips)


def unprobed(name: str, claim: str, source: str) -> Habit:
    """A habit of XLA:GPU that nobody knows how to ask for."""
    return Habit(f"gpu.{name}", "xla:gpu", claim, source)


def products(built: Built) -> list[Kernel]:
    """Calls of the library of products, in order."""
    return [one for one in built.kernels("custom-call") if "__cublas" in one.text]


def calls(built: Built, target: str) -> list[Kernel]:
    """Calls of a library's function whose name begins so, in order."""
    return [one for one in built.kernels("custom-call") if f'target="{target}' in one.text]


def is_tiled(kernel: Kernel) -> bool:
    """Whether a fusion has an emitter of its own (transposing, reducing), rather than a loop."""
    return "kind=kInput" in kernel.text


def end_of(built: Built, begin: Kernel) -> Kernel:
    """The end of an asynchronous collective."""
    (end,) = (
        one
        for one in built.kernels()
        if one.opcode.endswith("-done") and one.operands[:1] == (begin.name,)
    )
    return end


def between(built: Built, first: Kernel, last: Kernel) -> list[Kernel]:
    """What runs after one kernel and before another."""
    return [one for one in built.kernels() if first.position < one.position < last.position]
