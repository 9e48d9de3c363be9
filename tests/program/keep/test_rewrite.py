"""What saves other values for the backward pass computes the same, to the last bit."""

from __future__ import annotations

import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback

from autoshard import compat
from autoshard.program.keep import KeepError, find_residuals, with_saved
from tests.program.keep import programs
from tests.program.keep.one_by_one import run
from tests.program.keep.programs import CHECKPOINTS, PROGRAMS


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


def traced(name, checkpoint):
    fn, args = PROGRAMS[name](CHECKPOINTS[checkpoint])
    closed = compat.drop_dead_code(jax.jit(fn).trace(*args).jaxpr)
    return closed, jax.tree.leaves(args)


@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_numbers_are_equal_to_the_last_bit(name, checkpoint):
    closed, flat = traced(name, checkpoint)
    dice = random.Random(name + checkpoint)
    residuals = find_residuals(closed)
    names = [one.name for one in residuals.values]
    assert len(names) > 2
    wanted = run(closed, flat)
    some = [{one for one in names if dice.random() < 0.4} for _ in range(3)]
    for saved in (residuals.saved_as_written(), set(), set(names), *some):
        changed = with_saved(closed, residuals, saved)
        for one, other in zip(run(changed, flat), wanted, strict=True):
            np.testing.assert_array_equal(one, other)


def loops(closed):
    """The forward and the backward loop of a step."""
    found = [one for one in closed.jaxpr.eqns if one.primitive.name == "scan"]
    assert len(found) == 2
    return found


def primitives(loop):
    return [one.primitive.name for one in loop.params["jaxpr"].eqns]


def again(loop):
    """Primitives that a loop computes again."""
    equations = loop.params["jaxpr"].eqns
    stacks = [(one.primitive.name, str(one.source_info.name_stack)) for one in equations]
    return [name for name, stack in stacks if "rematted_computation" in stack]


def stacks(loop):
    """The shapes of what a loop hands out by turns."""
    carries = compat.scan_counts(loop.params)[1]
    return sorted(var.aval.shape for var in loop.outvars[carries:])


@pytest.mark.parametrize("checkpoint", ["plain", "checkpoint", "dots"])
def test_what_is_written_does_not_matter_once_all_is_chosen(checkpoint):
    closed, _ = traced("mlp", checkpoint)
    residuals = find_residuals(closed)
    nothing = with_saved(closed, residuals, ())
    products = [one.name for one in residuals.values if one.primitive == "dot_general"]
    dots = with_saved(closed, residuals, products)
    forward, backward = loops(nothing)
    assert stacks(forward) == [(3,), (3, 2, 4)]  # peaks, and what is carried
    assert again(backward).count("dot_general") == 1  # the second is read by nothing
    forward, backward = loops(dots)
    assert stacks(forward) == [(3,), (3, 2, 4), (3, 2, 8)]
    assert "tanh" in again(backward)
    assert "dot_general" not in again(backward)
    assert primitives(forward).count("dot_general") == 2


def test_saving_everything_computes_again_what_derivatives_alone_need():
    closed, _ = traced("mlp", "checkpoint")
    residuals = find_residuals(closed)
    _, backward = loops(with_saved(closed, residuals, residuals.homes))
    assert not {"dot_general", "tanh", "logistic"} & set(again(backward))


def test_what_the_backward_pass_makes_smaller_may_be_saved_in_its_place():
    """A mask is an eighth of the numbers that it is of; the forward pass then makes it."""
    closed, _ = traced("masked", "checkpoint")
    residuals = find_residuals(closed)
    masks = [one for one in residuals.values if one.name.startswith("backward/")]
    (product,) = [one for one in residuals.values if one.name == "dot_general"]
    (mask,) = [one for one in masks if one.primitive == "gt"]
    assert mask.dtype == "bool"
    assert mask.bytes * 8 == product.bytes
    assert mask.reads == (product.name,)
    assert mask.needed
    assert not product.needed
    saved = [one.name for one in residuals.values if one.label == "hidden"] + [mask.name]
    assert product.name in residuals.recomputed(set(saved) - {mask.name})
    assert product.name not in residuals.recomputed(saved)
    forward, backward = loops(with_saved(closed, residuals, saved))
    assert "gt" in primitives(forward)
    assert "gt" not in primitives(backward)
    (made,) = [one for one in forward.params["jaxpr"].eqns if one.primitive.name == "gt"]
    stack = str(made.source_info.name_stack)
    assert "transpose" not in stack
    assert "rematted_computation" not in stack


def test_names_and_lines_stay():
    with open(programs.__file__) as file:
        told = 'hidden = checkpoint_name(jnp.tanh(x @ weights["up"]), "hidden")'
        (number,) = [k for k, line in enumerate(file, 1) if told in line]
    here = {f"programs.py:{number}"}
    closed, _ = traced("mlp", "plain")
    residuals = find_residuals(closed)
    hidden = [one for one in residuals.values if one.label == "hidden"]
    assert {one.primitive for one in hidden} == {"tanh", "name"}
    assert {one.line for one in hidden} == here
    assert [one.bytes for one in hidden] == [3 * 2 * 8 * 8] * 2
    forward, backward = loops(with_saved(closed, residuals, ()))
    for loop in (forward, backward):
        lines = {
            compat.source_line(one)
            for one in loop.params["jaxpr"].eqns
            if one.primitive.name == "name"
        }
        assert lines == here


def test_names_tell_values_apart_and_are_the_same_whatever_the_program_saves():
    found = [find_residuals(traced("transformer", one)[0]) for one in ("plain", "checkpoint")]
    plain, checkpointed = ([one.name for one in residuals.values] for residuals in found)
    assert len(set(plain)) == len(plain)
    assert set(checkpointed) <= set(plain)


@pytest.mark.parametrize("name", ["mlp", "transformer"])
def test_a_policy_over_names_saves_the_same(name):
    """What JAX itself saves, told to save the values of a name alone."""
    told, (closed, _) = traced(name, "names")[0], traced(name, "checkpoint")
    residuals = find_residuals(closed)
    hidden = [one.name for one in residuals.values if one.primitive == "name"]
    ours, theirs = loops(with_saved(closed, residuals, hidden)), loops(told)
    assert stacks(ours[0]) == stacks(theirs[0])
    assert residuals.recomputed(residuals.homes) == ()
    assert not set(hidden) & set(residuals.recomputed(hidden))
    assert set(residuals.recomputed(())) > set(residuals.recomputed(hidden))


def test_unknown_names_are_refused():
    closed, _ = traced("mlp", "plain")
    with pytest.raises(KeepError, match=r"is called moon; those of this program: dot_general, "):
        with_saved(closed, find_residuals(closed), ["moon"])


def test_what_may_not_run_twice_must_be_saved():
    """Numbers that the host gives."""

    def body(x, weight):
        noise = io_callback(np.sin, x, lax.stop_gradient(x))
        return jnp.sin(x @ weight) * noise, None

    grads = jax.grad(lambda w, x: jnp.sum(lax.scan(body, x, w)[0]))
    closed = jax.jit(grads).trace(jnp.ones((3, 4, 4)), jnp.ones((2, 4))).jaxpr
    residuals = find_residuals(closed)
    (noise,) = [one.name for one in residuals.values if one.pinned]
    assert noise == "io_callback"
    with pytest.raises(KeepError, match=r"may not run twice:\n  io_callback \(test_rewrite.py:"):
        with_saved(closed, residuals, ())
    backward = loops(with_saved(closed, residuals, [noise]))[1]
    assert "io_callback" not in primitives(backward)
    assert "dot_general" in again(backward)


def test_a_step_without_a_backward_pass_has_no_candidates():
    closed = jax.make_jaxpr(lambda x: lax.scan(lambda c, x: (c + x, c), 0.0, x))(jnp.ones(3))
    residuals = find_residuals(closed)
    assert residuals.values == ()
    assert with_saved(closed, residuals, ()) is closed


def checkpoints(closed):
    """What each checkpoint of a step computes, in the order of the backward pass."""
    found = [one for one in closed.jaxpr.eqns if one.primitive.name in compat.REMAT]
    return [[one.primitive.name for one in e.params["jaxpr"].eqns] for e in found], found


UNROLLED = {name: wrap for name, wrap in CHECKPOINTS.items() if name != "plain"}


@pytest.mark.parametrize("checkpoint", UNROLLED)
def test_unrolled_layers_compute_the_same_to_the_last_bit(checkpoint):
    fn, args = programs.unrolled(UNROLLED[checkpoint])
    closed, flat = compat.drop_dead_code(jax.jit(fn).trace(*args).jaxpr), jax.tree.leaves(args)
    residuals = find_residuals(closed)
    names = [one.name for one in residuals.values]
    assert {"layer_0/tanh", "layer_1/tanh", "layer_2/tanh"} <= set(names)
    wanted = run(closed, flat)
    dice = random.Random(checkpoint)
    some = [{one for one in names if dice.random() < 0.4} for _ in range(4)]
    for saved in (residuals.saved_as_written(), set(), set(names), *some):
        changed = with_saved(closed, residuals, saved)
        for one, other in zip(run(changed, flat), wanted, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("checkpoint", ["checkpoint", "dots"])
def test_unrolled_layers_save_what_is_chosen_behind_their_barriers(checkpoint):
    fn, args = programs.unrolled(UNROLLED[checkpoint])
    closed = compat.drop_dead_code(jax.jit(fn).trace(*args).jaxpr)
    residuals = find_residuals(closed)
    made, _ = checkpoints(with_saved(closed, residuals, ()))
    assert ["tanh" in one for one in made] == [True, True, True]
    saved = [one.name for one in residuals.values if one.label == "hidden"]
    assert len(saved) >= 3
    made, found = checkpoints(with_saved(closed, residuals, saved))
    assert all(one.params["prevent_cse"] for one in found)
    assert [one.count("tanh") for one in made] == [1, 1, 1]  # for its derivative
    made, _ = checkpoints(with_saved(closed, residuals, residuals.homes))
    assert ["tanh" in one for one in made] == [False, False, False]


@pytest.mark.parametrize("prefetch", [False, True])
@pytest.mark.parametrize("checkpoint", ["plain", "checkpoint", "names"])
@pytest.mark.parametrize("name", ["mlp", "nested"])
def test_stacks_on_the_host_have_the_same_numbers(name, checkpoint, prefetch):
    closed, flat = traced(name, checkpoint)
    residuals = find_residuals(closed)
    saved = residuals.saved_as_written()
    stacks = residuals.stacks(saved)
    assert "carry" in stacks
    changed = with_saved(closed, residuals, saved, offloaded=stacks, prefetch=prefetch)
    there, back = loops(changed)[0], loops(changed)[1]
    for one, other in zip(loops(closed), (there, back), strict=False):
        more = compat.scan_counts(other.params)[1] - compat.scan_counts(one.params)[1]
        assert more == (len(stacks) if prefetch else 0)
    carries = compat.scan_counts(there.params)[1]
    handed = [var.aval for var in there.outvars[carries:]]
    away = [aval for aval in handed if compat.in_host(aval)]
    assert sum(aval.size * aval.dtype.itemsize for aval in away) == sum(stacks.values())
    assert sum(compat.in_host(atom.aval) for atom in back.invars) == len(away) == len(stacks)
    for one, other in zip(run(changed, flat), run(closed, flat), strict=True):
        np.testing.assert_array_equal(one, other)


def test_what_is_no_stack_is_not_offloaded():
    closed, _ = traced("mlp", "checkpoint")
    with pytest.raises(KeepError) as error:
        with_saved(closed, find_residuals(closed), (), offloaded=["tanh"])
    assert str(error.value) == (
        "no loop has stacks of tanh that could lie on the host; those of this choice: carry"
    )
