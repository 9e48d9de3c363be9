"""Ops that are none to a compiler cost nothing, but where they end what is fused into them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from autoshard.machine.load import load
from autoshard.plan.evaluate import compute_seconds
from tests.helpers import best_plan, case

SIZE = 4096
ONE = {"x": 1}
ARRAYS = tuple(jax.ShapeDtypeStruct((SIZE, SIZE), jnp.bfloat16) for _ in range(4))


def constrained(x: Any) -> Any:
    mesh = jax.sharding.AbstractMesh((1,), ("x",))
    return lax.with_sharding_constraint(x, jax.NamedSharding(mesh, jax.P(None, None)))


def halved(x: Any) -> Any:
    return x.reshape(SIZE, 2, SIZE // 2)


def step(between: Callable[[Any], Any], a: Any, b: Any, left: Any, right: Any) -> Any:
    """Two products read what one elementwise kernel makes."""
    made = between(jnp.tanh(a) * b)
    made = made.reshape(SIZE, SIZE)
    return made @ left, made @ right


def seconds(between: Callable[[Any], Any], machine: str) -> float:
    given = case(lambda *arrays: step(between, *arrays), *ARRAYS, mesh=ONE, machine=load(machine))
    plan = best_plan(given)
    return sum(one for _, _, one in compute_seconds(given.built.prices, plan.decisions))


@pytest.mark.parametrize("machine", ["v5e-1", "h100-1"])
@pytest.mark.parametrize("between", [constrained, halved, lambda x: halved(constrained(x))])
def test_a_kernel_that_ends_in_nothing_costs_what_it_writes(between: Any, machine: str) -> None:
    """But for the FLOP of the elementwise ops, which do not overlap with what another op writes."""
    assert seconds(between, machine) == pytest.approx(seconds(lambda x: x, machine), rel=0.01)
