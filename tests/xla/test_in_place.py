"""Caches that a loop carries: updated in place, and transposed as a whole or not at all."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from autoshard.cost.reordering import transposing
from autoshard.cost.step_prices import step_prices
from autoshard.machine.compiler import of_release
from autoshard.machine.load import load
from autoshard.program.strategies import enumerate_strategies
from autoshard.program.trace import Program, trace
from autoshard.xla import analyse
from autoshard.xla.in_place import carry_of, stack_of, updated_in_place
from tests.helpers import with_lost_habits

LAYERS, ROWS, PLACES, HEADS, SIZE = 3, 8, 64, 4, 32
CACHE = jax.ShapeDtypeStruct((LAYERS, ROWS, PLACES, HEADS, SIZE), jnp.float32)
NEW = jax.ShapeDtypeStruct((ROWS, 1, HEADS, SIZE), jnp.float32)


def written(cache: Any, new: Any, layer: Any) -> Any:
    return lax.dynamic_update_slice(cache, new[None], (layer, 0, 0, 0, 0))


def decode(keys: Any, values: Any, x: Any) -> Any:
    """A step of attention over caches that every layer writes a part of."""

    def body(carry: Any, layer: Any) -> Any:
        x, keys, values = carry
        keys, values = written(keys, jnp.tanh(x), layer), written(values, jnp.sin(x), layer)
        key = lax.dynamic_index_in_dim(keys, layer, keepdims=False)
        value = lax.dynamic_index_in_dim(values, layer, keepdims=False)
        scores = jnp.einsum("bqkh,bskh->bkqs", x, key)
        x = jnp.einsum("bkqs,bskh->bqkh", jax.nn.softmax(scores), value)
        return (x, keys, values), None

    (x, keys, values), _ = lax.scan(body, (x, keys, values), jnp.arange(len(keys)))
    return keys, values, x


def traced(fn: Any = decode, donated: tuple[int, ...] = (0, 1)) -> Program:
    return trace(fn, CACHE, CACHE, NEW, donate_argnums=donated)


def of_cache_size(program: Program) -> set[int]:
    """The values that are as large as a cache, but for the inputs."""
    size = int(np.prod(CACHE.shape)) * 4
    return {v.index for v in program.values if v.bytes == size and v.producer >= 0}


def test_donated_caches_take_no_memory_of_their_own() -> None:
    program = traced()
    flow = analyse(program)
    caches = of_cache_size(program)
    assert len(caches) == 2 * 4  # the carry, the update, and what the loop and the step return
    assert updated_in_place(program) == caches
    assert all(flow.start[v] == flow.stop[v] and not flow.temporary[v] for v in caches)


def test_what_is_not_donated_is_written_anew() -> None:
    program = traced(donated=(0,))
    in_place = updated_in_place(program)
    assert len(in_place) == 4
    flow = analyse(program)
    assert any(flow.stop[v] > flow.start[v] for v in of_cache_size(program) - in_place)


def read_afterwards(keys: Any, values: Any, x: Any) -> Any:
    new = lax.dynamic_update_slice(keys, x[None], (0, 0, 0, 0, 0))
    return new, values, jnp.sum(keys * 2.0)


def swapped(keys: Any, values: Any, x: Any) -> Any:
    def body(carry: Any, layer: Any) -> Any:
        keys, values = carry
        return (written(values, x, layer), written(keys, x, layer)), None

    (keys, values), _ = lax.scan(body, (keys, values), jnp.arange(LAYERS))
    return keys, values, x


@pytest.mark.parametrize("fn", [read_afterwards, swapped])
def test_a_buffer_that_is_read_again_or_goes_elsewhere_is_copied(fn: Any) -> None:
    program = traced(fn)
    assert not any(
        program.ops[program.values[v].producer].primitive == "dynamic_update_slice"
        for v in updated_in_place(program)
    )


def test_an_update_writes_over_what_dies_with_it() -> None:
    def step(x: Any, new: Any) -> Any:
        made = x @ x
        return jnp.sum(lax.dynamic_update_slice(made, new, (0, 0)) @ x)

    program = trace(step, *(jax.ShapeDtypeStruct(s, jnp.float32) for s in ((64, 64), (1, 64))))
    flow = analyse(program)
    (update,) = (op for op in program.ops if op.primitive == "dynamic_update_slice")
    assert flow.stop[update.inputs[0]] == flow.start[update.outputs[0]]


def test_one_cache_is_transposed_as_a_whole() -> None:
    """XLA:GPU's way; the second one is written where the first lay."""
    program = traced()
    machine = with_lost_habits(load("h100-8"))
    flow = analyse(program, machine.chip)
    prices = step_prices(program, flow, machine, (8,))
    cache = int(np.prod(CACHE.shape)) * 4
    copies: list[float] = []
    for index in flow.transposed:
        op = program.ops[index]
        for one, life in zip(flow.transposed[index], flow.turned[index], strict=True):
            carry = carry_of(program, op.inputs[one.position])
            if carry < 0 or one.alone:
                continue
            assert program.values[carry].bytes == cache
            assert (life.start, life.stop) == (0, flow.end - 1)
            assert life.moves == 2  # there and back, a layer's part in every layer
        shapes = tuple(program.values[v].shape for v in op.outputs)
        strategies = enumerate_strategies(op.rule, (8,), shapes, joins=False, pending=False)
        whole = int(np.flatnonzero((strategies.written[0] < 0).all(axis=1))[0])
        copies += [float(made[whole]) for made, _ in transposing(prices, op, strategies)[1]]
    assert sorted(copies)[-1] == cache * prices.scratch_factor
    assert sum(one >= cache for one in copies) == 1


def test_a_cache_that_single_rows_read_lies_as_it_came() -> None:
    """From 0.12 on: such products are sums, which read what lies in any order."""
    compiler = of_release(load("h100-8").chip.compiler, "0.12.0")
    flow = analyse(traced(), replace(load("h100-8").chip, compiler=compiler))
    assert not any(life.parts > 1 for lives in flow.turned.values() for life in lives)


def test_stacks_are_transposed_as_a_whole_before_the_loop() -> None:
    """Once for the products that read it in one order, and alive as long as the loop."""

    def step(cache: Any, q: Any) -> Any:
        def body(q: Any, one: Any) -> tuple[Any, None]:
            scores = jnp.einsum("bqkh,bskh->bkqs", q, one)
            return jnp.tanh(jnp.einsum("bkqs,bskh->bqkh", scores, one)), None

        return jax.lax.scan(body, q, cache)[0]

    shapes = (LAYERS, 16, 128, 8, 64), (16, 32, 8, 64)
    program = trace(step, *(jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes))
    machine = load("h100-1")
    flow = analyse(program, machine.chip)
    prices = step_prices(program, flow, machine, (1,))
    region = next(one for one in program.regions if one.kind == "scan")
    last = flow.when[region.stop - 1]
    copies = []
    for index, lives in flow.turned.items():
        op = program.ops[index]
        whole = enumerate_strategies(op.rule, (1,), [program.values[op.outputs[0]].shape])
        made = transposing(prices, op, whole)[1]
        for one, life, (bytes_, _) in zip(flow.transposed[index], lives, made, strict=True):
            if stack_of(program, op.inputs[one.position]) is not None and bytes_[0]:
                assert life.start <= flow.when[region.start]
                assert life.stop > last
                copies.append(float(bytes_[0]))
    assert copies == [math.prod(shapes[0]) * 2 * prices.scratch_factor]


def test_chips_without_memory_transactions_transpose_nothing() -> None:
    program = traced()
    machine = load("v5e-8")
    prices = step_prices(program, analyse(program, machine.chip), machine, (8,))
    assert not machine.chip.transaction_bytes
    for index in prices.dataflow.transposed:
        op = program.ops[index]
        shapes = tuple(program.values[v].shape for v in op.outputs)
        strategies = enumerate_strategies(op.rule, (8,), shapes, joins=False, pending=False)
        assert not any(made.any() for made, _ in transposing(prices, op, strategies)[1])


def test_products_that_read_parts_of_other_carries_are_priced_apart() -> None:
    """A layer's part is the same; the whole caches that are transposed for it are not."""

    def step(keys: Any, values: Any, more_keys: Any, more_values: Any, x: Any) -> Any:
        keys, values, x = decode(keys, values, x)
        return keys, values, *decode(more_keys, more_values, x)

    more = jax.ShapeDtypeStruct((2 * LAYERS, *CACHE.shape[1:]), CACHE.dtype)
    program = trace(step, CACHE, CACHE, more, more, NEW, donate_argnums=(0, 1, 2, 3))
    flow = analyse(program, with_lost_habits(load("h100-8")).chip)
    transposed = [
        op
        for op in program.ops
        if op.primitive == "dot_general"
        and any(life.parts > 1 for life in flow.turned.get(op.index, ()))
    ]
    first, second = transposed
    assert first.rule == second.rule
    assert flow.transposed[first.index] == flow.transposed[second.index]
    assert flow.surroundings(first) != flow.surroundings(second)


@pytest.mark.parametrize("machine", ["h100-1", "v5e-1"])
@pytest.mark.parametrize("read_later", [False, True])
def test_a_stack_that_a_loop_makes_of_one_that_it_reads_lies_beside_it(
    machine: str, read_later: bool
) -> None:
    """As `lax.scan` renews a cache; what replaces a stack that nothing reads lies in its place."""

    def step(stack: Any, x: Any) -> Any:
        read = stack if read_later else jnp.zeros_like(stack)
        x, new = lax.scan(lambda x, one: (jnp.tanh(x + one), one + jnp.sin(x)), x, read)
        return new, x

    shapes = (8, 512, 512), (512, 512)
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    program = trace(step, *arguments, donate_argnums=(0,))
    loaded = load(machine)
    flow = analyse(program, loaded.chip)
    prices = step_prices(program, flow, loaded, (1,))
    (op,) = [one for one in program.ops if one.primitive == "scan_stack"]
    whole = enumerate_strategies(op.rule, (1,), [program.values[op.outputs[0]].shape])
    (seconds,) = prices.compute_seconds(op, whole)
    assert (op.index in flow.copied_back) == read_later
    assert flow.temporary[op.outputs[0]] == read_later
    copies = 4 if read_later else 2
    moved = copies * 512 * 512 * 4 / loaded.chip.memory_rate
    assert seconds == pytest.approx(moved + loaded.chip.launch_seconds)


@pytest.mark.parametrize("release", ["0.10.2", "0.12.0"])
@pytest.mark.parametrize(
    "equations", ["bhd,bthd->bht bht,bthd->bhd", "bhd,bhtd->bht bht,bhtd->bhd"]
)
def test_stacks_that_single_rows_read_are_put_in_order_however_they_lie(
    release: str, equations: str
) -> None:
    """XLA:GPU moves the layers inside; compiled peaks show a copy of keys and one of values."""
    scores, outputs = equations.split()
    shape = (4, 16, 512, 8, 64) if "bthd" in equations else (4, 16, 8, 512, 64)

    def step(keys: Any, values: Any, q: Any) -> Any:
        def body(q: Any, one: Any) -> tuple[Any, None]:
            shares = jax.nn.softmax(jnp.einsum(scores, q, one[0]))
            return jnp.einsum(outputs, shares, one[1]), None

        return jax.lax.scan(body, q, (keys, values))[0]

    cache = jax.ShapeDtypeStruct(shape, jnp.bfloat16)
    program = trace(step, cache, cache, jax.ShapeDtypeStruct((16, 8, 64), jnp.bfloat16))
    plain = load("h100-1")
    machine = replace(
        plain, chip=replace(plain.chip, compiler=of_release(plain.chip.compiler, release))
    )
    flow = analyse(program, machine.chip)
    prices = step_prices(program, flow, machine, (1,))
    copies = []
    for index in flow.turned:
        op = program.ops[index]
        whole = enumerate_strategies(op.rule, (1,), [program.values[op.outputs[0]].shape])
        copies += [float(made[0]) for made, _ in transposing(prices, op, whole)[1]]
    size = math.prod(shape) * 2 * prices.scratch_factor
    assert [one for one in copies if one >= size] == [size, size]
