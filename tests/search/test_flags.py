"""What a plan says of other flags of its compiler."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import autoshard
from autoshard.machine.load import load, with_flags_named
from autoshard.search.assemble import priced_anew, prices_of
from autoshard.units import format_seconds


def train(stack, x):
    def loss(stack):
        last = lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, stack)[0]
        return jnp.sum(last.astype(jnp.float32) ** 2)

    return jax.tree.map(lambda w, slope: w - 0.1 * slope, stack, jax.grad(loss)(stack))


def array(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


def planned(machine, **options):
    program = autoshard.trace(train, array(32, 8192, 8192), array(8192, 8192))
    pins = ["pin stack [None, x, None]", "pin x [x, None]", "pin result [None, x, None]"]
    given = {"requirements": pins, "time_limit": 10.0, **options}
    return program, autoshard.search(program, machine, mesh={"x": 8}, **given)


def test_a_plan_says_which_flags_would_take_how_much_off_it():
    limit = 3.2 * 2**30  # no room for the whole stack
    program, plan = planned("h100-8", memory_limit=limit, by_schedule=False)
    (told,) = (note for note in plan.notes if "flags" in note)
    machine = load("h100-8@recipe")
    other = priced_anew(plan, prices_of(plan, program, machine)).estimate
    assert other.expected_seconds < 0.97 * plan.estimate.expected_seconds
    assert format_seconds(other.expected_seconds) in told
    assert told.endswith("search for --machine h100-8@recipe")
    _, anew = planned(machine, memory_limit=limit)
    assert anew.estimate.expected_seconds <= other.expected_seconds * (1 + 1e-6)
    assert anew.machine == "h100-8@recipe"
    assert not any("flags" in note for note in anew.notes)


@pytest.mark.parametrize("machine", ["v5e-8", "v5p-8"])
def test_of_flags_that_are_not_passed_on_nothing_is_said(machine):
    _, plan = planned(machine)
    assert not any("flags" in note for note in plan.notes)


def test_without_schemes_nothing_is_compared():
    _, plan = planned("h100-8", memory_limit=3.2 * 2**30, baselines=False)
    assert not any("flags" in note for note in plan.notes)


def test_flags_of_a_machine_replace_those_of_its_name():
    assert with_flags_named("h100-64@recipe", "default") == "h100-64@default"
    assert with_flags_named("a@b/mine.toml", "recipe") == "a@b/mine.toml@recipe"
