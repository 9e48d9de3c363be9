"""Long chains and deep nests are planned: nothing recurses along the program."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from autoshard.cli.main import DEEPEST_CALLS
from autoshard.program.trace import TraceError, trace
from autoshard.search.search import search

LENGTH = 1200
"""More than Python's limit of calls within each other."""
DEPTH = 100
X = jax.ShapeDtypeStruct((16, 16), jnp.float32)


def transcendental(x: Any, w: Any) -> Any:
    for _ in range(LENGTH):
        x = jnp.tanh(x)
    return x @ w


def read_twice(x: Any, w: Any) -> Any:
    for _ in range(LENGTH):
        x = x + 0.5 * x
    return x @ w


def moved(x: Any, w: Any) -> Any:
    for number in range(LENGTH):
        w = w.T if number % 2 else jnp.flip(w)
    return x @ w.astype(jnp.bfloat16).astype(jnp.float32)


def nested(x: Any, w: Any) -> Any:
    def body(depth: int, carry: Any) -> Any:
        if not depth:
            return jnp.sin(carry)
        return jax.lax.fori_loop(0, 2, lambda _, inner: body(depth - 1, inner), carry)

    return body(DEPTH, x) @ w


@pytest.fixture
def deep_calls() -> Iterator[None]:
    """Let JAX trace deep nests."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(DEEPEST_CALLS)
    yield
    sys.setrecursionlimit(limit)


@pytest.mark.usefixtures("deep_calls")
@pytest.mark.parametrize("machine", ["v5e-8", "h100-8"])
@pytest.mark.parametrize("fn", [transcendental, read_twice, moved, nested])
def test_it_is_planned(fn: Callable[..., Any], machine: str) -> None:
    plan = search(trace(fn, X, X), machine, mesh={"x": 2, "y": 4}, baselines=False, gap=0.05)
    assert plan.estimate.step_seconds > 0


@pytest.mark.parametrize("machine", ["v5e-8", "h100-8"])
def test_a_long_backward_pass_is_planned(machine: str) -> None:
    def loss(x: Any, w: Any) -> Any:
        for _ in range(LENGTH // 3):
            x = jnp.tanh(x * 1.01) + w
        return x.sum()

    program = trace(jax.value_and_grad(loss), X, X)
    plan = search(program, machine, mesh={"x": 2, "y": 4}, baselines=False, gap=0.05)
    assert plan.estimate.step_seconds > 0


def test_a_nest_that_python_cannot_follow_is_refused_with_the_repair() -> None:
    other = jax.ShapeDtypeStruct((8, 8), jnp.float32)  # JAX keeps what it has traced
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(600)
    try:
        with pytest.raises(
            TraceError, match=r"test_long_programs.py:\d+: it nests deeper"
        ) as caught:
            trace(nested, other, other)
    finally:
        sys.setrecursionlimit(limit)
    assert "sys.setrecursionlimit(6000)" in str(caught.value)
