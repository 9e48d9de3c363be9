"""Sums over devices end after the loops that make their parts: the same numbers."""

from __future__ import annotations

from functools import partial
from math import gcd

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from autoshard import compat
from autoshard.program.keep import find_residuals
from autoshard.program.keep.late_sums import with_late_sums
from autoshard.program.rewritten import casting_early, in_microbatches, loops_in_parts, summing_late
from autoshard.program.trace import TraceError, trace
from tests.program.keep.descent import run, step_of

LAYERS, BATCH, LENGTH, WIDTH = 4, 8, 6, 16
NOTHING = (
    "no loop of the step stacks sums over a dimension that 7 parts divide, so that nothing can be "
    "summed after it"
)


def layer(x, weights):
    normed = x * weights["scale"] + weights["bias"]
    return x + jnp.tanh(normed @ weights["up"]) @ weights["up"].T, None


def plain(x, weights):
    return lax.scan(layer, x, weights)[0]


def stack(x, weights):
    return lax.scan(jax.checkpoint(layer), x, weights)[0]


def blocks(x, weights):
    """Layers in pairs: a loop in a loop."""
    pairs = jax.tree.map(lambda one: one.reshape(2, LAYERS // 2, *one.shape[1:]), weights)
    return lax.scan(lambda x, pair: (stack(x, pair), None), x, pairs)[0]


def unrolled(x, weights):
    for number in range(LAYERS):
        x, _ = layer(x, jax.tree.map(lambda one, number=number: one[number], weights))
    return x


def arguments(kind=np.float64):
    dice = np.random.default_rng(0)
    shapes = {"scale": (WIDTH,), "bias": (WIDTH,), "up": (WIDTH, 2 * WIDTH)}
    weights = {
        name: (dice.standard_normal((LAYERS, *shape)) / WIDTH).astype(kind)
        for name, shape in shapes.items()
    }
    return weights, dice.standard_normal((BATCH, LENGTH, WIDTH)).astype(kind)


def stacked(jaxpr):
    """The shapes of what loops stack, those in loops and in calls too."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "scan":
            _, carries = compat.scan_counts(equation.params)
            yield from (one.aval.shape for one in equation.outvars[carries:])
        for body, _ in compat.bodies_of(equation):
            yield from stacked(body)


@pytest.mark.parametrize("parts", [[4], [1, 3], [4, 3], [16]])
@pytest.mark.parametrize("model", [plain, stack, blocks])
def test_numbers_are_equal_and_loops_stack_parts(model, parts):
    with jax.enable_x64(True):
        args = arguments()
        program = trace(step_of(model), *args, donate_argnums=0)
        late = summing_late(program, parts)
        flat = jax.tree.leaves(args)
        for one, other in zip(run(late.written, flat), run(program.written, flat), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-13, atol=1e-13)
    counts = [gcd(*one) for one in zip((BATCH, LENGTH), parts, strict=False)]
    cut = [count for count in counts if count > 1]
    leads = [(LAYERS,), (2, 2), (2,)]
    whole = {(*lead, WIDTH) for lead in leads}
    in_parts = {(*lead, *cut, WIDTH) for lead in leads}
    assert whole.intersection(stacked(program.written.jaxpr))
    there = set(stacked(late.written.jaxpr))
    assert in_parts.intersection(there)
    assert not whole.difference({(2, WIDTH)}).intersection(there)


def test_parts_that_are_summed_are_exact_where_numbers_are():
    """Whole numbers have no rounding: every order of a sum is the same to the last bit."""
    dice = np.random.default_rng(1)
    stacks = dice.integers(-9, 9, (LAYERS, BATCH, LENGTH, WIDTH)).astype(np.float32)

    def sums(stacks):
        def turn(carry, one):
            total = jnp.sum(one, (0, 1))
            return carry, (-total, (2.0 * total + total).reshape(4, 4), jnp.sum(one, (0, 2)))

        return lax.scan(turn, 0, stacks)[1]

    closed = jax.make_jaxpr(sums)(stacks)
    late = with_late_sums(closed, [4])
    assert set(stacked(late.jaxpr)) == {(LAYERS, 4, WIDTH), (LAYERS, 4, LENGTH)}
    for one, other in zip(run(late, [stacks]), run(closed, [stacks]), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_sum_that_the_loop_reads_stays():
    def turn(carry, one):
        total = jnp.sum(one, 0)
        return carry + total, (total, jnp.sum(one * carry, 0), jnp.tanh(jnp.sum(one, 0)))

    closed = jax.make_jaxpr(partial(lax.scan, turn))(jnp.zeros(3), jnp.ones((LAYERS, BATCH, 3)))
    late = with_late_sums(closed, [BATCH])
    (loop,) = (one for one in late.jaxpr.eqns if one.primitive.name == "scan")
    shapes = sorted(one.aval.shape for one in loop.outvars)
    assert shapes == [(3,), (LAYERS, 3), (LAYERS, 3), (LAYERS, BATCH, 3)]


@pytest.mark.parametrize("model", [plain, stack, blocks])
def test_there_are_the_same_values_to_save(model):
    program = trace(step_of(model), *arguments(np.float32))
    late = summing_late(program, [4])
    assert set(find_residuals(late.written).homes) == set(find_residuals(program.written).homes)


def test_what_cannot_wait_is_refused():
    args = arguments(np.float32)
    program = trace(step_of(stack), *args)
    with pytest.raises(TraceError, match=NOTHING):
        summing_late(program, [7])
    with pytest.raises(TraceError, match="so that nothing can be summed after it"):
        summing_late(trace(step_of(unrolled), *args), [4])
    late = summing_late(program, [4])
    with pytest.raises(TraceError, match="was traced with late_sums already"):
        summing_late(late, [2])
    with pytest.raises(TraceError, match="was traced with late_sums already"):
        casting_early(late)
    with pytest.raises(TraceError, match="was traced with late_sums already"):
        in_microbatches(late, 2)
    (loop,) = find_residuals(late.written).loops
    with pytest.raises(TraceError, match="has loops in parts already"):
        summing_late(loops_in_parts(program, {loop: [2]}), [4])


def test_options_tell_it_and_trace_it_again():
    args = arguments(np.float32)
    traced = partial(trace, step_of(stack), *args, donate_argnums=0)
    late = summing_late(traced(), [4])
    assert late.options == {"donate_argnums": [0], "late_sums": [4]}
    assert traced(late_sums=[4]).fingerprint == late.fingerprint
    twice = summing_late(in_microbatches(traced(), 2), [4])
    assert traced(late_sums=[4], microbatches=2).fingerprint == twice.fingerprint
