"""What a program asks for itself, on a mesh of its own that need not be the plan's."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from autoshard.lower.spmd import lower
from autoshard.lower.verify import numeric_differences, verify_collectives
from autoshard.plan.plan import MeshShape, Plan
from autoshard.plan.text.page import format_plan
from autoshard.problem.requirements.from_program import constraints_of, own_mesh_notes
from autoshard.program.layout_pattern import fitting_order, parse_pattern
from autoshard.program.select import RequirementError
from autoshard.program.trace import Program, trace
from tests.problem.requirements.programs import array, plan_of, spec


def auto(sizes: tuple[int, ...], names: tuple[str, ...]) -> AbstractMesh:
    return AbstractMesh(sizes, names, axis_types=(AxisType.Auto,) * len(names))


def constrained(mesh: AbstractMesh, *entries: object) -> Program:
    """A product whose result is laid out as the user says on a mesh of the user's."""

    def step(x, w):
        x = jax.lax.with_sharding_constraint(x @ w, NamedSharding(mesh, P(*entries)))
        return jnp.tanh(x) @ w

    return trace(step, array(64, 64), array(64, 64))


def seconds(plan: Plan) -> float:
    return plan.estimate.step_seconds


ONE = auto((1, 1), ("data", "model"))
PART = auto((4, 1), ("data", "model"))


@pytest.mark.parametrize("entries", [(), ("data", "model"), (None, ("data", "model"))])
def test_on_one_device_nothing_is_asked(entries):
    program = constrained(ONE, *entries)
    free = plan_of(program, constraints=False)
    plan = plan_of(program)
    assert seconds(plan) == seconds(free)
    assert plan.requirements == ()
    assert plan.notes == (
        "1 sharding of the program is on a mesh (data=1, model=1), the plan's is (data=2, "
        "model=4): on one device they ask for nothing",
    )
    assert "note: 1 sharding of the program is on a mesh" in format_plan(plan)
    assert Plan.from_json(plan.to_json()) == plan


def test_on_one_device_the_mesh_may_be_searched():
    plan = plan_of(constrained(ONE, "data", "model"), mesh=None)
    assert seconds(plan) == seconds(plan_of(constrained(ONE), mesh=None, constraints=False))


def test_of_an_axis_of_one_device_nothing_is_asked():
    whole = plan_of(constrained(PART, None, "model"))
    (only,) = whole.requirements
    assert only["kept"]
    assert "[None, None] free(model)" in only["text"]
    (cut,) = plan_of(constrained(PART, ("data", "model"))).requirements
    assert "[data, None] free(model)" in cut["text"]
    # The same axes with devices along both leave nothing open.
    both = plan_of(constrained(auto((2, 4), ("data", "model")), None, "model"))
    assert seconds(both) > seconds(whole)
    assert both.notes == ()


def test_shardings_of_jit_on_one_device_ask_for_nothing():
    sharding = NamedSharding(ONE, P("data", "model"))

    @jax.jit
    def step(x, w):
        return jnp.tanh(x @ w) @ w

    plain = trace(step, array(64, 64), array(64, 64))
    given = trace(jax.jit(step, in_shardings=(sharding, sharding)), array(64, 64), array(64, 64))
    assert seconds(plan_of(given)) == seconds(plan_of(plain))
    assert spec(plan_of(given), "[0]") == spec(plan_of(plain), "[0]")


def test_a_mesh_of_other_sizes_is_matched_by_name():
    program = constrained(auto((4, 2, 1), ("data", "model", "pod")), "data", "pod")
    plan = plan_of(program)
    assert plan.notes == (
        "1 sharding of the program is on a mesh (data=4, model=2, pod=1), the plan's is (data=2, "
        "model=4): data, model matched by name; of pod, with one device, nothing is asked",
    )
    (asked,) = plan.requirements
    assert asked["kept"]


def test_every_mesh_of_the_program_has_a_note():
    def step(x):
        for mesh in (ONE, ONE, PART):
            x = jnp.sin(jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P())))
        return x

    shape = MeshShape(("data", "rows"), (4, 2))
    found = own_mesh_notes(constraints_of(trace(step, array(64, 64))), shape)
    assert found == (
        "2 shardings of the program are on a mesh (data=1, model=1), the plan's is (data=4, "
        "rows=2): on one device they ask for nothing",
        "1 sharding of the program is on a mesh (data=4, model=1), the plan's is (data=4, "
        "rows=2): data matched by name; of model, with one device, nothing is asked",
    )


def test_free_axes_are_read_as_they_print():
    text = "[data?, None] replicated(pod) free(model, stage)"
    pattern = parse_pattern(text)
    assert str(pattern) == text
    assert pattern.axes == ("data", "pod")
    assert parse_pattern("[data] free(data)").faults(("data",)) == [
        "axis 'data' is both named and free"
    ]


TURNED = auto((2, 4), ("data", "model"))


def test_axes_against_the_order_of_the_mesh_are_planned_on_the_mesh_that_is_proposed():
    """The order of a mesh's axes is free where no layout names them in another one."""
    arguments = (jax.random.normal(jax.random.key(0), (64, 64)),) * 2

    def step(x, w):
        turned = NamedSharding(TURNED, P(("model", "data")))
        x = jax.lax.with_sharding_constraint(x @ w, turned)
        return jnp.cumsum(jnp.tanh(x) @ w, axis=1)

    program = trace(step, *arguments)
    with pytest.raises(RequirementError) as caught:
        plan_of(program)
    proposed = "or give the mesh in that order: --mesh model=4,data=2"
    assert f"write (data, model), {proposed}" in str(caught.value)
    with pytest.raises(RequirementError, match="such as --mesh model=4,data=2, or --ignore"):
        plan_of(program, mesh=None)
    plan = plan_of(program, mesh={"model": 4, "data": 2})
    assert [asked["kept"] for asked in plan.requirements] == [True]
    assert "[(model, data), None]" in plan.requirements[0]["text"]
    lowered = lower(plan, step, *arguments)
    assert verify_collectives(lowered).agrees
    assert numeric_differences(lowered, step, arguments) == []


def test_layouts_that_no_order_of_axes_suits_say_so():
    def step(x):
        for axes in (("data", "model"), ("model", "data")):
            x = jnp.sin(jax.lax.with_sharding_constraint(x, NamedSharding(TURNED, P(axes))))
        return x

    program = trace(step, array(64, 64))
    with pytest.raises(RequirementError) as caught:
        plan_of(program)
    assert str(caught.value).endswith(
        "[(model, data), None] (with_sharding_constraint at test_from_program.py:"
        f"{step.__code__.co_firstlineno + 2}): axes (model, data) are not in mesh order: write "
        "(data, model) (no order of the mesh's axes is that of all layouts)"
    )
    order = ("data", "model", "pod")
    for text, expected in (
        ("[(model, data), pod]", ("model", "data", "pod")),
        ("[(pod, data), model]", ("model", "pod", "data")),
        ("[data, model]", order),
    ):
        assert fitting_order([parse_pattern(text)], order) == expected
