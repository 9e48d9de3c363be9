"""What ragged products are priced at, by what their compilers make of them."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from autoshard.cost.ragged import masked_bytes, times_computed
from autoshard.cost.roofline import op_seconds
from autoshard.cost.step_prices import step_prices
from autoshard.machine.compiler import of_release
from autoshard.machine.load import load
from autoshard.plan.evaluate import evaluate
from autoshard.program.ragged import RAGGED
from autoshard.program.strategies import project_assignment
from autoshard.program.trace import trace
from autoshard.search.search import search
from autoshard.xla import analyse
from tests.helpers import with_compiler

T, D, F, E = 8192, 1024, 2048, 8


def bf16(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


SIZES = jax.ShapeDtypeStruct((E,), jnp.int32)
GRADIENT = lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), [0], [])


def rows(x, w, sizes):
    return lax.ragged_dot(x, w, sizes)


def gradient(x, dy, sizes):
    return lax.ragged_dot_general(x, dy, sizes, GRADIENT, preferred_element_type=jnp.bfloat16)


STEPS = {"rows": (rows, bf16(E, D, F)), "gradient": (gradient, bf16(T, F))}


def priced(name: str, machine: str, release: str = ""):
    fn, right = STEPS[name]
    program = trace(fn, bf16(T, D), right, SIZES)
    loaded = load(machine)
    if release:
        loaded = with_compiler(loaded, without=frozenset())
        compiler = of_release(loaded.chip.compiler, release)
        loaded = replace(loaded, chip=replace(loaded.chip, compiler=compiler))
    prices = step_prices(program, analyse(program, loaded.chip), loaded, (loaded.chips,))
    return prices, next(op for op in program.ops if op.primitive == RAGGED)


def cut_on(prices, op, factor):
    whole = tuple(np.full((1, 1), -1) for _ in op.outputs)
    return project_assignment(op.rule, np.array([[factor]]), whole, prices.mesh_shape)


@pytest.mark.parametrize(
    ("name", "machine", "release", "times"),
    [
        ("rows", "h100-8", "0.10.2", E),
        ("gradient", "h100-8", "0.10.2", E),
        ("gradient", "h100-8", "0.12.0", E),
        ("rows", "v5p-8", "0.10.2", 1),
        ("gradient", "v5p-8", "0.10.2", E),
        ("gradient", "v5p-8", "0.11.0", 1),
    ],
)
def test_compilers_without_a_kernel_compute_once_per_group(name, machine, release, times) -> None:
    prices, op = priced(name, machine, release)
    assert times_computed(prices.machine.chip.compiler, op) == times
    seconds = prices.compute_seconds(op, cut_on(prices, op, -1))[0]
    product = op_seconds(prices.machine.chip, times * op.flops, 0.0)
    assert product <= seconds <= 1.6 * product


def test_rows_are_written_once_per_group_on_gpus_alone() -> None:
    prices, op = priced("rows", "h100-8")
    assert masked_bytes(prices, op, cut_on(prices, op, -1))[0] == E * T * D * 2
    (row,), _ = op.rule.results[0]
    assert masked_bytes(prices, op, cut_on(prices, op, row))[0] == E * T * D * 2 / 8
    group = op.rule.operands[1][0][0]
    assert masked_bytes(prices, op, cut_on(prices, op, group))[0] == T * D * 2
    prices, op = priced("gradient", "h100-8")
    assert masked_bytes(prices, op, cut_on(prices, op, -1))[0] == E * T * (D + F) * 2
    for name in STEPS:
        prices, op = priced(name, "v5p-8")
        assert masked_bytes(prices, op, cut_on(prices, op, -1))[0] == 0


def test_what_is_written_once_per_group_counts_in_the_peak() -> None:
    program = trace(rows, bf16(T, D), bf16(E, D, F), SIZES)
    plan = search(program, "h100-8", mesh={"x": 8}, time_limit=10)
    assert plan.specs["inputs"]["[0]"][0] in ("x", ("x",))  # rows are cut, and nothing is gathered
    assert plan.moves == ()
    local = (T * D + T * F) * 2 / 8 + E * D * F * 2
    assert plan.estimate.peak_bytes >= local + E * T * D * 2 / 8


def test_weights_that_are_cut_over_all_chips_are_gathered_for_cut_rows() -> None:
    program = trace(rows, bf16(8 * T, D), bf16(E, D, F), SIZES)
    plan = search(
        program,
        "v5p-8",
        mesh={"x": 8},
        time_limit=10,
        requirements=["pin w [None, x, None]", "pin x [x, None]"],
    )
    assert [move.kind for move in plan.moves] == ["all_gather"]
    prices = step_prices(program, analyse(program, load("v5p-8").chip), load("v5p-8"), (8,))
    assert evaluate(prices, plan.decisions, ("x",)).estimate.peak_bytes == plan.estimate.peak_bytes


PINNED = ["pin x [x, None]", "pin w [x, None, None]"]


def test_rows_go_to_the_matrices_of_their_groups_where_all_were_computed_otherwise() -> None:
    """A device has a window of a quarter more rows than its part, and its own group alone."""
    program = trace(rows, bf16(T, D), bf16(E, D, F), SIZES)
    plan = search(program, "h100-8", mesh={"x": 8}, time_limit=10, requirements=PINNED)
    window = 5 * T // 8 // 4
    assert [(move.kind, move.axes, move.bytes) for move in plan.moves] == [
        ("all_to_all", ("x",), T // 8 * D * 2),
        ("all_to_all", ("x",), window * F * 2),
    ]
    prices, op = priced("rows", "h100-8")
    both = cut_on(prices, op, op.rule.joint[0].factor)
    chip = prices.machine.chip
    busy, sent = prices.compute_seconds(op, both)[0], sum(move.seconds for move in plan.moves)
    product = op_seconds(chip, 2.0 * window * D * F, 0.0)
    assert product < busy < 2.0 * product  # windows are written and read
    assert plan.estimate.step_seconds == pytest.approx(busy + sent)
    local = (T * D + T * F + E * D * F) * 2 / 8
    assert plan.estimate.peak_bytes >= local + (2 * window * D + window * F) * 2


def test_no_plan_sends_rows_whose_groups_no_axis_divides() -> None:
    sizes = jax.ShapeDtypeStruct((3,), jnp.int32)
    program = trace(rows, bf16(8192, 64), bf16(3, 64, 64), sizes)
    assert not next(op for op in program.ops if op.primitive == RAGGED).rule.joint


def test_rows_that_are_sent_count_in_limits_of_collectives() -> None:
    program = trace(rows, bf16(T, D), bf16(E, D, F), SIZES)
    asked = [*PINNED, "limit all_to_all count 1"]
    plan = search(program, "h100-8", mesh={"x": 8}, time_limit=10, requirements=asked)
    assert [move.kind for move in plan.moves].count("all_to_all") < 2
