"""Sums over chips of several slices, settled in two steps: scattered, and then added up."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import autoshard
from autoshard.lower.spmd import lower
from autoshard.lower.verify import numeric_differences, verify_collectives, verify_written
from autoshard.machine.load import load
from autoshard.plan.plan import Plan
from autoshard.plan.strategies_of import ChosenStrategies
from autoshard.plan.types.plan_check import PlanTypeError, check_plan
from tests.helpers import Case, case, concrete_like, random_plan, toy_machine

SLICES = load("2xv5e-4")
GRIDS = {"2x4": {"slice": 2, "x": 4}, "2x2x2": {"slice": 2, "x": 2, "y": 2}}


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def gradient(x, dy):
    return jnp.einsum("bi,bj->ij", x, dy)


def heads(x, dy, v):
    """The same with heads, whose terms are of three dimensions, and a reader."""
    dw = jnp.einsum("bsd,bshk->dhk", x, dy)
    return dw * 2, jnp.einsum("dhk,k->dh", dw, v)


ARGS = f32(64, 8), f32(64, 16)
HEADS = f32(8, 4, 16), f32(8, 4, 8, 8), f32(8)


def is_in_steps(given: Case, plan: Plan) -> bool:
    chosen = ChosenStrategies(plan.decisions, given.mesh.sizes, given.built.prices.evaluated)
    ops = (op for op in given.program.ops if plan.decisions.assignment[op.index] is not None)
    return any(chosen(op).in_steps[0] for op in ops)


@pytest.fixture(scope="module")
def hybrid():
    """Of a product whose batch is over all chips, parts within slices are wanted."""
    program = autoshard.trace(gradient, *ARGS)
    pins = ["pin x [(slice, x), None]", "pin dy [(slice, x), None]", "pin result [x, None]"]
    plan = autoshard.search(program, SLICES, mesh=GRIDS["2x4"], requirements=pins, baselines=False)
    return program, plan


def test_parts_alone_go_between_slices(hybrid):
    _, plan = hybrid
    assert [(move.kind, move.axes, move.value) for move in plan.moves] == [
        (
            "reduce_scatter",
            ("x",),
            "f32[8, 16]{unreduced=slice,x} -> f32[8@x, 16]{unreduced=slice}",
        ),
        ("all_reduce", ("slice",), "f32[8@x, 16]{unreduced=slice} -> f32[8@x, 16]"),
    ]
    first, second = plan.moves
    assert (first.bytes, second.bytes) == (8 * 16 * 4, 8 * 16 * 4 // 4)


@pytest.mark.parametrize("mesh", ["2x4", "2x2x2"])
@pytest.mark.parametrize(("fn", "args"), [(gradient, ARGS), (heads, HEADS)])
def test_random_plans_make_their_collectives_and_the_right_numbers(fn, args, mesh):
    given = case(fn, *args, mesh=GRIDS[mesh], machine=SLICES)
    found = 0
    for seed in range(400):
        plan = random_plan(given, seed)
        if not is_in_steps(given, plan):
            continue
        found += 1
        check_plan(given.program, plan)
        lowered, written = lower(plan, fn, *args), lower(plan, fn, *args, explicit=True)
        for comparison in (verify_collectives(lowered), verify_written(written)):
            assert comparison.agrees, f"seed {seed}\n{comparison}"
        for one in (lowered, written):
            assert numeric_differences(one, fn, concrete_like(args)) == [], seed
        if found == 4:
            return
    pytest.fail(f"only {found} plans of 400 settle a sum in steps")


@pytest.mark.parametrize("machine", [toy_machine(8), load("h100-8"), load("v5e-8")])
def test_sums_are_settled_in_steps_between_slices_alone(machine):
    given = case(gradient, *ARGS, mesh=GRIDS["2x4"], machine=machine)
    assert not any(one.in_steps.any() for one in given.built.op_strategies.values())


def test_what_propagation_completes_is_settled_as_the_compiler_does():
    mesh = jax.make_mesh((2, 4), ("slice", "x"), axis_types=(jax.sharding.AxisType.Auto,) * 2)

    def step(x, dy):
        laid = NamedSharding(mesh, PartitionSpec(("slice", "x"), None))
        x, dy = (jax.lax.with_sharding_constraint(one, laid) for one in (x, dy))
        made = gradient(x, dy)
        wanted = NamedSharding(mesh, PartitionSpec("x", None))
        return jax.lax.with_sharding_constraint(made, wanted)

    program = autoshard.trace(step, f32(65536, 8), f32(65536, 16))
    plan = autoshard.search(program, SLICES, mesh=GRIDS["2x4"], complete=True, baselines=False)
    assert any("unreduced=slice" in move.value for move in plan.moves)
    assert not any("unreduced" in move.value.partition(" -> ")[2] for move in plan.moves)


def test_only_products_are_settled_in_steps():
    """What sums otherwise has no terms to keep."""
    program = autoshard.trace(lambda x: jnp.sum(x * 2, 0), f32(64, 8, 16))
    given = case(lambda x: jnp.sum(x * 2, 0), f32(64, 8, 16), mesh=GRIDS["2x4"], machine=SLICES)
    assert not any(one.in_steps.any() for one in given.built.op_strategies.values())
    (op,) = [op for op in program.ops if op.primitive == "reduce_sum"]
    base = random_plan(given, 0)
    assignment, stored = list(base.decisions.assignment), list(base.decisions.stored)
    assignment[op.index], stored[op.outputs[0]] = (op.rule.operands[0][0][0],) * 2, (-1, 0)
    other = replace(
        base,
        decisions=replace(base.decisions, assignment=tuple(assignment), stored=tuple(stored)),
    )
    with pytest.raises(PlanTypeError, match="one collective must settle it over all of slice, x"):
        check_plan(program, other)
