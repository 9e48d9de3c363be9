"""Reductions of gradients that compilers combine: they share one latency."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from autoshard.cost.step import step_prices
from autoshard.dataflow import analyse
from autoshard.network import Switch
from autoshard.program import Program, trace
from tests.helpers import toy_machine

WEIGHT = jax.ShapeDtypeStruct((8, 8), jnp.float32)
BATCH = jax.ShapeDtypeStruct((16, 8), jnp.float32)
LATENCY = 1e-3


def gradients(loss: Any) -> Program:
    """Of three weights, with respect to all of them."""
    return trace(lambda weights, x: jax.grad(loss)(weights, x), [WEIGHT] * 3, BATCH)


def unrolled(weights: Any, x: Any) -> Any:
    for weight in weights:
        x = jnp.tanh(x @ weight)
    return jnp.sum(x)


def scanned(weights: Any, x: Any) -> Any:
    return jnp.sum(jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, jnp.stack(weights))[0])


def of_gradients(program: Program) -> list[int]:
    """The products that make them: nothing in the step waits for what they write."""
    flow = analyse(program)
    products = [op for op in program.ops if op.primitive == "dot_general"]
    return [op.index for op in products if not any(flow.awaited[o] for o in op.outputs)]


def test_gradients_outside_of_loops_are_reduced_together() -> None:
    program = gradients(unrolled)
    flow, ops = analyse(program), of_gradients(program)
    assert len(ops) == 3
    assert {flow.companions[op] for op in ops} == {3}
    waited = [op.index for op in program.ops if op.primitive == "dot_general"][:3]
    assert {flow.companions[op] for op in waited} == {1}


def test_in_a_loop_each_is_alone() -> None:
    program = gradients(scanned)
    ops = of_gradients(program)
    assert ops
    assert {analyse(program).companions[op] for op in ops} == {1}


def test_they_share_the_latency_and_not_the_bytes() -> None:
    program = gradients(unrolled)
    network = (Switch(4, chip_bandwidth=1e9, latency_seconds=LATENCY, efficiency=1.0),)
    machine = replace(toy_machine(4), network=network)
    prices = step_prices(program, analyse(program), machine, (4,))
    op = program.ops[of_gradients(program)[0]]
    stored = np.array([[-1]])
    small, large = (
        float(prices.settled_seconds(op, "all_reduce", (0,), np.array([size]), stored)[0])
        for size in (0.0, 1e9)
    )
    whole = prices.topology.collective_seconds("all_reduce", (0,), 0.0)
    assert np.isclose(small, whole / 3)
    assert np.isclose(large - small, 2 * 3 / 4)
