"""Copies that are made in a narrower type: which, and what they cost."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from autoshard.cost.step_prices import StepPrices, step_prices
from autoshard.machine.load import load
from autoshard.program.trace import Program, trace
from autoshard.xla import analyse

WIDE = jnp.float32
STACK = jax.ShapeDtypeStruct((4, 256, 256), WIDE)
TABLE = jax.ShapeDtypeStruct((1024, 256), WIDE)
BATCH = jax.ShapeDtypeStruct((512, 256), jnp.bfloat16)
TOKENS = jax.ShapeDtypeStruct((512,), jnp.int32)


def narrow(weight: Any) -> Any:
    return weight.astype(jnp.bfloat16)


def scanned(stack: Any, x: Any) -> Any:
    return jax.lax.scan(lambda x, w: (jnp.tanh(x @ narrow(w)), None), x, stack)[0]


def scanned_as_it_is(stack: Any, x: Any) -> Any:
    return jax.lax.scan(lambda x, w: (jnp.tanh(x * w[0] @ narrow(w)), None), x.astype(WIDE), stack)


def renewed(stack: Any, x: Any) -> Any:
    slope = jax.grad(lambda stack: jnp.sum(scanned(stack, x).astype(WIDE)))(stack)
    return stack - 0.1 * slope


def looked_up(table: Any, tokens: Any) -> Any:
    return narrow(table[tokens])


def looked_up_as_it_is(table: Any, tokens: Any) -> Any:
    return table[tokens]


def of_first_input(
    step: Any, *args: Any, machine: str = "v5e-4"
) -> tuple[Program, StepPrices, int]:
    given = load(machine)
    program = trace(step, *args)
    return program, step_prices(program, analyse(program, given.chip), given, (4,)), 0


@pytest.mark.parametrize(
    ("step", "args", "width"),
    [
        (scanned, (STACK, BATCH), 2),
        (renewed, (STACK, BATCH), 2),  # the optimizer is no reason for a copy
        (scanned_as_it_is, (STACK, BATCH), None),
        (looked_up, (TABLE, TOKENS), 2),
        (looked_up_as_it_is, (TABLE, TOKENS), None),
        (lambda table, x: x @ narrow(table.T), (TABLE, BATCH), 2),
        (lambda table, x: x.astype(WIDE) @ table.T, (TABLE, BATCH), None),
        (lambda x: x.astype(WIDE) + 1, (BATCH,), None),  # made wider
    ],
)
def test_what_all_that_is_no_update_converts_is_converted_first(
    step: Any, args: Any, width: int | None
) -> None:
    program, prices, value = of_first_input(step, *args)
    found = prices.dataflow.narrowed.get(value)
    assert (None if found is None else found.width) == width
    share = 1.0 if width is None else width / program.values[value].itemsize
    assert prices.narrowing(value) == share
    cut, whole = np.array([[1], [-1]])
    held = prices.held_bytes(value, whole) * prices.scratch_factor
    assert prices.copy_factor(value, whole[None])[0] * prices.held_bytes(value, whole) == (
        pytest.approx(share * held)
    )
    once = prices.reshard(value).steps(tuple(cut), tuple(whole))
    wide = prices.reshards.table(program.values[value].shape, program.values[value].itemsize)
    plain = wide.steps(tuple(cut), tuple(whole))
    assert [step.to_state for step in once] == [step.to_state for step in plain]
    latency = prices.topology.rate("all_gather", (0,)).latency_seconds
    ratio = (once[0].seconds - latency) / (plain[0].seconds - latency)
    assert ratio == pytest.approx(share, rel=1e-3)


def test_a_table_of_which_every_device_looks_up_its_rows_stays_as_it_is() -> None:
    _, prices, table = of_first_input(looked_up, TABLE, TOKENS)
    rows, columns, whole = np.array([[0], [1], [-1]])
    factors = prices.copy_factor(table, np.stack([rows, columns, whole])) / prices.scratch_factor
    assert factors.tolist() == [1.0, 0.5, 0.5]


@pytest.mark.parametrize("machine", ["h100-4", "a100-4"])
def test_gpus_gather_what_there_is(machine: str) -> None:
    _, prices, stack = of_first_input(scanned, STACK, BATCH, machine=machine)
    assert prices.narrowing(stack) == 1.0
    assert not prices.dataflow.narrowed
