"""What is said of a program beside its price."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from autoshard.program.notes import notes_of
from autoshard.program.trace import trace
from autoshard.search.search import search
from tests.helpers import toy_machine
from tests.program.steps import f


def called_out(x):
    return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def test_a_plan_says_of_which_ops_the_arithmetic_is_not_known() -> None:
    program = trace(lambda x, y: called_out(x) + called_out(y @ x), f(8, 8), f(8, 8))
    (note,) = notes_of(program)
    assert note.startswith("what 2 pure_callback ops compute is not known (the first at ")
    assert "test_notes.py:" in note
    assert search(program, toy_machine(), time_limit=5).notes == (note,)


def test_nothing_is_said_of_what_is_priced() -> None:
    program = trace(lambda x: jax.lax.ragged_dot(x, x[None], jnp.array([8])), f(8, 8))
    assert notes_of(program) == ()
