"""Orders of dimensions in memory, worked out by hand, and laws of `is_coalesced`."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.machine.load import load
from autoshard.machine.machine import Machine
from autoshard.program.dim_order import Transposition, is_coalesced
from autoshard.program.trace import Program, trace
from autoshard.xla import analyse
from autoshard.xla.dim_order.walk import Orders
from autoshard.xla.fusion import fuse
from tests.helpers import case


def array(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


def found(program: Program) -> list[tuple[str, Transposition]]:
    """(primitive of the reader, what it reads out of order), in program order."""
    turned = Orders(program, fuse(program).elementwise).run()
    return [
        (program.ops[index].primitive, one) for index, here in turned.of_op.items() for one in here
    ]


@pytest.mark.parametrize(
    ("sizes", "wanted", "coalesced"),
    [
        # As XLA:GPU prices them: 4 bytes an element where they are coalesced, 66 where not.
        ((8, 4096, 512, 4), (0, 1, 3, 2), False),
        ((8, 4096, 512, 16), (0, 1, 3, 2), True),
        ((8, 256, 512, 8), (0, 1, 3, 2), False),
        ((8, 256, 1024, 8), (0, 1, 3, 2), True),
        ((4, 64, 16384, 4), (0, 1, 3, 2), False),
        ((8, 64, 8, 4096), (0, 1, 3, 2), True),
        ((8, 64, 4, 4096), (0, 1, 3, 2), False),
        ((64, 8, 4096, 512), (0, 3, 2, 1), False),
        ((8, 8, 2048, 4096), (0, 3, 2, 1), True),
        ((8, 512, 2048, 4), (0, 3, 2, 1), True),
        ((8, 4, 2048, 512), (0, 3, 2, 1), False),
        ((8, 16, 2048, 512), (0, 3, 2, 1), True),
        ((8, 2, 2048, 512), (0, 2, 1, 3), True),
        ((8, 2, 2048, 512), (0, 1, 3, 2), True),
        ((16, 4096, 32, 128), (0, 2, 3, 1), True),
        ((16, 128, 4, 1024), (0, 3, 2, 1), True),
        ((8, 128, 4, 4096), (3, 0, 2, 1), True),
        ((8, 128, 4096, 4), (2, 0, 3, 1), False),
    ],
)
def test_coalesced_as_the_compiler_prices_it(
    sizes: tuple[int, ...], wanted: tuple[int, ...], coalesced: bool
) -> None:
    assert is_coalesced(sizes, (0, 1, 2, 3), wanted) == coalesced


@given(st.permutations(range(4)), st.lists(st.sampled_from([2, 4, 16, 64]), min_size=4, max_size=4))
def test_what_keeps_its_innermost_dimension_is_coalesced(
    order: list[int], sizes: list[int]
) -> None:
    lies = tuple(order)
    for outer in itertools.permutations(order[:-1]):
        assert is_coalesced(sizes, lies, (*outer, order[-1]))


@given(st.permutations(range(3)), st.permutations(range(3)))
def test_large_dimensions_are_always_coalesced(lies: list[int], wanted: list[int]) -> None:
    assert is_coalesced((64, 64, 64), tuple(lies), tuple(wanted))


def test_a_transpose_of_a_matrix_costs_a_product_nothing() -> None:
    program = trace(lambda x, w: x @ w.T, array(64, 32), array(48, 32))
    assert found(program) == []


def test_a_gradient_of_a_matrix_may_come_out_transposed() -> None:
    def step(w: Any, x: Any) -> Any:
        return w - jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w)))(w)

    assert found(trace(step, array(32, 48), array(64, 32))) == []


def attention(queries: Any, keys: Any, values: Any) -> Any:
    """Plain attention with grouped queries."""
    scores = jnp.einsum("bqkgh,bskh->bkgqs", queries, keys)
    shares = jax.nn.softmax(scores.astype(jnp.float32), axis=-1).astype(values.dtype)
    return jnp.einsum("bkgqs,bskh->bqkgh", shares, values)


def test_groups_of_queries_come_out_innermost_and_are_wanted_outermost() -> None:
    program = trace(attention, array(2, 64, 8, 4, 32), array(2, 64, 8, 32), array(2, 64, 8, 32))
    products = [one for primitive, one in found(program) if primitive == "dot_general"]
    shares = [one for one in products if len(one.lies) == 5 and one.lies == (0, 1, 4, 3, 2)]
    assert [one.wanted[0] for one in shares] == [(0, 1, 4, 2, 3)]
    assert not is_coalesced((2, 8, 4, 64, 64), shares[0].lies, shares[0].wanted[0])
    assert not shares[0].copy  # the softmax writes it as it is wanted


def test_products_of_a_batch_read_what_is_made_for_them_each_in_its_own_order() -> None:
    """Scores times values, and transposed times a gradient: written twice, as XLA:GPU does."""

    def step(scores: Any, values: Any, gradient: Any) -> Any:
        shares = jnp.tanh(scores)
        mixed = jnp.einsum("bqs,bsh->bqh", shares, values)
        return mixed, jnp.einsum("bqs,bqh->bsh", shares, gradient)

    program = trace(step, array(2, 64, 48), array(2, 48, 32), array(2, 64, 32))
    turned = [one for primitive, one in found(program) if primitive == "dot_general"]
    shares = [one for one in turned if one.copy and len(one.wanted) == 1]
    assert len(shares) == 1
    flow = analyse(program)
    (life,) = (
        life
        for index, lives in flow.turned.items()
        for life, one in zip(lives, flow.transposed[index], strict=True)
        if replace(one, batch=(), alone=None) == shares[0]
    )
    made = next(op.index for op in program.ops if op.primitive == "tanh")
    first = min(flow.when[op.index] for op in program.ops if op.primitive == "dot_general")
    assert (life.start, life.stop) == (flow.when[made], first + 1)


def test_an_operand_of_another_order_is_put_in_order_once() -> None:
    def step(a: Any, b: Any, x: Any) -> Any:
        scores = jnp.einsum("bsh,bqh->bsq", a, b).swapaxes(1, 2)
        return jnp.sum(scores * x), jnp.max(jnp.exp(scores) + jnp.sin(x) * scores)

    program = trace(step, array(2, 64, 32), array(2, 64, 32), array(2, 64, 64))
    readers = [(primitive, one.lies, one.copy) for primitive, one in found(program)]
    assert len(readers) == 1
    assert readers[0][1:] == ((0, 2, 1), True)


def mixed(shares: Any, values: Any) -> Any:
    """A product that cannot read its left operand as it lies, in whichever order it is computed."""
    return jnp.einsum("bkqsg,bskh->bqkgh", shares, values)


def scattered_seconds(mesh: dict[str, int], machine: Machine) -> tuple[float, float]:
    """(most, least) seconds of transpositions of the product, over its strategies."""
    arguments = array(2, 8, 256, 64, 4), array(2, 64, 8, 32)
    plain = replace(machine, chip=replace(machine.chip, transaction_bytes=0.0))
    totals = []
    for one in (machine, plain):
        given = case(mixed, *arguments, mesh=mesh, machine=one)
        prices = given.built.prices
        op = [op for op in given.program.ops if op.primitive == "dot_general"][-1]
        strategies = given.built.op_strategies[int(given.built.classes.op_class[op.index])]
        totals.append(prices.compute_seconds(op, strategies))
    return float(max(totals[0] - totals[1])), float(min(totals[0] - totals[1]))


def test_a_shard_of_one_group_lies_in_any_order() -> None:
    most, least = scattered_seconds({"x": 4}, load("h100-4"))
    # Where the groups are cut into single ones only a copy of the values is left.
    assert most > 20 * least


def test_machines_without_transactions_price_no_transpositions() -> None:
    assert load("v5p-8").chip.transaction_bytes == 0
    assert load("h100-8").chip.transaction_bytes == 64


def test_what_a_fused_op_reads_stays_until_the_fused_result_is_read() -> None:
    def step(x: Any, w: Any, v: Any) -> Any:
        scores = x @ w
        shares = jnp.exp(scores) / jnp.sum(jnp.exp(scores), axis=-1, keepdims=True)
        return shares @ v

    program = trace(step, array(64, 32), array(32, 48), array(48, 16))
    flow = analyse(program)
    first, second = (op for op in program.ops if op.primitive == "dot_general")
    scores, shares = first.outputs[0], second.inputs[0]
    maker = program.ops[program.values[shares].producer]
    assert flow.stop[scores] == flow.when[maker.index] + 1
    # Both the sum and the shares read the scores.
    reads = [
        size
        for op in program.ops
        for size in flow.fetched[op.index]
        if flow.materialised[op.outputs[0]]
        and size >= program.values[scores].bytes
        and op.index > first.index
    ]
    assert len(reads) == 2 + (flow.fetched[second.index][0] > 0)


def test_a_cache_is_put_in_order_before_a_product_reads_its_slice() -> None:
    """A slice is not made by a kernel that could write it otherwise."""

    def step(cache: Any, new: Any, layer: Any, queries: Any) -> Any:
        cache = jax.lax.dynamic_update_slice(cache, new, (layer, 0, 0, 0, 0))
        keys = jax.lax.dynamic_index_in_dim(cache, layer, keepdims=False)
        return cache, jnp.einsum("bskh,bkh->bks", keys, queries)

    program = trace(
        step,
        array(4, 2, 64, 8, 32),
        array(1, 2, 1, 8, 32),
        jax.ShapeDtypeStruct((), jnp.int32),
        array(2, 8, 32),
    )
    turned = [one for primitive, one in found(program) if primitive == "dot_general"]
    assert [(one.lies, one.copy) for one in turned] == [((0, 1, 2, 3), True)]
