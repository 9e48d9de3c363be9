"""What arrays take in tiles: by hand, and against all orders of the dimensions."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.cost.tiling import padding
from autoshard.machine.load import load
from autoshard.solve.evaluate import evaluate
from tests.helpers import case, random_plan, toy_machine
from tests.random_programs import random_program

TPU = load("v5e-1").chip


@pytest.mark.parametrize(
    ("sizes", "whole"),
    [
        ((64, 16, 196, 196), 64 * 16 * 196 * 256),
        ((64, 64), 64 * 128),
        ((4096, 3), 4096 * 4),
        ((4096, 1), 4096),
        ((100, 5), 128 * 8),
        ((2, 3, 5), 3 * 2 * 128),
        ((7, 0), 0),
        ((7,), 7),
        ((), 1),
    ],
)
def test_the_tiles_that_waste_least_are_filled(sizes: tuple[int, ...], whole: int) -> None:
    factor = padding(np.array([sizes], dtype=np.int64), TPU)
    assert factor.shape == (1,)
    assert factor[0] * math.prod(sizes) == pytest.approx(whole)


@given(st.lists(st.lists(st.integers(1, 300), min_size=3, max_size=3), min_size=1, max_size=4))
def test_no_order_of_the_dimensions_takes_less(rows: list[list[int]]) -> None:
    def filled(size: int, tile: int) -> int:
        return math.ceil(size / tile) * tile

    for sizes, factor in zip(rows, padding(np.array(rows), TPU), strict=True):
        wholes = []
        for *outer, second, first in itertools.permutations(sizes):
            rows_of_tile = next(n for n in (1, 2, 4, 8) if n >= min(second, 8))
            wholes.append(math.prod(outer) * filled(second, rows_of_tile) * filled(first, 128))
        assert factor * math.prod(sizes) == pytest.approx(min(wholes))


def test_without_tiles_nothing_is_filled() -> None:
    chip = replace(TPU, lanes=1, sublanes=1)
    assert padding(np.array([[3, 5], [7, 9]]), chip).tolist() == [1.0, 1.0]
    assert load("h100-8").chip.lanes == load("h100-8").chip.sublanes == 1


def test_a_problem_counts_them_as_the_evaluator_does() -> None:
    """On random programs, whose small arrays fill few tiles of a toy's memory."""
    machine = toy_machine(4)
    tiled = replace(machine, chip=replace(machine.chip, lanes=8, sublanes=4))
    more = 0
    for seed in range(20):
        fn, args, _ = random_program(seed)
        plain, whole = (case(fn, *args, mesh={"x": 2, "y": 2}, machine=m) for m in (machine, tiled))
        plan, prices = random_plan(whole, seed), whole.built.prices
        choices = whole.built.encode(plan.decisions)
        assert choices is not None
        priced = evaluate(whole.built.problem, choices)
        assert plan.estimate.peak_bytes == pytest.approx(
            priced.peak + prices.program.constant_bytes, abs=1
        )
        without = plain.built.encode(plan.decisions)
        assert without is not None
        more += priced.peak > evaluate(plain.built.problem, without).peak
        assert priced.objective == pytest.approx(plan.estimate.step_seconds, rel=1e-9)
        # Gathers of inner dimensions take longer with tiles; nothing takes less.
        assert priced.objective >= evaluate(plain.built.problem, without).objective * (1 - 1e-9)
    assert more >= 15


def alone(x):
    return jnp.sort(jnp.pad(x, ((0, 0), (0, 60), (0, 0))))


def beside(x):
    return jnp.pad(x, ((0, 0), (0, 60), (0, 0))) * 2


@pytest.mark.parametrize("step", [alone, beside])
def test_a_pad_of_its_own_goes_tile_by_tile(step):
    """What another kernel runs takes no time of its own; a part takes a part of the time."""
    machine = load("v5e-8")
    x = jax.ShapeDtypeStruct((16, 196, 1024), jnp.bfloat16)
    given = case(step, x, mesh={"x": 8}, machine=machine)
    strategies = given.built.op_strategies
    (pad,) = (op for op in given.program.ops if op.primitive == "pad")
    taken = given.built.prices.compute_seconds(pad, strategies[pad.index])
    tiles = 16 * 256 * 1024 / (8 * 128) / strategies[pad.index].shards
    expected = tiles * machine.chip.pad_tile_seconds
    if step is beside:
        assert (taken < expected / 50).all()  # what it computes, as other elementwise ops
        return
    np.testing.assert_allclose(taken, expected, rtol=0.01)  # and the start of a kernel
    moved = 2 * 16 * (196 + 256) * 1024 / strategies[pad.index].shards
    assert (taken > 3 * moved / machine.chip.memory_rate).all()
