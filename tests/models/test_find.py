"""A PROGRAM of the user's: what it returns is taken as JAX would take it."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from autoshard.lower.spmd import lower
from autoshard.models.find import ProgramError, call
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
