"""A PROGRAM of the user's: what it returns is taken as JAX would take it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from autoshard.lower.spmd import lower
from autoshard.models.find import ProgramError, call
from autoshard.plan.plan import Plan
from autoshard.program.rules.user import UserRule
from autoshard.program.trace import trace
from autoshard.search.search import search
from tests.helpers import toy_machine
from tests.problem.requirements.programs import array


def step(x, y):
    return jnp.sin(x) + y


@pytest.mark.parametrize("given", [1, np.int64(1), -1, (1,), [1], [1, -1]])
def test_donated_arguments_are_numbered_as_in_jit(given):
    """Of the plan, and of the step that runs it."""
    shapes = array(64, 64), array(64, 64)
    found = call(lambda: (step, shapes, {"donate_argnums": given}), {}, "here")
    assert found.options == {"donate_argnums": (1,)}
    program = trace(found.fn, *found.args, **found.options)
    assert program.donated == frozenset({1})
    plan = search(program, toy_machine(8), mesh={"x": 8}, options=found.plan_options)
    lowered = lower(plan, step, *shapes)
    text = lowered.jit().trace(*shapes).lower(lowering_platforms=("tpu",)).as_text()
    assert text.count("tf.aliasing_output") == 1


@pytest.mark.parametrize("given", [2, (0, 2), "x"])
def test_what_cannot_be_donated_is_said_of_the_program(given):
    with pytest.raises(ProgramError, match=r"^here: it must return .*\n  donate_argnums"):
        call(lambda: (step, (1, 2), {"donate_argnums": given}), {}, "here")


def two_signatures(x):
    """Two calls of one name, of matrices and of vectors."""
    (wide,) = jax.ffi.ffi_call("call", [jax.ShapeDtypeStruct((8, 4), "float32")])(x)
    (long,) = jax.ffi.ffi_call("call", [jax.ShapeDtypeStruct((8,), "float32")])(wide.sum(1))
    return wide * 2, long * 2


def test_a_plan_keeps_several_rules_of_a_name():
    rules = {"call": ["i j -> i j", UserRule("i -> i")]}
    found = call(lambda: (two_signatures, (array(8, 4),), {"user_rules": rules}), {}, "PROGRAM")
    program = trace(found.fn, *found.args, **found.options)
    plan = search(program, toy_machine(8), mesh={"x": 8}, options=found.plan_options)
    assert plan.options["user_rules"]["call"][0] == "i j -> i j"
    kept = lower(Plan.from_json(plan.to_json()), found.fn, *found.args).program
    assert [op.rule for op in kept.ops] == [op.rule for op in program.ops]
