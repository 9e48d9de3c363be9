"""Rows that are written once per group live as long as products read them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from autoshard.cost.step_prices import step_prices
from autoshard.machine.load import load
from autoshard.plan.memory_events import op_events
from autoshard.program.ragged import RAGGED
from autoshard.program.trace import trace
from autoshard.search.search import search
from autoshard.xla import analyse
from autoshard.xla.forecast.masked_rows import masked_rows
from autoshard.xla.forecast.planned_collectives import Decided
from tests.helpers import with_compiler

ROWS, WIDTH, HIDDEN, GROUPS = 512, 64, 128, 8
NARROW, WIDE = (8 * 2 * ROWS * size / 2**20 for size in (WIDTH, HIDDEN))


def experts(x, up, down, sizes):
    """Gradients of two ragged products, of which the second reads what the first makes."""

    def loss(up, down, x):
        hidden = jnp.tanh(lax.ragged_dot(x, up, sizes))
        return jnp.sum(lax.ragged_dot(hidden, down, sizes).astype(jnp.float32) ** 2)

    return jax.grad(loss, (0, 1, 2))(up, down, x)


def layers(x, up, down, sizes):
    """Gradients of two turns of a loop over both products."""

    def turn(x, weights):
        hidden = jnp.tanh(lax.ragged_dot(x, weights[0], sizes))
        return lax.ragged_dot(hidden, weights[1], sizes), None

    def loss(weights, x):
        return jnp.sum(lax.scan(turn, x, weights)[0].astype(jnp.float32) ** 2)

    both = tuple(jnp.stack([one, one]) for one in (up, down))
    return jax.grad(loss)(both, x)


def two_gates(x, left, right, sizes):
    """Gradients of two ragged products of the same rows."""

    def loss(left, right):
        both = lax.ragged_dot(x, left, sizes) * lax.ragged_dot(x, right, sizes)
        return jnp.sum(both.astype(jnp.float32) ** 2)

    return jax.grad(loss, (0, 1))(left, right)


def bf16(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


def mebibytes(fn, second, machine: str = "h100-1"):
    """What rows written once per group take in memory, by program point, and ops by their points.

    The plan is that of one chip.
    """
    sizes = jax.ShapeDtypeStruct((GROUPS,), jnp.int32)
    args = bf16(ROWS, WIDTH), bf16(GROUPS, WIDTH, HIDDEN), second, sizes
    program, loaded = trace(fn, *args), with_compiler(load(machine), without=frozenset())
    decisions = search(program, loaded, time_limit=20).decisions
    prices = step_prices(program, analyse(program, loaded.chip), loaded, (1,))
    decided = Decided(prices, decisions)
    ragged = [op for op in program.ops if op.primitive == RAGGED]
    events = [
        *masked_rows(prices, decided),
        *(event for op in ragged for event in op_events(prices, op, decided.chosen(op))),
    ]
    held = np.zeros(prices.dataflow.end + 2)
    for point, size in events:
        held[point] += size / prices.scratch_factor / 2**20
    return np.cumsum(held), [prices.dataflow.when[op.index] for op in ragged]


def test_rows_that_two_gradients_read_are_written_once_with_those_of_their_shape():
    held, points = mebibytes(two_gates, bf16(GROUPS, WIDTH, HIDDEN))
    assert held[-1] == pytest.approx(0.0)
    forward, backward = points[:2], points[2:]
    assert held[forward].max() == pytest.approx(2 * NARROW)  # as read by both, and by gradients
    assert held[backward].max() == pytest.approx(NARROW + 2 * WIDE)  # both errors by one kernel


def test_rows_that_come_from_products_of_others_are_written_apart():
    held, points = mebibytes(experts, bf16(GROUPS, HIDDEN, WIDTH))
    assert held[-1] == pytest.approx(0.0)
    assert held.min() >= -1e-6
    assert held.max() == pytest.approx(NARROW + 2 * WIDE)
    assert held[points[1]] == held.max()  # those of `x` wait for their gradient meanwhile


def test_in_loops_rows_of_the_forward_pass_are_written_with_those_of_their_shape():
    held, _ = mebibytes(layers, bf16(GROUPS, HIDDEN, WIDTH))
    assert held[-1] == pytest.approx(0.0)
    assert held.max() == pytest.approx(2 * NARROW + 2 * WIDE)  # all four at once


def test_a_compiler_that_masks_inside_of_products_writes_nothing():
    held, _ = mebibytes(experts, bf16(GROUPS, HIDDEN, WIDTH), "v5p-1")
    assert not held.any()
