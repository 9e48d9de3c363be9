"""Soft requirements, priorities and barriers: what they change, and what comes of conflicts."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from autoshard.lower.spmd import lower
from autoshard.lower.verify import verify
from autoshard.program.trace import trace
from autoshard.search.search import InfeasibleError
from autoshard.xla.fusion import fuse
from tests.helpers import concrete_like
from tests.problem.requirements.programs import array, kept, kinds, plan_of, spec

UP = "[0]['up']"


def test_a_price_decides(program, free):
    layout = "[model, data]"
    worth = plan_of(program, f"pin weights.up {layout}").estimate.step_seconds
    loss = worth - free.estimate.step_seconds
    assert loss > 0
    high = plan_of(program, f"{2 * loss}s: pin weights.up {layout}")
    low = plan_of(program, f"{0.5 * loss}s: pin weights.up {layout}")
    assert (kept(high), kept(low)) == ([True], [False])
    assert spec(high, UP) == ("model", "data")
    assert low.estimate.step_seconds == pytest.approx(free.estimate.step_seconds)
    assert low.proof.objective == pytest.approx(free.estimate.step_seconds + 0.5 * loss)


def test_soft_ties_and_limits(program):
    pinned = "pin batch.inputs [model, data]"
    plan = plan_of(program, pinned, "100s: tie batch.inputs with batch.targets")
    assert kept(plan) == [True, True]
    plan = plan_of(program, "100s: limit all_gather count 0", "p0: limit memory 1KiB")
    assert kept(plan) == [True, False]
    plan = plan_of(program, "0s: limit all_gather count 0")
    assert kept(plan) == [False]


def test_a_soft_requirement_gives_way_to_what_must_hold(program, free):
    """Whatever its price; the plan says how it is broken, and is the one without it."""
    must = "pin weights.up [model, data]"
    plan = plan_of(program, "1000s: pin weights.up [data, model]", must)
    assert kept(plan) == [False, True]
    assert plan.requirements[0]["how"] == ["weights.up f32[256,1024] is f32[256@model, 1024@data]"]
    alone = plan_of(program, must).estimate.step_seconds
    assert plan.estimate.step_seconds == pytest.approx(alone)
    assert plan.proof.objective == pytest.approx(alone + 1000)
    # What no plan keeps at all is broken, not refused.
    assert kept(plan_of(program, "1s: forbid weights.up [...]")) == [False]


def test_of_two_soft_requirements_in_conflict_the_dearer_is_kept(program):
    layouts = "[data, model]", "[model, data]"
    for prices in (("100s", "200s"), ("200s", "100s")):
        asked = [f"{p}: pin weights.up {one}" for p, one in zip(prices, layouts, strict=True)]
        plan = plan_of(program, *asked)
        assert kept(plan) == [price == "200s" for price in prices]
        seconds = plan.estimate.step_seconds
        assert plan.proof.objective == pytest.approx(seconds + 100)  # the other is paid


def test_priorities_give_way_to_what_must_hold_and_never_stand_in_a_conflict(program):
    asked = "p0: pin weights.up [data, model]", "p0: pin weights.down [model, data]"
    plan = plan_of(program, *asked, "pin weights.up [model, data]")
    assert kept(plan) == [False, True, True]
    assert plan.requirements[0]["how"] == ["weights.up f32[256,1024] is f32[256@model, 1024@data]"]
    # Two that must hold conflict; what may be dropped has no part in it.
    with pytest.raises(InfeasibleError) as refused:
        plan_of(
            program,
            *asked,
            "5s: pin weights.up [data, ?]",
            "pin weights.up [model, data]",
            "pin weights.up [?, model]",
        )
    conflict = refused.value.conflict
    assert conflict is not None
    assert [str(one) for one in conflict.members] == [
        "pin weights.up [model, data]",
        "pin weights.up [?, model]",
    ]
    assert "p0" not in str(refused.value)
    assert "5s" not in str(refused.value)


def test_priorities_go_before_numbers_and_prices(program):
    """One requirement of p0 outweighs two of p1 and any price, and costs seconds besides."""
    plan = plan_of(
        program,
        "p0: pin weights.up [model, data]",
        "p1: pin weights.up [data, ?]",
        "p1: pin weights.up [?, model]",
        "1000s: pin weights.up [data, model]",
        "p1: pin batch.inputs [model, data]",
    )
    assert kept(plan) == [True, False, False, False, True]
    plan = plan_of(program, "p1: pin weights.up [model, data]", "p0: pin weights.up [data, ?]")
    assert kept(plan) == [False, True]


def test_of_one_priority_as_few_as_possible_are_dropped(program):
    """Whatever that costs in seconds; a lower one decides between what is equally few."""
    two = "p0: pin weights.up [data, ?]", "p0: pin weights.up [?, model]"
    plan = plan_of(program, "p0: pin weights.up [model, data]", *two)
    assert kept(plan) == [False, True, True]
    either = "p0: pin weights.up [model, data]", "p0: pin weights.up [data, model]"
    for layout, which in (("[model, ?]", [True, False, True]), ("[data, ?]", [False, True, True])):
        assert kept(plan_of(program, *either, f"p1: pin weights.up {layout}")) == which


def test_a_barrier_stays_where_it_is_and_keeps_layouts_and_kernels_apart():
    """Shardy's data flow edges: what goes in and what comes out are sharded alike, and each array
    of a barrier for itself. Nothing is fused across it."""

    def step(x, y, apart=True):
        x, y = x + 1, y * 2
        x, y = jax.lax.optimization_barrier((x, y)) if apart else (x, y)
        return jnp.tanh(x), jnp.tanh(y)

    def together(x, y):
        return step(x, y, apart=False)

    arguments = array(64, 128), array(64, 128)
    program = trace(step, *arguments)
    pinned = "pin x [data, model]", "pin y [model, data]"
    plan = plan_of(program, *pinned)
    barriers = [op for op in program.ops if op.primitive == "optimization_barrier"]
    for op, layout in zip(barriers, [(0, 1), (1, 0)], strict=True):
        assert [plan.decisions.stored[v] for v in (*op.inputs, *op.outputs)] == [layout, layout]
    assert not kinds(plan)
    assert "optimization_barrier" in lower(plan, step, *arguments).mlir_text()
    assert fuse(program).materialised[barriers[0].inputs[0]]  # the sum is written before it
    fused = trace(together, *arguments)
    assert not fuse(fused).materialised[fused.ops[0].outputs[0]]
    # Where one side of it is pinned otherwise, something has to move.
    apart = (*pinned, "pin result[0] [model, data]")
    moved = plan_of(program, *apart)
    assert kinds(moved)
    for explicit in (False, True):
        assert verify(moved, step, *arguments, concrete=concrete_like(arguments), explicit=explicit)
    with pytest.raises(InfeasibleError) as refused:
        plan_of(program, *apart, "limit collectives count 0")
    for text in ("pin x [data, model]", "pin result[0] [model, data]", "limit collectives count 0"):
        assert text in str(refused.value)
    assert "pin y" not in str(refused.value)
