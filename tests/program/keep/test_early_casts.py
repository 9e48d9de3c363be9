"""Weights cast before the loops that read them: the same numbers, and narrow loops."""

from __future__ import annotations

from functools import partial
from operator import itemgetter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from autoshard import compat
from autoshard.program.keep import find_residuals
from autoshard.program.keep.early_casts import cast_inputs, with_early_casts
from autoshard.program.rewritten import casting_early, in_microbatches, loops_in_parts
from autoshard.program.trace import TraceError, trace
from tests.program.keep.descent import run, step_of

LAYERS, BATCH, WIDTH = 4, 8, 16
NOTHING = (
    "no loop of the step reads an argument by casts to one narrower type alone, so that nothing "
    "can be cast before it"
)


def layer(x, weights, kind=jnp.bfloat16):
    normed = x * weights["scale"]
    up = normed.astype(kind) @ weights["up"].astype(kind)
    return x + (jnp.tanh(up) @ weights["down"].astype(kind)).astype(x.dtype), None


def stack(x, weights):
    return lax.scan(jax.checkpoint(layer), x, weights)[0]


def blocks(x, weights):
    """Layers in pairs: a loop in a loop."""
    pairs = jax.tree.map(lambda one: one.reshape(2, LAYERS // 2, *one.shape[1:]), weights)
    return lax.scan(lambda x, pair: (stack(x, pair), None), x, pairs)[0]


def shared(x, weights):
    """One layer again and again, which the loop closes over."""
    first = jax.tree.map(lambda one: one[0], weights)
    return lax.scan(lambda x, _: (layer(x, first)[0], None), x, length=LAYERS)[0]


def plain(x, weights):
    return lax.scan(layer, x, weights)[0]


def arguments():
    dice = np.random.default_rng(0)
    shapes = {"scale": (WIDTH,), "up": (WIDTH, 2 * WIDTH), "down": (2 * WIDTH, WIDTH)}
    weights = {
        name: dice.standard_normal((LAYERS, *shape)).astype(np.float32)
        for name, shape in shapes.items()
    }
    return weights, dice.standard_normal((BATCH, WIDTH)).astype(np.float32)


def loops(jaxpr):
    """All loops, those in loops and in calls too."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "scan":
            yield equation
        for body, _ in compat.bodies_of(equation):
            yield from loops(body)


def carried(loop):
    fixed, carries = compat.scan_counts(loop.params)
    return range(fixed, fixed + carries)


@pytest.mark.parametrize("microbatches", [1, 2])
@pytest.mark.parametrize("model", [plain, stack, blocks])
def test_numbers_are_equal_to_the_last_bit_and_loops_are_narrow(model, microbatches):
    args = arguments()
    program = trace(step_of(model), *args, donate_argnums=0, microbatches=microbatches)
    early = casting_early(program)
    flat = jax.tree.leaves(args)
    for one, other in zip(run(early.written, flat), run(program.written, flat), strict=True):
        np.testing.assert_array_equal(one, other)
    wide = {(*lead, WIDTH, 2 * WIDTH) for lead in ((), (LAYERS,), (2, 2), (2,))}
    for late, closed in ((True, program.written), (False, early.written)):
        read = [
            atom.aval
            for loop in loops(closed.jaxpr)
            for place, atom in enumerate(loop.invars)
            if place not in carried(loop) and not compat.is_literal(atom)
        ]
        assert any(one.shape in wide and one.dtype == jnp.float32 for one in read) == late


@pytest.mark.parametrize("model", [plain, stack, blocks])
def test_each_weight_is_cast_once_for_both_passes(model):
    program = casting_early(trace(step_of(model), *arguments()))
    cast = [(program.input_paths[place], kind.name) for place, kind in cast_inputs(program.written)]
    assert sorted(cast) == [("[0]['down']", "bfloat16"), ("[0]['up']", "bfloat16")]


def test_what_a_loop_closes_over_is_cast_once():
    weights, x = arguments()
    closed = jax.make_jaxpr(shared)(x, weights)
    early = with_early_casts(closed)
    assert len(cast_inputs(early)) == 2
    flat = jax.tree.leaves((x, weights))
    np.testing.assert_array_equal(run(early, flat)[0], run(closed, flat)[0])


def test_what_is_read_as_it_is_stays_wide():
    def both(x, weights):
        return lax.scan(lambda x, w: (x @ w + (x.astype(w16) @ w.astype(w16)), None), x, weights)[0]

    w16 = jnp.bfloat16
    weights, x = np.ones((LAYERS, WIDTH, WIDTH), np.float32), np.ones((BATCH, WIDTH), np.float32)
    closed = jax.make_jaxpr(both)(x, weights)
    assert with_early_casts(closed) is closed


@pytest.mark.parametrize(
    "kinds", [(jnp.bfloat16, jnp.float32), (jnp.float32, jnp.int8), (jnp.int32, jnp.bfloat16)]
)
def test_casts_that_are_not_to_a_narrower_float_stay(kinds):
    own, other = kinds

    def fn(x, weights):
        return lax.scan(lambda x, w: (x + w.astype(other), None), x, weights)[0]

    closed = jax.make_jaxpr(fn)(jnp.ones(WIDTH, other), jnp.ones((LAYERS, WIDTH), own))
    assert with_early_casts(closed) is closed


def test_what_a_loop_carries_stays():
    def fn(x, weights):
        def turn(carry, _):
            x, weights = carry
            return (x + weights.astype(jnp.bfloat16), 2 * weights), None

        return lax.scan(turn, (x, weights), length=LAYERS)[0][0]

    closed = jax.make_jaxpr(fn)(jnp.ones(WIDTH, jnp.bfloat16), jnp.ones(WIDTH))
    assert with_early_casts(closed) is closed


def test_a_checkpoint_in_no_loop_keeps_its_casts():
    def unrolled(x, weights):
        for number in range(LAYERS):
            x = jax.checkpoint(layer)(x, jax.tree.map(itemgetter(number), weights))[0]
        return x

    with pytest.raises(TraceError, match=NOTHING):
        casting_early(trace(step_of(unrolled), *arguments()))


def test_a_trace_that_is_told_so_is_the_same_program():
    traced = partial(trace, step_of(stack), *arguments(), donate_argnums=0)
    program = casting_early(traced())
    assert program.options == {"donate_argnums": [0], "early_casts": True}
    assert traced(early_casts=True).fingerprint == program.fingerprint
    twice = casting_early(in_microbatches(traced(), 2))
    assert traced(early_casts=True, microbatches=2).fingerprint == twice.fingerprint
    (loop,) = find_residuals(program.written).loops
    parts = loops_in_parts(program, {loop: [2]})
    told = traced(early_casts=True, parts={loop: [2]})
    assert told.fingerprint == parts.fingerprint
    with pytest.raises(TraceError, match="has loops in parts already"):
        casting_early(parts)
    with pytest.raises(TraceError, match="was traced with early_casts already"):
        in_microbatches(program, 2)
