"""What XLA:GPU reckons kernels to take: its own timeline, by which it hides collectives.

It writes times of computations with a collective alone, so that every program here has one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from autoshard.machine.load import load
from autoshard.program.flops import TRANSCENDENTAL
from autoshard.xla.habits.gpu_probes import WHOLE, X, f32, habit
from autoshard.xla.habits.records import Built, Habit

_COUNT = 16
"""Functions in a row, so that arithmetic takes longer than memory."""
_ROWS = 8192
_PROFILES = "xla/service/gpu/model/hlo_op_profiles.cc"
_MODEL = "xla/service/gpu/model/gpu_performance_model.cc"
_NAMES = {"exp": "exponential", "tanh": "tanh", "sin": "sine", "log": "log"}


def _repeated(function: Callable[[Any], Any], x: Any) -> Any:
    for _ in range(_COUNT):
        x = function(x)
    return x


def _functions(a: Any, b: Any, c: Any, d: Any, e: Any) -> tuple[Any, ...]:
    made = zip((jnp.exp, jnp.tanh, jnp.sin, jnp.log), (a, b, c, d), strict=True)
    return *(_repeated(function, x) for function, x in made), jnp.sum(e)


def _seconds(built: Built, name: str) -> float:
    """Seconds of a function of one element."""
    (kernel,) = built.kernels(_NAMES[name])
    columns = int(kernel.writes[0].strip("]").split(",")[1])
    return built.seconds_of(kernel) / (_ROWS * columns * _COUNT)


def _multiples(built: Built) -> bool:
    one = _seconds(built, "exp")
    return all(
        math.isclose(_seconds(built, name), TRANSCENDENTAL[name] * one, rel_tol=0.1)
        for name in _NAMES
    )


def _exponential(built: Built) -> bool:
    chip = load("h100-8").chip
    told = chip.exponential_flops / chip.vector_flops
    return math.isclose(_seconds(built, "exp"), told, rel_tol=0.1)


def _at_full_bandwidth(built: Built) -> bool:
    """A kernel that reads and writes 128 MiB, of a memory of 3.35 TB/s."""
    (kernel,) = built.kernels("multiply", writes="f32[8192,4096]")
    seconds = 2 * (128 << 20) / load("h100-8").chip.memory_bandwidth
    return math.isclose(built.seconds_of(kernel), seconds, rel_tol=0.05)


HABITS: tuple[Habit, ...] = (
    habit(
        "functions-are-multiples",
        "Elementwise functions are reckoned as fixed multiples of an exponential.",
        _PROFILES,
        _functions,
        (*(f32(8 * _ROWS, columns) for columns in (512, 640, 384, 256)), f32(1024)),
        (X,) * 5,
        (X, X, X, X, WHOLE),
        _multiples,
    ),
    habit(
        "exponentials-of-hopper",
        "An exponential is reckoned to take as long as 84 FLOP.",
        _PROFILES,
        _functions,
        (*(f32(8 * _ROWS, columns) for columns in (512, 640, 384, 256)), f32(1024)),
        (X,) * 5,
        (X, X, X, X, WHOLE),
        _exponential,
        chips=("H100 SXM", "H200 SXM"),
    ),
    habit(
        "kernels-at-full-bandwidth",
        "A kernel is reckoned to move its bytes at the memory's full bandwidth, without a launch.",
        _MODEL,
        lambda x, y: (x * 2, jnp.sum(y)),
        (f32(8 * _ROWS, 4096), f32(1024)),
        (X, X),
        (X, WHOLE),
        _at_full_bandwidth,
    ),
)
