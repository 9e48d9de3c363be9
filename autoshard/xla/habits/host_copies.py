"""How compilers move arrays to the memory of the host and back: beside kernels."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from autoshard.xla.habits import gpu_probes, tpu_probes
from autoshard.xla.habits.records import Built, Habit, Kernel

_CLAIM = (
    "A transfer to the host's memory or from it begins once its array is there and runs beside "
    "kernels until that is read, or until its loop's turn ends."
)
_TURNED = (
    "A transfer to the host's memory of what a loop stacks begins a turn late, and one of what a "
    "loop reads from there a turn early."
)
_SOURCE = "xla/hlo/transforms/host_offloader.cc"
_ARGUMENTS = (gpu_probes.bf16(8192, 1024), gpu_probes.bf16(4, 1024, 4096))
_LAID_OUT = (gpu_probes.X, gpu_probes.WHOLE)


def _there_and_back(x: Any, weights: Any) -> Any:
    """Two products a layer, what is between them put into the host's memory, and back."""
    space = jax.memory.Space

    def forward(x: Any, w: Any) -> tuple[Any, Any]:
        h = jnp.tanh(x @ w)
        return h @ w.T, jax.device_put(h, space.Host)

    def backward(dy: Any, turn: Any) -> tuple[Any, None]:
        kept, w = turn
        return (dy @ w * jax.device_put(kept, space.Device)) @ w.T, None

    y, kept = lax.scan(forward, x, weights)
    return lax.scan(backward, y, (kept, weights), reverse=True)[0]


def _beside(built: Built, products: list[Kernel]) -> bool:
    """Both have a begin and an end, and a product runs while an array goes to the host."""
    begins = [
        one
        for one in built.kernels()
        if one.opcode.endswith("-start") and "S(5)" in one.text and one.depth == 1
    ]
    ends = [gpu_probes.end_of(built, one) for one in begins]
    to_host = [
        gpu_probes.between(built, begin, end)
        for begin, end in zip(begins, ends, strict=True)
        if "dynamic-update-slice" in begin.text
    ]
    hidden = all(any(one in products for one in beside) for beside in to_host)
    return len(begins) == 2 and len(to_host) == 1 and hidden


def _on_gpu(built: Built) -> bool:
    return _beside(built, gpu_probes.products(built))


def _on_tpu(built: Built) -> bool:
    return _beside(built, list(tpu_probes.products(built)))


def _in_another_turn(built: Built) -> bool:
    """What is moved beside a loop is one turn's, in each direction: the first's or the last's."""
    begins = [one for one in built.kernels() if one.opcode.endswith("-start")]
    moved = [one for one in begins if "S(5)" in one.text and "slice" in one.opcode]
    inside = [one.opcode for one in moved if one.depth == 1]
    beside = [one.opcode for one in moved if one.depth == 0]
    return sorted(inside) == sorted(beside) == ["dynamic-slice-start", "dynamic-update-slice-start"]


HABITS: tuple[Habit, ...] = (
    gpu_probes.habit(
        "host-copies-beside-kernels",
        _CLAIM,
        _SOURCE,
        _there_and_back,
        _ARGUMENTS,
        _LAID_OUT,
        (gpu_probes.X,),
        _on_gpu,
    ),
    tpu_probes.habit(
        "host-copies-beside-kernels",
        _CLAIM,
        _there_and_back,
        _ARGUMENTS,
        _LAID_OUT,
        (tpu_probes.X,),
        _on_tpu,
        source=_SOURCE,
    ),
    tpu_probes.habit(
        "host-copies-in-another-turn",
        _TURNED,
        _there_and_back,
        _ARGUMENTS,
        _LAID_OUT,
        (tpu_probes.X,),
        _in_another_turn,
    ),
)
