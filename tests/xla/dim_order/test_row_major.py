"""Products that loops save, and those that are read along with them, lie by rows."""

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
from jax.ad_checkpoint import checkpoint_name

from autoshard import compat
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


def shapes(
    step: Callable[..., Any], args: tuple[Any, ...], machine: str
) -> list[tuple[tuple[int, ...], bool]]:
    """Of the products that should lie by rows, and whether each is of the backward pass."""
    program = trace(step, *args)
    found = sorted(analyse(program, load(machine).chip).row_major)
    ops = [program.ops[index] for index in found]
    return [(program.values[op.outputs[0]].shape, op.backward) for op in ops]


@pytest.mark.parametrize("machine", ["v6e-8", "v7x-8"])
def test_saved_products_and_what_is_read_along_with_them_lie_by_rows(machine: str) -> None:
    wide = (8, 256, 64)
    expected = [(wide, False), (wide, False), (wide, True)]
    assert shapes(layers(gated), GATED, machine) == expected


def test_of_a_narrower_type_too() -> None:
    def narrow(x: Any, weights: Any) -> Any:
        wide, down = (one.astype(jnp.bfloat16) for one in weights)
        made = jnp.matmul(x, wide, preferred_element_type=jnp.float32).astype(jnp.bfloat16)
        return x + jax.nn.silu(checkpoint_name(made, "made")) @ down

    def loss(weights: Any, x: Any) -> Any:
        policy = jax.checkpoint_policies.save_only_these_names("made")
        kept = jax.checkpoint(narrow, policy=policy)
        return jnp.sum(lax.scan(lambda x, w: (kept(x, w), None), x, weights)[0] ** 2)

    args = (array(3, 16, 64), array(3, 64, 16)), array(8, 256, 16, dtype=jnp.bfloat16)
    assert shapes(jax.grad(loss), args, "v6e-8") == [((8, 256, 64), False), ((8, 256, 64), True)]


@pytest.mark.parametrize("machine", ["v5e-8", "v5p-8", "h100-8"])
def test_chips_whose_units_are_no_wider_than_lanes_write_rows(machine: str) -> None:
    assert shapes(layers(gated), GATED, machine) == []


def test_products_that_products_alone_read_are_left_to_the_compiler() -> None:
    def linear(x: Any, weights: Any) -> Any:
        wide, narrow = weights
        return (x @ wide) @ narrow

    args = (array(3, 16, 64), array(3, 64, 16)), array(8, 256, 16)
    assert shapes(layers(linear), args, "v6e-8") == []


def test_heads_are_left_to_the_compiler() -> None:
    def by_heads(x: Any, weights: Any) -> Any:
        into, out = weights
        heads = jnp.tanh(jnp.sin(jnp.einsum("bsd,dnh->bsnh", x, into)))
        return jnp.einsum("bsnh,nhd->bsd", heads, out)

    args = (array(3, 16, 4, 16), array(3, 4, 16, 16)), array(8, 256, 16)
    assert shapes(layers(by_heads), args, "v6e-8") == []


def test_what_is_computed_again_is_left_to_the_compiler() -> None:
    def loss(weights: Any, x: Any) -> Any:
        again = jax.checkpoint(gated)
        return jnp.sum(lax.scan(lambda x, w: (again(x, w), None), x, weights)[0] ** 2)

    assert shapes(jax.grad(loss), GATED, "v6e-8") == []


def test_loops_without_a_backward_pass_are_left_to_the_compiler() -> None:
    """As one that stacks a cache."""

    def caches(weights: Any, x: Any) -> Any:
        def turn(x: Any, w: Any) -> Any:
            made = x @ w
            return jnp.tanh(made), made

        return lax.scan(turn, x, weights)

    assert shapes(caches, (array(3, 16, 16), array(8, 256, 16)), "v6e-8") == []


def planned(seed: int = 0, mesh: str = "8") -> Plan:
    given = case(layers(gated), *GATED, mesh=MESHES[mesh], machine=load("v6e-8"))
    plan = random_plan(given, seed)
    found = tuple(sorted(analyse(given.program, load("v6e-8").chip).row_major))
    assert plan.row_major == (found if compat.rows_can_be_asked_for() else ())
    return replace(plan, row_major=found)


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
def test_tpus_alone_are_asked_for_rows(explicit: bool) -> None:
    step = lower(planned(), layers(gated), *GATED, explicit=explicit).jit().trace(*GATED)
    asked = [
        step.lower(lowering_platforms=(platform,)).as_text().count("@LayoutConstraint")
        for platform in ("tpu", "cpu")
    ]
    assert asked == [3 if jax.__version_info__ >= (0, 11) else 0, 0]


def test_they_are_kept_in_plan_files_and_checked(tmp_path: Path) -> None:
    plan = planned()
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json").row_major == plan.row_major
    program = trace(layers(gated), *GATED)
    other = next(op.index for op in program.ops if op.primitive == "logistic")
    wrong = replace(plan, row_major=(*plan.row_major, other, 10_000))
    with pytest.raises(PlanTypeError) as caught:
        lower(wrong, layers(gated), *GATED)
    text = str(caught.value)
    assert f"row_major: {program.ops[other]} is no product" in text
    assert "row_major: there is no op 10000" in text


def test_the_report_says_how_many_products_are_written_by_rows() -> None:
    plan = planned()
    rows = [line.split() for line in format_plan(plan).splitlines()]
    (row,) = (row for row in rows if row[:1] == ["products"])
    assert row[1:5] == ["3", "written", "by", "rows,"]
    assert "by rows" not in format_plan(replace(plan, row_major=()))
