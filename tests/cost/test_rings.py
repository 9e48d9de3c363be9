"""What rings send, and what of that is hidden, worked out by hand."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from autoshard.cost.collective import MeshTopology
from autoshard.cost.kernels import kernel_seconds
from autoshard.cost.rings import ring_bytes, ring_exposed
from autoshard.cost.step_prices import step_prices
from autoshard.lower.facts.kernel_times import kernel_times
from autoshard.machine.load import load
from autoshard.plan.decisions import Decisions
from autoshard.program.rules.record import FactorKind
from autoshard.program.strategies import project_assignment
from autoshard.program.trace import trace
from autoshard.xla import analyse

DEVICES, HEADS, WIDTH = 8, 2, 128


def attended(q: Any, k: Any, v: Any) -> Any:
    return jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="cudnn")


def ring(length: int) -> tuple[Any, Any, Any]:
    """Prices, the op and its strategy as a ring over eight GPUs of one host."""
    array = jax.ShapeDtypeStruct((1, length, HEADS, WIDTH), jnp.bfloat16)
    program, machine = trace(attended, array, array, array), load("h100-8")
    prices = step_prices(program, analyse(program, machine.chip), machine, (DEVICES,))
    (op,) = (op for op in program.ops if op.kernel is not None)
    (factor,) = (k for k, one in enumerate(op.rule.factors) if one.kind is FactorKind.RING)
    stored = tuple(np.array([[1]]) for _ in op.outputs)
    return prices, op, project_assignment(op.rule, np.array([[factor]]), stored, (DEVICES,))


@pytest.mark.parametrize(("length", "hidden"), [(4096, False), (2**18, True)])
def test_keys_and_values_are_hidden_where_attention_takes_longer(length: int, hidden: bool) -> None:
    """Halves of queries, keys, values and the output are exchanged besides, twice each."""
    prices, op, strategy = ring(length)
    part = 2 * length * HEADS * WIDTH / DEVICES
    shift = prices.topology.shift_rate((0,))
    step = 2 * (shift.latency_seconds + shift.seconds_per_byte * part)
    (work,) = kernel_seconds(prices.machine.chip, op.kernel, strategy.shards)
    assert (step < work / DEVICES) == hidden
    halves = prices.topology.collective_seconds("collective_permute", (0,), part / 2)
    waits = (DEVICES - 1) * max(step - work / DEVICES, 0.0)
    (found,) = ring_exposed(prices, op, strategy)
    assert found == pytest.approx(4 * 2 * halves + waits)


def test_two_of_keys_and_values_are_there_beside_sums_and_halves() -> None:
    """Three operands in halves, a step's output, its sum in float32, two of keys and of values."""
    prices, op, strategy = ring(4096)
    part = 2 * 4096 * HEADS * WIDTH / DEVICES
    (found,) = ring_bytes(prices, op, strategy)
    assert found == (3 + 1 + 2 + 4) * part


def test_what_all_send_to_the_next_takes_one_link_each() -> None:
    """Of a torus, one way round; on a switch, what a chip sends."""
    torus = MeshTopology(load("v5p-64"), (4, 16))
    level: Any = torus.machine.network[0]
    link = level.efficiency * level.link_bandwidth
    assert torus.shift_rate((0,)).seconds_per_byte == pytest.approx(1 / link)
    assert torus.rate("collective_permute", (0,)).seconds_per_byte >= 1 / link
    switch = MeshTopology(load("h100-8"), (8,))
    level = switch.machine.network[0]
    least = 1 / (level.efficiency * min(level.chip_bandwidth, level.pair_bandwidth))
    assert switch.shift_rate((0,)).seconds_per_byte == pytest.approx(least)
    assert switch.shift_rate(()).latency_seconds == 0.0


def test_calls_of_a_ring_take_what_the_whole_takes() -> None:
    """A masked one, and two of half of the rows or of the keys for each of the other devices."""
    prices, op, strategy = ring(4096)
    assignment: list[Any] = [None] * len(prices.program.ops)
    assignment[op.index] = tuple(strategy.assignment[0].tolist())
    layouts = tuple(None if one.free else (1,) for one in prices.program.values)
    nothing = (None,) * len(layouts)
    decisions = Decisions(layouts, nothing, (0,) * len(layouts), tuple(assignment))
    chip = prices.machine.chip
    (found,) = kernel_times(prices.program, decisions, (DEVICES,), chip)
    (whole,) = kernel_seconds(chip, op.kernel, strategy.shards)
    assert found.seconds * (2 * DEVICES - 1) == pytest.approx(whole)
