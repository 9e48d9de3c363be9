"""Products of one row on XLA:GPU, which are sums of rows or of columns."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from autoshard.cost.step_prices import step_prices
from autoshard.cost.vector_products import AT_ONCE, HABIT
from autoshard.machine.load import load
from autoshard.machine.machine import Machine
from autoshard.program.strategies import Strategies, project_assignment
from autoshard.program.trace import Op, trace
from autoshard.xla import analyse
from tests.helpers import case, random_plan, with_compiler, with_lost_habits

H100 = load("h100-8")
CHIP = H100.chip
READ = 2 / CHIP.memory_rate
"""Seconds for an element of bfloat16."""
BLOCK = 1 / CHIP.sm_bandwidth


def bf16(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


def cut(op: Op, factor: int = -1) -> Strategies:
    """The strategy with the only axis on one factor, or on none."""
    whole = tuple(np.full((1, 1), -1) for _ in op.outputs)
    return project_assignment(op.rule, np.array([[factor]]), whole, (8,))


def seconds(fn, *shapes: jax.ShapeDtypeStruct, machine: Machine = H100, factor: str = "") -> float:
    """Of the only product of a step on one of eight devices, whole or with one factor cut."""
    program = trace(fn, *shapes)
    prices = step_prices(program, analyse(program, machine.chip), machine, (8,))
    (op,) = [one for one in program.ops if one.primitive == "dot_general"]
    names = [one.name for one in op.rule.factors]
    strategy = cut(op, names.index(factor) if factor else -1)
    return float(prices.compute_seconds(op, strategy)[0])


def columns(x, w):
    return x @ w


def rows(x, w):
    return jnp.einsum("bk,nk->bn", x, w)


def test_rows_take_what_memory_takes():
    found = seconds(rows, bf16(1, 2048), bf16(1024, 2048))
    assert found == pytest.approx(CHIP.launch_seconds + 2048 * 1024 * READ, rel=0.01)


def test_long_columns_are_written_first_and_summed_up_by_few_multiprocessors():
    """XLA:GPU's own: 10.3 us to multiply, and 16.9 us to sum up (JAX 0.10.2 and 0.12.0.1)."""
    found = seconds(columns, bf16(1, 4096), bf16(4096, 2048))
    expected = 2 * CHIP.launch_seconds + 4096 * (2 * 2048 * READ + 256 * BLOCK)
    assert found == pytest.approx(expected)
    assert found - 2 * CHIP.launch_seconds == pytest.approx(27.1e-6, rel=0.05)


def test_short_columns_are_multiplied_and_summed_up_at_once():
    """XLA:GPU's own: 4.2 us."""
    found = seconds(columns, bf16(1, 512), bf16(512, 4096))
    assert found == pytest.approx(CHIP.launch_seconds + 512 * 2 * 256 * BLOCK)
    assert found - CHIP.launch_seconds == pytest.approx(4.2e-6, rel=0.05)


def test_columns_of_more_elements_are_summed_up_in_two_steps():
    """XLA:GPU's own: 5.7 us for the first one."""
    long = seconds(columns, bf16(1, 2 * AT_ONCE), bf16(2 * AT_ONCE, 1024))
    assert long < seconds(columns, bf16(1, AT_ONCE), bf16(AT_ONCE, 1024))
    assert long - 2 * CHIP.launch_seconds == pytest.approx(5.7e-6, rel=0.15)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (bf16(2, 4096), bf16(4096, 1024)),  # two rows
        (bf16(1, 4096), bf16(4096, 4096)),  # 16.8 million elements
    ],
)
def test_other_products_stay_calls(left, right):
    found = seconds(columns, left, right)
    size = left.size + right.size + left.shape[0] * right.shape[1]
    assert found == pytest.approx(CHIP.launch_seconds + size * READ)


def test_what_is_cut_counts_on_one_device():
    """Of 16.8 million elements a device has two, and of eight rows one."""
    whole = bf16(1, 4096), bf16(4096, 4096)
    summed = seconds(columns, *whole, factor="j")
    assert summed > CHIP.launch_seconds + 4096 * 256 * BLOCK
    halved = seconds(columns, *whole, factor="k")
    assert halved == pytest.approx(CHIP.launch_seconds + 512 * 2 * 256 * BLOCK, rel=0.01)


def test_without_the_habit_or_the_number_products_are_calls():
    arguments = bf16(1, 4096), bf16(4096, 2048)
    usual = seconds(columns, *arguments)
    for chip in (
        replace(CHIP, sm_bandwidth=0.0),
        replace(CHIP, compiler=replace(CHIP.compiler, without=frozenset({HABIT}))),
    ):
        assert seconds(columns, *arguments, machine=replace(H100, chip=chip)) < 0.4 * usual
    assert not load("v5p-8").chip.sm_bandwidth


def layers(stack, x):
    return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, stack)[0]


@pytest.mark.parametrize(
    ("rows", "width", "free"), [(1, 1024, True), (8, 1024, False), (1, 4096, False)]
)
def test_slices_are_read_in_place_where_products_are_sums(rows, width, free):
    """Before 0.11; later releases read all slices in place."""
    compiler = replace(CHIP.compiler, without=frozenset())
    machine = replace(H100, chip=replace(CHIP, compiler=compiler))
    program = trace(layers, bf16(4, width, width), bf16(rows, width))
    prices = step_prices(program, analyse(program, machine.chip), machine, (8,))
    (op,) = [one for one in program.ops if one.primitive == "scan_slice"]
    found = float(prices.compute_seconds(op, cut(op))[0])
    assert (found == 0) == free


@pytest.mark.parametrize("width", [512, 2048, 4096])
def test_no_plan_undercuts_the_bound_of_all_chips(width):
    given = case(layers, bf16(4, width, width), bf16(1, width), mesh={"x": 8}, machine=H100)
    prices, ops = given.built.prices, given.program.ops
    least = prices.ideal_seconds([[op.index] for op in ops])
    plans = [random_plan(given, seed) for seed in range(20)]
    assert all(least <= plan.estimate.lower_seconds * (1 + 1e-9) for plan in plans)


def attending(heads: int):
    def step(x, stack, keys):
        def turn(x, layer):
            weights, keys = layer
            queries = jnp.einsum("bsd,dkgh->bskgh", x, weights)
            return x, jnp.einsum("bskgh,btkh->bkgst", queries, keys)

        return jax.lax.scan(turn, x, (stack, keys))[1]

    shapes = bf16(1, 1, 2048), bf16(4, 2048, heads, 8, 16), bf16(4, 1, 64, heads, 16)
    return trace(step, *shapes), "bsd,dkgh"


def of_heads(*sizes: int):
    def step(x, stack):
        def turn(x, weights):
            return x, jnp.einsum("bsd,dkh->bskh", x, weights)

        return jax.lax.scan(turn, x, stack)[1]

    return trace(step, bf16(1, 1, 2048), bf16(4, 2048, *sizes)), "bsd,dkh"


@pytest.mark.parametrize(
    ("made", "factor", "turned"),
    [
        (of_heads(8, 128), "", True),
        (of_heads(8, 128), "k", False),  # one head a device: its columns are of one dimension
        (of_heads(16, 64), "k", True),
        (of_heads(1, 1024), "", False),
        (attending(8), "", True),
        (attending(8), "k", False),  # the batch of attention is one key head
        (attending(16), "k", True),
    ],
)
def test_stacks_of_heads_are_put_in_the_order_of_rows(made, factor, turned):
    """Copied once before the loop; else they are summed up in columns as they lie."""
    program, spec = made
    prices = step_prices(program, analyse(program, CHIP), H100, (8,))
    op = next(one for one in program.ops if spec in one.scope)
    size = program.values[op.inputs[1]].bytes / 8 ** bool(factor)
    found = cut(op)
    if factor:
        found = cut(op, _factor(op, factor))
        found = project_assignment(op.rule, found.assignment, found.written, (8,))
    taken = float(prices.compute_seconds(op, found)[0])
    in_rows = CHIP.launch_seconds + 3 * size / CHIP.memory_rate
    assert (taken == pytest.approx(in_rows, rel=0.01)) == turned
    assert taken >= in_rows * 0.99


def _factor(op: Op, letter: str) -> int:
    """The factor of a dimension of the weights, by its letter."""
    return op.rule.operands[1]["dkgh".index(letter)][0]


def token(cache, x, position):
    """Layers of which each writes one position of a carried cache, and reads it whole."""

    def layer(carry, number):
        x, cache = carry
        cache = jax.lax.dynamic_update_slice(
            cache, x[None, :, :, None], (number, 0, 0, position, 0)
        )
        keys = cache[number]
        shares = jax.nn.softmax(jnp.einsum("bhd,bhtd->bht", x, keys))
        return (x + shares.sum(-1, keepdims=True), cache), None

    return jax.lax.scan(layer, (x, cache), jnp.arange(3))[0]


LOST = frozenset({"gpu.caches-put-in-order-for-sums", "gpu.slices-written-for-products"})


@pytest.mark.parametrize(
    ("machine", "older"),
    [(with_compiler(H100, without=LOST), False), (with_lost_habits(H100), True)],
)
def test_a_carried_cache_is_read_in_place_and_put_in_order_by_older_releases(machine, older):
    program = trace(token, bf16(3, 8, 4, 512, 128), bf16(8, 4, 128), bf16().update(dtype=jnp.int32))
    habits = machine.chip.compiler
    assert habits.has("gpu.caches-put-in-order-for-sums") == older
    prices = step_prices(program, analyse(program, machine.chip), machine, (8,))
    (op,) = [one for one in program.ops if one.primitive == "dot_general"]
    (turned,) = prices.dataflow.transposed.get(op.index, (None,))
    assert (turned is not None) == older
    if turned:  # positions innermost, although what is contracted was
        assert turned.wanted == ((0, 1, 3, 2),)
        return
    (slice_,) = prices.dataflow.row_slices
    assert program.values[program.ops[slice_].outputs[0]].shape == (8, 4, 512, 128)
    assert not prices.compute_seconds(program.ops[slice_], cut(program.ops[slice_])).any()
