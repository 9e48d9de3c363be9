"""Fourier transforms ask XLA:CPU, and no other compiler, for an order that it can compute."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from autoshard import compat
from autoshard.lower.spmd import lower
from autoshard.lower.verify import numeric_differences, verify_collectives
from tests.helpers import case, concrete_like, random_plan
from tests.program.steps import f

ARGS = f(16, 16), f(16, 8)


def filtered(x: Any, w: Any) -> Any:
    return jnp.real(jnp.fft.fft2(jnp.sin(x))).T @ w


@pytest.mark.parametrize("explicit", [False, True])
def test_the_order_is_asked_for_on_cpu_alone(explicit: bool) -> None:
    plan = random_plan(case(filtered, *ARGS, mesh={"x": 8}), 0)
    lowered = lower(plan, filtered, *ARGS, explicit=explicit)
    assert lowered.mlir_text(platform="cpu").count("@LayoutConstraint") == 2
    assert "@LayoutConstraint" not in lowered.mlir_text(platform="tpu")
    assert numeric_differences(lowered, filtered, concrete_like(ARGS)) == []
    assert explicit or verify_collectives(lowered).agrees


def test_what_asks_for_an_order_is_differentiated_and_mapped() -> None:
    array = jnp.arange(24.0).reshape(2, 3, 4)
    ordered = jax.vmap(lambda x: compat.in_default_order(x) ** 2)
    assert (ordered(array) == array**2).all()
    assert (jax.grad(lambda x: ordered(x).sum())(array) == 2 * array).all()
