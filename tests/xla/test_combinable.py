"""Collectives that compilers combine: they share one latency, as far as there is room."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from autoshard.cost.collective import MeshTopology
from autoshard.cost.combined import GPU_BYTES, latency_share
from autoshard.cost.reshard import ReshardCache
from autoshard.cost.step_prices import step_prices
from autoshard.machine.compiler import LAWS
from autoshard.machine.machine import Machine
from autoshard.machine.network import Switch
from autoshard.program.trace import Program, trace
from autoshard.xla import analyse
from tests.helpers import toy_machine, with_compiler

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


def gpus() -> Machine:
    """Four on a switch, of which a collective takes a millisecond at least."""
    network = (Switch(4, chip_bandwidth=1e9, latency_seconds=LATENCY, efficiency=1.0),)
    machine = replace(toy_machine(4), network=network)
    return with_compiler(machine, name="xla:gpu")


@pytest.mark.parametrize("loss", [unrolled, scanned])
def test_gradients_are_reduced_together(loss: Any) -> None:
    program = gradients(loss)
    flow, ops = analyse(program), of_gradients(program)
    assert ops
    assert {flow.summed_together[op] for op in ops} == {len(ops)}
    products = [op.index for op in program.ops if op.primitive == "dot_general"]
    assert {flow.summed_together[op] for op in products if op not in ops} == {1}


def test_sums_share_the_latency_and_not_the_bytes() -> None:
    program, machine = gradients(unrolled), gpus()
    prices = step_prices(program, analyse(program, machine.chip), machine, (4,))
    op = program.ops[of_gradients(program)[0]]
    stored = np.array([[-1]])
    small, large = (
        float(prices.settled_seconds(op, "all_reduce", (0,), np.array([size]), stored)[0])
        for size in (0.0, 1e9)
    )
    whole = prices.topology.collective_seconds("all_reduce", (0,), 0.0)
    assert np.isclose(small, whole / 3)
    assert np.isclose(large, prices.topology.collective_seconds("all_reduce", (0,), 1e9))


def weights_and_casts(program: Program) -> tuple[list[int], list[int]]:
    """The weights as they come, and what the products read."""
    casts = [op for op in program.ops if op.primitive == "convert_element_type"]
    weights = [v for v in program.inputs if program.values[v].shape == WEIGHT.shape]
    made = [op.outputs[0] for op in casts if op.inputs[0] in weights]
    return weights, made


def test_weights_are_gathered_together_by_gpus_alone() -> None:
    def narrow(weights: Any, x: Any) -> Any:
        return unrolled([w.astype(jnp.bfloat16) for w in weights], x.astype(jnp.bfloat16))

    program, chip = gradients(narrow), gpus().chip
    weights, casts = weights_and_casts(program)
    assert (len(weights), len(casts)) == (3, 3)
    flow = analyse(program, chip)
    # Of each weight and its cast one is gathered, and perhaps the batch.
    assert {flow.gathered_together[v] for v in [*weights, *casts]} == {3 + 1}
    products = [op.outputs[0] for op in program.ops if op.primitive == "dot_general"]
    assert {flow.gathered_together[v] for v in products} == {1}
    alone = analyse(program, replace(chip, compiler=LAWS))
    assert set(alone.gathered_together) == {1}


def test_gathers_share_the_latency_and_take_the_same_way() -> None:
    topology = MeshTopology(gpus(), (2, 2))
    cache = ReshardCache(topology)
    for shape in ((64, 8), (8192, 8192)):
        alone, shared = cache.table(shape, 4), cache.table(shape, 4, together=3)
        for before, after in itertools.product(alone.layouts, alone.layouts):
            steps, others = alone.steps(before, after), shared.steps(before, after)
            assert [step.to_state for step in steps] == [step.to_state for step in others]
            for one, other in zip(steps, others, strict=True):
                rate = topology.rate(one.kind, one.axes)
                size = np.array(math.prod(shape) * 4 / _shards(one.to_state, (2, 2)))
                share = latency_share(3, size, topology.machine.chip, "all_gather")
                saved = (1 - float(share)) * rate.latency_seconds
                assert np.isclose(one.seconds - other.seconds, saved * (one.kind == "all_gather"))
            total = sum(step.seconds for step in others)
            assert total == shared.seconds[shared.index(before), shared.index(after)]
            assert shared.seconds_of(steps) == total


def _shards(state: Any, mesh: tuple[int, ...]) -> int:
    return math.prod(mesh[axis] for axes in state for axis in axes)


def test_what_fills_a_collective_shares_nothing() -> None:
    chip = gpus().chip
    full = np.array([0.0, GPU_BYTES / 2, GPU_BYTES, 2 * GPU_BYTES])
    assert np.allclose(latency_share(4, full, chip, "all_gather"), [1 / 4, 5 / 8, 1, 1])
    assert np.allclose(latency_share(1, full, chip, "all_gather"), 1)
