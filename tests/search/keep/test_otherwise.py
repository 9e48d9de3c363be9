"""What a plan would cost that keeps a value otherwise is what a search of that step finds."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from autoshard.plan.fits import needed_bytes
from autoshard.program.rewritten import resaved
from autoshard.program.select import RequirementError
from autoshard.program.trace import trace
from autoshard.search.keep.otherwise import keep_choices, otherwise
from autoshard.search.search import search
from tests.helpers import toy_machine

MESH = {"x": 8}


def loss(weights, x):
    def layer(x, weight):
        return x + jnp.tanh(x @ weight) @ weight.T, None

    return jnp.sum(lax.scan(jax.checkpoint(layer), x, weights)[0] ** 2)


@pytest.fixture(scope="module")
def program():
    shapes = jax.ShapeDtypeStruct((4, 64, 64), jnp.float32)
    return trace(jax.grad(loss), shapes, jax.ShapeDtypeStruct((512, 64), jnp.float32))


@pytest.fixture(scope="module")
def plan(program):
    return search(program, toy_machine(), mesh=MESH, baselines=False)


def test_it_is_what_a_search_of_the_other_step_finds(program, plan):
    values = keep_choices(program, plan)
    assert [one.saved for one in values] == [False]
    (product,) = values
    found = otherwise(program, toy_machine(), plan, product)
    other = search(resaved(program, [product.name]), toy_machine(), mesh=MESH, baselines=False)
    assert (found.now, found.instead, found.fits) == ("computed again", "saved", True)
    assert found.seconds == other.estimate.step_seconds - plan.estimate.step_seconds < 0
    assert found.bytes == needed_bytes(other.estimate) - needed_bytes(plan.estimate) > 0
    (back,) = keep_choices(resaved(program, [product.name]), other, ["*dot_general"])
    again = otherwise(resaved(program, [product.name]), toy_machine(), other, back)
    assert (again.now, again.instead) == ("saved", "computed again")
    assert again.seconds == pytest.approx(-found.seconds)
    assert again.bytes == -found.bytes


def test_what_does_not_fit_is_said_with_what_it_would_gain(program, plan):
    limit = needed_bytes(plan.estimate)
    tight = search(program, toy_machine(), mesh=MESH, baselines=False, memory_limit=limit)
    (product,) = keep_choices(program, tight)
    found = otherwise(program, toy_machine(), tight, product)
    assert not found.fits
    assert found.seconds is not None
    assert found.seconds < 0
    assert "no plan" in found.why


def test_unknown_names_and_steps_without_choices_are_refused(program, plan):
    with pytest.raises(RequirementError, match="keeps no value called 'dot'; known: "):
        keep_choices(program, plan, ["dot"])
    plain = trace(lambda x: jnp.sum(x @ x), jax.ShapeDtypeStruct((64, 64), jnp.float32))
    with pytest.raises(RequirementError, match=r"stand in loops \(scan\)"):
        keep_choices(plain, search(plain, toy_machine(), mesh=MESH, baselines=False))
