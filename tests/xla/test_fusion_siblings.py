"""Kernels that are run as one, worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from autoshard.cost.step_prices import step_prices
from autoshard.program.trace import Program, trace
from autoshard.xla import analyse
from autoshard.xla.fusion import Fusion, fuse
from tests.helpers import toy_machine

SIZE = 64 * 32 * 4


def array(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def fetched(program: Program, fusion: Fusion | None = None) -> dict[str, int]:
    """By primitive, the bytes that its kernels read."""
    fusion = fusion or fuse(program)
    result: dict[str, int] = {}
    for op in program.ops:
        if not op.boundary and any(fusion.materialised[o] for o in op.outputs):
            result[op.primitive] = result.get(op.primitive, 0) + sum(fusion.fetched[op.index])
    return result


def test_an_optimizer_reads_every_array_once() -> None:
    def update(w: Any, m: Any, v: Any, g: Any) -> Any:
        m = 0.9 * m + 0.1 * g
        v = 0.9 * v + 0.1 * g * g
        return w - m / jnp.sqrt(v), m, v

    program = trace(update, *(array(64, 32),) * 4)
    assert sum(fetched(program).values()) == 4 * SIZE


def test_a_kernel_waits_for_what_another_makes_of_its_result() -> None:
    """The second reads x again: the sum of all of the first stands in between."""

    def fn(x: Any) -> Any:
        first = x * 2.0
        return first, x + jnp.sum(first @ first.T)

    program = trace(fn, array(64, 32))
    assert fetched(program)["mul"] == SIZE
    assert fetched(program)["add"] >= SIZE
    fusion = fuse(program)
    assert not {op.primitive for op in program.ops if op.index in fusion.joined} & {"add"}


def test_a_reduction_is_finished_before_another_kernel_reads_it() -> None:
    """A softmax reads its argument for the sum, and again to divide by it."""
    program = trace(lambda x: x / jnp.sum(x, axis=1, keepdims=True), array(64, 32))
    assert fetched(program)["div"] >= SIZE
    assert fetched(program)["reduce_sum"] == SIZE


def test_kernels_of_other_shapes_or_without_common_arrays_stay_apart() -> None:
    def fn(x: Any, y: Any, bias: Any) -> Any:
        return x + bias, y + bias, jnp.sum(x[:, :16] * 2.0, axis=0)

    program = trace(fn, array(64, 32), array(64, 32), array(32))
    assert not fuse(program).joined


def test_a_transposed_gradient_is_read_once() -> None:
    def update(m: Any, v: Any, g: Any) -> Any:
        return m + g.T, v + g.T * g.T

    program = trace(update, array(64, 32), array(64, 32), array(32, 64))
    assert sum(fetched(program).values()) == 3 * SIZE


def test_what_is_joined_is_not_launched() -> None:
    machine = toy_machine()
    machine = replace(machine, chip=replace(machine.chip, launch_seconds=1.0))

    def seconds(fn: Any) -> float:
        program = trace(fn, array(64, 32))
        prices = step_prices(program, analyse(program, machine.chip), machine, (8,))
        return prices.ideal_seconds([[op.index] for op in program.ops])

    assert 1 < seconds(lambda x: x + 1.0) < seconds(lambda x: (x + 1.0, x * 2.0)) < 2
    assert seconds(lambda x: (x + 1.0, x[:32] * 2.0)) > 2
