"""Products that loops save lie by columns where the backward pass reads them so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import autoshard
from autoshard.lower import lower
from autoshard.machine.load import load
from autoshard.plan.plan import Plan
from autoshard.plan.text.page import format_plan
from autoshard.plan.types.plan_check import PlanTypeError
from autoshard.program.trace import trace
from autoshard.xla import analyse
from tests.helpers import MESHES, case, concrete_like, random_plan

SAVED = jax.checkpoint_policies.dots_saveable


def array(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def layers(layer: Callable[..., Any]) -> Callable[..., Any]:
    """The gradients of three layers in a loop that saves products."""
    kept = jax.checkpoint(layer, policy=SAVED)

    def loss(weights: Any, x: Any) -> Any:
        return jnp.sum(lax.scan(lambda x, w: (kept(x, w), None), x, weights)[0] ** 2)

    return jax.grad(loss)


def gated(x: Any, weights: Any) -> Any:
    gate, up, down = weights
    return x + (jax.nn.silu(x @ gate) * (x @ up)) @ down


GATED = (array(3, 16, 64), array(3, 16, 64), array(3, 64, 16)), array(8, 256, 16)


def shapes(step: Callable[..., Any], args: tuple[Any, ...], machine: str) -> list[tuple[int, ...]]:
    """Of the products that should lie by columns."""
    program = trace(step, *args)
    found = analyse(program, load(machine).chip).column_major
    return [program.values[program.ops[index].outputs[0]].shape for index in sorted(found)]


@pytest.mark.parametrize("machine", ["v6e-8", "v7x-8"])
def test_what_functions_of_a_backward_pass_read_is_written_by_columns(machine: str) -> None:
    assert shapes(layers(gated), GATED, machine) == [(8, 256, 64)] * 2


@pytest.mark.parametrize("machine", ["v5e-8", "v5p-8", "h100-8"])
def test_chips_whose_units_are_no_wider_than_lanes_write_rows(machine: str) -> None:
    assert shapes(layers(gated), GATED, machine) == []


def test_products_that_products_alone_read_lie_by_rows() -> None:
    def linear(x: Any, weights: Any) -> Any:
        wide, narrow = weights
        return (x @ wide) @ narrow

    args = (array(3, 16, 64), array(3, 64, 16)), array(8, 256, 16)
    assert shapes(layers(linear), args, "v6e-8") == []


def test_products_whose_rows_are_summed_for_a_bias_lie_by_rows() -> None:
    def biased(x: Any, weights: Any) -> Any:
        wide, bias, narrow = weights
        return x + jax.nn.gelu(x @ wide + bias) @ narrow

    args = (array(3, 16, 64), array(3, 64), array(3, 64, 16)), array(8, 256, 16)
    assert shapes(layers(biased), args, "v6e-8") == []


def test_heads_lie_by_rows() -> None:
    def by_heads(x: Any, weights: Any) -> Any:
        into, out = weights
        heads = jnp.tanh(jnp.sin(jnp.einsum("bsd,dnh->bsnh", x, into)))
        return jnp.einsum("bsnh,nhd->bsd", heads, out)

    args = (array(3, 16, 4, 16), array(3, 4, 16, 16)), array(8, 256, 16)
    assert shapes(layers(by_heads), args, "v6e-8") == []


def test_what_the_step_returns_lies_by_rows() -> None:
    """A cache that a loop without a backward pass stacks."""

    def caches(weights: Any, x: Any) -> Any:
        def turn(x: Any, w: Any) -> Any:
            made = x @ w
            return jnp.tanh(made), made

        return lax.scan(turn, x, weights)

    assert shapes(caches, (array(3, 16, 16), array(8, 256, 16)), "v6e-8") == []


@pytest.mark.parametrize(
    ("length", "layout", "count"),
    [(256, "[x, ...]", 2), (192, "[x, ...]", 0), (256, "[None, x, ...]", 0)],
)
def test_rows_of_one_device_have_to_fill_lanes(length: int, layout: str, count: int) -> None:
    program = trace(layers(gated), GATED[0], array(8, length, 16))
    pins = [f"pin x {layout}"]
    plan = autoshard.search(program, load("v6e-8"), mesh={"x": 8}, requirements=pins)
    assert len(plan.column_major) == count


def planned(seed: int = 0, mesh: str = "8") -> Plan:
    plan = random_plan(case(layers(gated), *GATED, mesh=MESHES[mesh], machine=load("v6e-8")), seed)
    program = trace(layers(gated), *GATED)
    columns = tuple(sorted(analyse(program, load("v6e-8").chip).column_major))
    return replace(plan, column_major=columns)


@pytest.mark.parametrize("explicit", [False, True])
@pytest.mark.parametrize("mesh", ["8", "2x4"])
def test_a_lowered_plan_computes_the_same(mesh: str, explicit: bool) -> None:
    for seed in range(2):
        plan = planned(seed, mesh)
        lowered = lower(plan, layers(gated), *GATED, explicit=explicit)
        arrays = jax.tree.map(lambda one: one / 16, concrete_like(GATED))
        found = lowered.jit()(*jax.device_put(arrays, lowered.in_shardings))
        for mine, theirs in zip(found, layers(gated)(*arrays), strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("explicit", [False, True])
def test_tpus_alone_are_asked_for_columns(explicit: bool) -> None:
    step = lower(planned(), layers(gated), *GATED, explicit=explicit).jit().trace(*GATED)
    asked = [
        step.lower(lowering_platforms=(platform,)).as_text().count("@LayoutConstraint")
        for platform in ("tpu", "cpu")
    ]
    assert asked == [2, 0]


def test_columns_are_kept_in_plan_files_and_checked(tmp_path: Path) -> None:
    plan = planned()
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json").column_major == plan.column_major
    program = trace(layers(gated), *GATED)
    other = next(op.index for op in program.ops if op.primitive == "logistic")
    wrong = replace(plan, column_major=(*plan.column_major, other, 10_000))
    with pytest.raises(PlanTypeError) as caught:
        lower(wrong, layers(gated), *GATED)
    text = str(caught.value)
    assert f"column_major: {program.ops[other]} is no product of rows and columns" in text
    assert "column_major: there is no op 10000" in text


def test_the_report_says_how_many_products_lie_by_columns() -> None:
    plan = planned()
    rows = [line.split() for line in format_plan(plan).splitlines()]
    (row,) = (row for row in rows if row[:1] == ["products"])
    assert row[1:5] == ["2", "saved", "by", "columns,"]
    assert "by columns" not in format_plan(replace(plan, column_major=()))
