"""Plans on the program that they were made for, whichever version of JAX traced it."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from autoshard.plan.plan import PlanError
from autoshard.plan.same_program import for_program, renumbered
from autoshard.program.fingerprint import fingerprint, marks, without_kinds
from autoshard.program.rules.user import UserRule
from autoshard.program.trace import trace
from tests.helpers import MESHES, case, random_plan


def f(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def step(x: Any, w: Any) -> Any:
    return jnp.tanh(x @ w) * jnp.arange(8.0)


def step_with_more_constants(x: Any, w: Any) -> Any:
    """`step`, as a version of JAX may trace it that writes scalars as arrays."""
    return jnp.tanh(x @ w) * (jnp.arange(4.0, 12.0) - jnp.full((8,), 4.0))


ARGS = f(16, 8), f(8, 8)


def test_a_plan_on_its_own_program_is_itself():
    plan = random_plan(given := case(step, *ARGS, mesh=MESHES["2x4"]), 0)
    assert for_program(plan, given.program) is plan


def test_decisions_go_over_to_a_trace_with_other_constants():
    given = case(step, *ARGS, mesh=MESHES["2x4"])
    other = case(step_with_more_constants, *ARGS, mesh=MESHES["2x4"])
    assert len(other.program.values) > len(given.program.values)
    assert other.program.fingerprint == given.program.fingerprint
    for seed in range(5):
        plan = random_plan(given, seed)
        moved = for_program(plan, other.program).decisions
        places = [k for k, layout in enumerate(moved.stored) if layout is not None]
        assert places == [value.index for value in other.program.values if not value.free]
        encoded = given.built.encode(plan.decisions), other.built.encode(moved)
        assert None not in encoded
        assert renumbered(moved, given.program) == plan.decisions


def test_products_by_rows_go_over_to_a_trace_with_other_constants():
    """With more constants ahead of the product."""

    def later(x: Any, w: Any) -> Any:
        return jnp.tanh((x * (jnp.arange(4.0, 12.0) - jnp.full((8,), 4.0))) @ w)

    def plain(x: Any, w: Any) -> Any:
        return jnp.tanh((x * jnp.arange(8.0)) @ w)

    given, other = (case(one, *ARGS, mesh=MESHES["8"]) for one in (plain, later))
    here, there = (
        next(op.index for op in one.program.ops if op.primitive == "dot_general")
        for one in (given, other)
    )
    assert here != there
    plan = replace(random_plan(given, 0), row_major=(here,))
    assert for_program(plan, other.program).row_major == (there,)


@pytest.mark.parametrize(
    ("other", "args", "where"),
    [
        (step, (f(16, 8), f(8, 16)), "is the input [1], here f32[8,16]"),
        (lambda x, w: jnp.sin(x @ w) * jnp.arange(8.0), ARGS, "is sin at (top) "),
        (lambda x, w: jnp.tanh(x @ w.T) * jnp.arange(8.0), ARGS, "is transpose at (top) "),
        (lambda x, w: jnp.tanh(x @ w), ARGS, "is return at (top) "),
    ],
)
def test_the_first_difference_is_named(other: Any, args: Any, where: str):
    plan = random_plan(case(step, *ARGS, mesh=MESHES["8"]), 0)
    if other is step:
        other = lambda x, w: x @ w  # noqa: E731, the arguments keep their names
    program = trace(other, *args, name="other")
    with pytest.raises(PlanError) as error:
        for_program(plan, program)
    said = str(error.value)
    assert said.startswith(
        f"the plan was made for program 'step' ({plan.fingerprint}), but 'other' traces to "
        f"{program.fingerprint}: the first difference "
    )
    assert where in said
    line = inspect.getsourcelines(other)[1]
    if "input" not in where and "return" not in where:
        assert f"(test_same_program.py:{line})" in said


def rows(x: Any) -> Any:
    return jax.ffi.ffi_call("rows", jax.ShapeDtypeStruct((8,), jnp.float32))(jnp.sin(x)) * 2


RULES = {
    "cut": UserRule("i j -> i", replicate=("j",)),
    "whole": UserRule("i j -> i", replicate=("i", "j")),
    "sum": UserRule("i j -> i", reduction={"j": "sum"}),
    "max": UserRule("i j -> i", reduction={"j": "max"}),
}


@pytest.mark.parametrize("other", ["whole", "sum", "max"])
def test_rules_whose_factors_are_of_other_kinds_are_of_other_programs(other: str):
    given = case(rows, f(8, 8), mesh=MESHES["8"], user_rules={"rows": RULES["cut"]})
    plan = random_plan(given, 0)
    program = trace(rows, f(8, 8), user_rules={"rows": RULES[other]})
    with pytest.raises(PlanError) as caught:
        for_program(plan, program)
    line = inspect.getsourcelines(rows)[1] + 1
    assert f"the first difference is ffi_call at (top) (test_same_program.py:{line})" in str(
        caught.value
    )
    assert f"by the rule {program.ops[1].rule} here" in str(caught.value)
    names = {rule: trace(rows, f(8, 8), user_rules={"rows": RULES[rule]}) for rule in RULES}
    assert len({one.fingerprint for one in names.values()}) == len(RULES)


def test_plans_of_before_kinds_were_looked_at_are_read():
    """Their fingerprints and marks are of dimensions alone, and their first difference is named."""
    plan = random_plan(given := case(step, *ARGS, mesh=MESHES["8"]), 0)
    lines = without_kinds(given.program.outline)
    old = replace(plan, fingerprint=fingerprint(lines), marks=marks(lines))
    assert old.fingerprint != plan.fingerprint
    assert for_program(old, given.program) is old
    other = trace(lambda x, w: jnp.sin(x @ w) * jnp.arange(8.0), *ARGS)
    with pytest.raises(PlanError, match=r"the first difference is sin at \(top\) "):
        for_program(old, other)


def test_a_program_that_ends_earlier():
    plan = random_plan(case(lambda x: (jnp.sin(x), jnp.cos(x)), f(8, 8), mesh=MESHES["8"]), 0)
    shorter = trace(lambda x: jnp.sin(x), f(8, 8))
    with pytest.raises(PlanError, match=r"it ends where the planned one goes on|first difference"):
        for_program(plan, shorter)


def test_plans_of_earlier_versions_name_no_difference():
    plan = replace(random_plan(case(step, *ARGS, mesh=MESHES["8"]), 0), marks="")
    with pytest.raises(PlanError, match=r"traces to [0-9a-f]{16}: other shapes, other code"):
        for_program(plan, trace(lambda x: x, f(3)))


def test_damaged_decisions_are_refused():
    plan = random_plan(given := case(step, *ARGS, mesh=MESHES["8"]), 0)
    fewer = replace(plan.decisions, stored=(None, *plan.decisions.stored[1:]))
    with pytest.raises(PlanError, match=r"the plan is damaged: it decides \d+ values and \d+ ops"):
        for_program(replace(plan, decisions=fewer), given.program)
