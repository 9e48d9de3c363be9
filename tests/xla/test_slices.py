"""Slices of stacks that a loop reads: copied for products of a library, read in place elsewhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas

from autoshard.cost.step_prices import step_prices
from autoshard.machine.load import load
from autoshard.program.facts import Facts
from autoshard.program.strategies import enumerate_strategies
from autoshard.program.trace import Program, trace
from autoshard.xla import analyse
from tests.helpers import toy_machine, with_compiler

LAYERS, ROWS, WIDTH = 3, 4, 8
STACK = jax.ShapeDtypeStruct((LAYERS, WIDTH, WIDTH), jnp.float32)
START = jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32)
LIBRARY = with_compiler(toy_machine(1), name="xla:gpu").chip


def product(x: Any, w: Any) -> tuple[Any, None]:
    return jnp.tanh(x @ w), None


def scaled(x: Any, w: Any) -> tuple[Any, None]:
    return jnp.tanh(x @ (2.0 * w)), None


def flow_of(body: Any, *, library: bool = True) -> tuple[Program, Facts]:
    program = trace(lambda stack, x: jax.lax.scan(body, x, stack)[0], STACK, START)
    return program, analyse(program, LIBRARY if library else toy_machine(1).chip)


def slice_of(program: Program) -> int:
    (op,) = [op for op in program.ops if op.primitive == "scan_slice"]
    return op.index


def test_a_slice_that_a_product_reads_is_copied() -> None:
    program, flow = flow_of(product)
    assert flow.copied == {slice_of(program)}
    value = program.ops[slice_of(program)].outputs[0]
    assert flow.stop[value] > flow.start[value]


def test_a_slice_that_is_fused_is_read_in_place() -> None:
    program, flow = flow_of(scaled)
    assert flow.copied == frozenset()
    value = program.ops[slice_of(program)].outputs[0]
    assert flow.stop[value] == flow.start[value]


def test_a_compiler_without_a_library_reads_in_place() -> None:
    assert flow_of(product, library=False)[1].copied == frozenset()


def test_on_tpus_a_slice_is_copied_for_a_kernel_and_for_no_product() -> None:
    def kernel(left: Any, right: Any, made: Any) -> None:
        made[...] = left[...] + right[...]

    def body(x: Any, w: Any) -> tuple[Any, None]:
        shape = jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)
        return x @ pallas.pallas_call(kernel, shape)(w, w), None

    for copies, turn in ((True, body), (False, product)):
        program = trace(lambda stack, x, turn=turn: jax.lax.scan(turn, x, stack)[0], STACK, START)
        flow = analyse(program, load("v5p-1").chip)
        assert flow.copied == ({slice_of(program)} if copies else set())


def test_of_bitcasts_the_last_is_copied() -> None:
    def body(x: Any, w: Any) -> tuple[Any, None]:
        return jnp.tanh(x @ w.reshape(WIDTH, WIDTH)), None

    stack = jax.ShapeDtypeStruct((LAYERS, WIDTH * WIDTH), jnp.float32)
    program = trace(lambda stack, x: jax.lax.scan(body, x, stack)[0], stack, START)
    (index,) = analyse(program, LIBRARY).copied
    assert program.ops[index].primitive == "reshape"


def test_what_is_updated_in_place_is_copied_and_the_update_is_not() -> None:
    def body(x: Any, pair: Any) -> tuple[Any, Any]:
        cache, row = pair
        return x, jax.lax.dynamic_update_slice(cache, row[None], (0, 0))

    rows = jax.ShapeDtypeStruct((LAYERS, WIDTH), jnp.float32)
    program = trace(lambda stack, rows, x: jax.lax.scan(body, x, (stack, rows)), STACK, rows, START)
    copied = analyse(program, LIBRARY).copied
    shapes = [program.values[program.ops[index].outputs[0]].shape for index in copied]
    assert shapes == [(WIDTH, WIDTH)]


def test_a_copy_reads_and_writes_its_shard() -> None:
    program, flow = flow_of(product)
    machine = replace(toy_machine(2), chip=LIBRARY)
    prices = step_prices(program, flow, machine, (2,))
    op = program.ops[slice_of(program)]
    strategies = enumerate_strategies(op.rule, (2,), [(WIDTH, WIDTH)])
    size = WIDTH * WIDTH * 4
    shards = np.where((strategies.written[0] >= 0).any(axis=1), 2, 1)
    expected = 2 * size / shards / machine.chip.memory_bandwidth
    np.testing.assert_allclose(prices.compute_seconds(op, strategies), expected)
    assert set(shards) == {1, 2}
