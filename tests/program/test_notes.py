"""What is said of a program beside its price."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np

from autoshard.program.notes import dead_code, kernels_around, notes_of
from autoshard.program.trace import trace
from autoshard.search.search import search
from tests.helpers import toy_machine
from tests.program.kernels.functions import carried_sum, row_softmax
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


def loss(weights, x):
    return jnp.sum(jnp.tanh(x @ weights) ** 2)


def forgets_the_update(weights, moments, x):
    value, gradient = jax.value_and_grad(loss)(weights, x)
    moments = 0.9 * moments + gradient
    weights = weights - 0.1 * moments / (jnp.sqrt(moments**2) + 1e-8)
    return value


def returns_the_update(weights, moments, x):
    value, gradient = jax.value_and_grad(loss)(weights, x)
    moments = 0.9 * moments + gradient
    return value, weights - 0.1 * moments, moments


def test_a_step_that_forgets_what_it_computes_is_told_so() -> None:
    program = trace(forgets_the_update, f(8, 8), f(8, 8), f(4, 8))
    said = dead_code(program)
    assert said.startswith(f"no result of forgets_the_update depends on {program.dead_ops} of its ")
    assert "1 of its 3 inputs (256 B of 640 B; the first is moments)" in said
    assert "return what the step changes" in said
    assert notes_of(program) == (said,)


def test_inputs_that_are_mostly_unread_are_said_too() -> None:
    program = trace(lambda x, table: x + 1, f(4), f(64, 64))
    assert "depends on 1 of its 2 inputs (16.0 KiB of 16.0 KiB" in dead_code(program)


def test_steps_that_use_what_they_are_given_are_not_told_so() -> None:
    assert dead_code(trace(returns_the_update, f(8, 8), f(8, 8), f(4, 8))) == ""
    assert dead_code(trace(lambda x, unused: x * 2, f(8, 8), f(2))) == ""
    assert dead_code(trace(lambda x: jax.value_and_grad(loss)(x, x)[1], f(8, 8))) == ""


def test_a_kernel_that_stays_whole_says_why() -> None:
    """And one that can be cut says nothing."""
    program = trace(lambda x: (carried_sum(x), carried_sum(x + 1), row_softmax(x)), f(8, 16))
    notes = notes_of(program)
    (note,) = (re.sub(r"at \S+:\d+", "at LINE", one) for one in notes)
    assert note == (
        "every device runs all of the kernel carried_sum (2 ops, the first at LINE): axis 0 of its "
        "grid: the kernel carries scratch along it; axis 1 of its grid: the kernel carries scratch "
        "along it"
    )


def test_what_a_kernel_keeps_whole_is_said_of_the_values_around_it() -> None:
    """A sum that a kernel carries from row to row; nothing of one that it may cut."""
    program = trace(carried_sum, f(16, 8))
    (said,) = kernels_around(program, program.inputs[0])
    assert re.fullmatch(
        r"the kernel \w+ at functions\.py:\d+ keeps of its grid [0-9x]+ whole: axis 0, since .+",
        said,
    )
    program = trace(row_softmax, f(16, 8))
    assert kernels_around(program, program.inputs[0]) == ()
