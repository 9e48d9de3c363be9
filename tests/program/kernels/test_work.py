"""What kernels compute and move: counted step by step, and what their authors say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas.ops.tpu.flash_attention import BlockSizes, flash_attention

import autoshard
from autoshard.cost.kernels import kernel_seconds, longest_parts
from autoshard.machine import load
from autoshard.program.kernels.records import KernelWork
from autoshard.program.strategies import enumerate_strategies
from tests.program.kernels.functions import attention, f, looked_up, matmul, row_softmax


def work_of(fn: Any, *args: Any) -> KernelWork:
    (work,) = (op.kernel for op in autoshard.trace(fn, *args).ops if op.kernel is not None)
    return work


def test_a_product_moves_its_operands_once_for_each_block_of_the_other() -> None:
    work = work_of(matmul, f(32, 16), f(16, 32))
    assert work.grid == (4, 4, 2)
    assert work.arithmetic.products == 2 * 32 * 16 * 32
    block = 8 * 8 * 4
    steps, blocks = 4 * 4 * 2, 4 * 4
    assert work.bytes == block * (steps + steps + blocks)
    assert not work.guessed


def test_an_op_has_the_flop_of_its_kernel() -> None:
    (op,) = (op for op in autoshard.trace(row_softmax, f(16, 8)).ops if op.kernel is not None)
    done = op.kernel.arithmetic
    assert op.flops == done.flops > 0
    assert done.exponentials == 2 * 16 * 8
    assert op.product_flops == 0


def copied(x: Any, index: Any, *, grid: tuple[int, ...], **options: Any) -> Any:
    def body(x_ref: Any, out_ref: Any) -> None:
        out_ref[...] = x_ref[...]

    return pl.pallas_call(
        body,
        out_shape=f(*grid, 8),
        grid=grid,
        in_specs=[pl.BlockSpec((1, 8), index)],
        out_specs=pl.BlockSpec((None, 1, 8), lambda i, j: (i, j, 0)),
        **options,
    )(x)


@pytest.mark.parametrize(
    ("index", "moves"),
    [
        (lambda i, j: (0, 0), 1),
        (lambda i, j: (i, 0), 4),
        (lambda i, j: (j, 0), 4 * 6),
        (lambda i, j: (j // 3, 0), 4 * 2),
        (lambda i, j: (jnp.where(j <= i, j, 0), 0), 1 + 2 + 3 + 4),
    ],
)
def test_a_block_that_stays_is_not_moved_again(index: Any, moves: int) -> None:
    work = work_of(lambda x: copied(x, index, grid=(4, 6)), f(6, 8))
    assert work.bytes == (moves + 4 * 6) * 8 * 4


@pytest.mark.parametrize("causal", [False, True])
def test_blocks_that_a_mask_skips_are_not_computed(causal: bool) -> None:
    """Of 8 x 8 blocks, a causal mask leaves 36."""
    q = f(2, 4, 1024, 128, dtype=jnp.bfloat16)
    sizes = BlockSizes(*(128, 128, 128, 1, 128, 128, 128, 128, 128, 128, 128))
    work = work_of(lambda q: flash_attention(q, q, q, causal=causal, block_sizes=sizes), q)
    full = 4 * 2 * 4 * 1024 * 1024 * 128
    assert work.arithmetic.products == (full * 36 / 64 if causal else full)
    assert work.dtype == "bfloat16"
    assert not work.guessed


def test_loops_up_to_a_place_in_the_grid_run_as_often_as_it_says() -> None:
    def body(x_ref: Any, out_ref: Any) -> None:
        def turn(_: Any, total: Any) -> Any:
            return total + jnp.dot(x_ref[...], x_ref[...])

        zero = jnp.zeros((8, 8), jnp.float32)
        out_ref[...] = jax.lax.fori_loop(0, pl.program_id(0) + 1, turn, zero)

    spec = pl.BlockSpec((8, 8), lambda i: (i, 0))
    work = work_of(
        pl.pallas_call(body, out_shape=f(32, 8), grid=(4,), in_specs=[spec], out_specs=spec),
        f(32, 8),
    )
    assert work.arithmetic.products == (1 + 2 + 3 + 4) * 2 * 8**3
    assert not work.guessed


def test_where_data_decides_the_author_is_believed() -> None:
    def call(estimate: Any) -> KernelWork:
        def body(x_ref: Any, out_ref: Any) -> None:
            @pl.when(x_ref[0, 0] > 0)
            def _() -> None:
                out_ref[...] = jnp.dot(x_ref[...], x_ref[...])

        spec = pl.BlockSpec((8, 8), lambda i: (i, 0))
        fn = pl.pallas_call(
            body,
            out_shape=f(32, 8),
            grid=(4,),
            in_specs=[spec],
            out_specs=spec,
            cost_estimate=estimate,
        )
        return work_of(fn, f(32, 8))

    full = 4 * 2 * 8**3
    assert call(None).arithmetic.products == full
    assert call(None).guessed
    told = call(pl.CostEstimate(flops=1000, transcendentals=0, bytes_accessed=512))
    assert (told.arithmetic.products, told.bytes) == (1000, 512)


def test_an_estimate_of_what_is_known_counts_where_it_is_less() -> None:
    def products(flops: int) -> float:
        estimate = pl.CostEstimate(flops=flops, transcendentals=0, bytes_accessed=0)
        x = f(8, 8)
        body = lambda x_ref, out_ref: out_ref.__setitem__(..., jnp.dot(x_ref[...], x_ref[...]))  # noqa: E731
        return work_of(
            pl.pallas_call(body, out_shape=x, cost_estimate=estimate), x
        ).arithmetic.products

    assert products(10**9) == 2 * 8**3
    assert products(500) == 500


def test_places_that_scalars_tell_are_moved_at_every_step() -> None:
    work = work_of(looked_up, f(8, dtype=jnp.int32), f(16, 1, 32))
    assert work.guessed
    assert work.bytes == (8 * 4 + 8 * 4) * 8 * 4


def test_the_slowest_unit_decides_and_parts_share_its_work() -> None:
    chip = load("v5p-8").chip
    work = work_of(matmul, f(256, 256), f(256, 256))
    seconds = kernel_seconds(chip, work, np.array([1, 8])) - chip.launch_seconds
    rate = chip.matmul_flops("float32") * chip.matmul_efficiency
    products = work.arithmetic.on(chip.matrix_side)  # of blocks of 8 x 8, in units of 128 x 128
    assert products == 16 * 16 * work.arithmetic.products
    slowest = max(products / rate, work.bytes / chip.memory_rate)
    np.testing.assert_allclose(seconds, [slowest, slowest / 8])


def test_products_that_are_narrower_than_the_units_leave_part_of_them_idle() -> None:
    def narrow(x_ref: Any, y_ref: Any, out_ref: Any) -> None:
        out_ref[...] = jnp.dot(x_ref[...], y_ref[...])

    call = pl.pallas_call(narrow, out_shape=f(512, 512))
    done = work_of(call, f(512, 128), f(128, 512)).arithmetic
    assert done.on(0) == done.on(128) == done.products == 2 * 512 * 128 * 512
    assert done.on(256) == 2 * done.products  # half of the rows of a unit hold nothing
    work = work_of(call, f(512, 128), f(128, 512))
    slow, fast = load("v6e-8").chip, replace(load("v6e-8").chip, matrix_side=128)
    one = np.ones(1)
    products = [kernel_seconds(c, work, one)[0] - c.launch_seconds for c in (slow, fast)]
    assert products[0] >= products[1]


def test_the_longest_part_of_a_causal_sequence_decides() -> None:
    """Of four blocks of queries the last has four of ten tiles of scores to do."""
    sizes = BlockSizes(128, 128, 128, 1, *[128] * 7)
    queries = f(1, 1, 512, 128)

    def flash(q: Any) -> Any:
        return flash_attention(q, q, q, causal=True, block_sizes=sizes)

    program = autoshard.trace(flash, queries)
    (op,) = (op for op in program.ops if op.kernel is not None)
    (uneven,) = op.kernel.uneven
    np.testing.assert_allclose(uneven.shares, [0.1, 0.2, 0.3, 0.4], atol=1e-5)
    assert uneven.longest(1) == 1.0
    strategies = enumerate_strategies(op.rule, (2, 2), [f.shape for f in op_results(program, op)])
    longest = longest_parts(op, strategies, (2, 2))
    cut = (strategies.assignment >= 0).sum(1)
    together = [one.factor for one in op.rule.joint]  # an early and a late block each
    halved = np.isin(strategies.assignment, together).any(1)
    expected = np.where(halved, 1.0, np.array([1.0, 1.4, 1.6])[cut])
    np.testing.assert_allclose(longest, expected, atol=1e-5)
    chip = load("v5p-8").chip
    seconds = kernel_seconds(chip, op.kernel, strategies.shards, longest)
    assert (seconds >= kernel_seconds(chip, op.kernel, strategies.shards)).all()


def op_results(program: Any, op: Any) -> list[Any]:
    return [program.values[value] for value in op.outputs]


def test_even_parts_have_no_shares() -> None:
    assert work_of(attention, *[f(2, 4, 32, 8)] * 3).uneven == ()
