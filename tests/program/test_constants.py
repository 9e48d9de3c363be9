"""Values that depend on constants alone, the bytes of constants, and arrays that are not needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from autoshard.program.trace import trace
from tests.program.steps import f, of_kind

TABLE = np.arange(32, dtype=np.float32).reshape(8, 4)
OTHER = np.ones((4, 4), np.float32)


@pytest.mark.parametrize(
    ("fn", "primitive", "free"),
    [
        (lambda x: x * jnp.sin(jnp.arange(8.0)), "sin", True),
        (lambda x: x * jnp.sin(TABLE[:, 0]), "sin", True),
        (lambda x: x + (jnp.ones(8) - x), "sub", False),
        (lambda x: x * jnp.cos(jnp.exp(jnp.arange(8.0))), "cos", True),
        (lambda x: x + jnp.cumsum(jnp.arange(8.0)), "cumsum", False),
        (lambda x: x + jax.random.bits(jax.random.key(0), (8,)), "random_bits", False),
        (lambda x: x + jnp.sin(jax.random.uniform(jax.random.key(0), (8,))), "sin", False),
        (
            lambda x: lax.scan(lambda h, _: (h * jnp.sin(TABLE[:, 0]), None), x, length=3)[0],
            "sin",
            True,
        ),
        (
            lambda x: lax.scan(lambda h, _: (jnp.sin(h), None), jnp.ones(8), length=3)[0] + x,
            "sin",
            False,
        ),
    ],
)
def test_what_depends_on_constants_alone_is_free(
    fn: Callable[..., Any], primitive: str, free: bool
) -> None:
    program = trace(fn, f(8))
    found = {program.values[o].free for op in of_kind(program, primitive) for o in op.outputs}
    assert found == {free}
    assert not any(program.values[v].free for v in (*program.inputs, *program.outputs))


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (lambda x: x @ TABLE, 128),
        (lambda x: (x @ TABLE, jnp.sin(x) @ TABLE), 128),
        (lambda x: jax.jit(lambda y: y @ TABLE)(x) + jax.jit(lambda y: y @ TABLE)(x * 2), 128),
        (lambda x: (x @ TABLE) @ OTHER, 192),
        (lambda x: lax.scan(lambda h, _: (h, h @ TABLE), x, length=5), 128),
        (lambda x: x * 2.0 + jnp.ones(8), 0),
        (lambda x: (x @ TABLE, x * 2.0)[1], 0),
    ],
)
def test_the_bytes_of_a_constant_are_counted_once(fn: Callable[..., Any], expected: int) -> None:
    assert trace(fn, f(2, 8)).constant_bytes == expected


def test_no_array_is_needed() -> None:
    huge = f(2**20, 2**20)
    program = trace(lambda x, y: x @ y, huge, huge)
    assert program.ops[0].flops == 2.0**61
    concrete = trace(lambda x, y: x @ y, np.ones((2, 3), np.float32), jnp.ones((3, 4)))
    assert concrete.fingerprint == trace(lambda x, y: x @ y, f(2, 3), f(3, 4)).fingerprint
