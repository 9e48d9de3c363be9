"""Pads move before the products that make what is padded: the same numbers."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from autoshard import compat
from autoshard.program.keep import find_residuals
from autoshard.program.keep.early_pads import with_early_pads
from autoshard.program.rewritten import (
    casting_early,
    in_microbatches,
    loops_in_parts,
    padding_early,
    summing_late,
)
from autoshard.program.trace import TraceError, trace
from tests.program.keep.descent import run, step_of

LAYERS, BATCH, LENGTH, WIDTH, HEADS, MORE = 4, 8, 6, 16, 4, 2
ROWS = ((0, 0), (0, MORE), (0, 0))
DICE = np.random.default_rng(0)
X = DICE.integers(-2, 3, (BATCH, LENGTH, WIDTH)).astype(np.float32)
W = DICE.integers(-2, 3, (WIDTH, WIDTH)).astype(np.float32)
"""Whole numbers, whose products are the same in every order of a sum."""


@jax.custom_vjp
def whole_blocks(x):
    """What stands for a kernel that takes blocks of eight rows alone."""
    assert x.shape[-2] % 8 == 0
    return jnp.cumsum(x, axis=-2)


whole_blocks.defvjp(
    lambda x: (whole_blocks(x), x), lambda x, g: (jnp.flip(jnp.cumsum(jnp.flip(g, -2), -2), -2),)
)


def attend(x):
    turned = jnp.swapaxes(x, 1, 2)
    out = whole_blocks(jnp.pad(turned, ((0, 0), (0, 0), (0, MORE), (0, 0))))
    return jnp.swapaxes(out[:, :, :LENGTH], 1, 2)


def layer(x, weights):
    made = jnp.einsum("bsd,dnh->bsnh", x, weights["up"]) + weights["bias"]
    return x + jnp.einsum("bsnh,nhd->bsd", attend(made * 0.5), weights["down"]), None


def plain(x, weights):
    return lax.scan(layer, x, weights)[0]


def stack(x, weights):
    return lax.scan(jax.checkpoint(layer), x, weights)[0]


def unrolled(x, weights):
    for number in range(LAYERS):
        x, _ = layer(x, jax.tree.map(lambda one, number=number: one[number], weights))
    return x


def arguments(kind=np.float64):
    head = WIDTH // HEADS
    shapes = {"up": (WIDTH, HEADS, head), "bias": (HEADS, head), "down": (HEADS, head, WIDTH)}
    weights = {
        name: (DICE.standard_normal((LAYERS, *shape)) / WIDTH).astype(kind)
        for name, shape in shapes.items()
    }
    return weights, X.astype(kind)


def padded(jaxpr):
    """The shapes of what pads are given, those in loops and in calls too."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "pad":
            yield equation.invars[0].aval.shape
        for body, _ in compat.bodies_of(equation):
            yield from padded(body)


def same_numbers(closed, other, flat, error=0.0):
    for one, another in zip(run(closed, flat), run(other, flat), strict=True):
        np.testing.assert_allclose(one, another, rtol=error, atol=error)


@pytest.mark.parametrize("model", [plain, stack, unrolled])
def test_numbers_are_equal_and_products_read_padded_rows(model):
    with jax.enable_x64(True):
        args = arguments()
        program = trace(step_of(model), *args, donate_argnums=0)
        early = padding_early(program)
        same_numbers(early.written, program.written, jax.tree.leaves(args), 1e-13)
    before, after = set(padded(program.written.jaxpr)), set(padded(early.written.jaxpr))
    made = (BATCH, HEADS, LENGTH, WIDTH // HEADS)
    assert made in before
    assert made not in after
    assert X.shape in after


def elementwise(x, w):
    return jnp.pad(-jnp.abs((x @ w).astype(jnp.bfloat16)) * 2, ROWS)


def with_bias(x, w):
    return jnp.pad(x @ w + w[0], ROWS)


def of_two_products(x, w):
    return jnp.pad(x @ w - (x * 2) @ w, ROWS)


def in_front(x, w):
    return jnp.pad(x @ w, ((0, 0), (MORE, 0), (0, 0)), constant_values=-jnp.inf)


def of_two_dimensions(x, w):
    return jnp.pad(x @ w, ((1, 2), (0, MORE), (0, 0)), constant_values=3)


def of_columns(x, w):
    return jnp.pad(x @ w, ((0, 0), (0, 0), (0, MORE)))


def of_batches(x, w):
    return jnp.pad(jnp.einsum("bsd,btd->bst", x, x * w[0]), ((0, 1), (0, MORE), (0, 3)))


def turned(x, w):
    return jnp.pad(jnp.einsum("bsd,de->ebs", x, w), ((0, 0), (0, 0), (0, MORE)))


def of_a_sum(x, w):
    """What no product makes is padded where it is read."""
    return jnp.pad(x @ w + x, ROWS)


def rotated(x, w):
    """Positions are rotated by halves of each head, with tables that have the rows, too."""
    made = (x @ w).reshape(BATCH, LENGTH, HEADS, WIDTH // HEADS)
    first, second = jnp.split(made, 2, axis=-1)
    table = w[:LENGTH, None, : WIDTH // HEADS]
    turned = made * table + jnp.concatenate([-second, first], axis=-1) * (table + 1)
    return jnp.pad(jnp.swapaxes(turned, 1, 2), ((0, 0), (0, 0), (0, MORE), (0, 0)))


def sliced(x, w):
    made = x @ w
    return jnp.pad(made[:, :, 2:] - made[..., :-2], ROWS)


def also_read_before(x, w):
    """One of the products is read elsewhere: it stays, and is padded as what is no product."""
    made = x @ w
    return jnp.pad(made + x @ w.T, ROWS), made


@pytest.mark.parametrize(
    ("fn", "given"),
    [
        (of_a_sum, [X.shape] * 2),
        (rotated, [X.shape, *[(1, LENGTH, 1, WIDTH // HEADS)] * 2]),
        (sliced, [X.shape]),
        (also_read_before, [X.shape] * 2),
        (elementwise, [X.shape]),
        (with_bias, [X.shape]),
        (of_two_products, [X.shape] * 2),
        (in_front, [X.shape]),
        (of_two_dimensions, [X.shape]),
        (of_columns, [W.shape]),
        (of_batches, [X.shape] * 2),
        (turned, [X.shape]),
    ],
)
def test_a_pad_moves_along_rows_columns_and_batches(fn, given):
    closed = jax.make_jaxpr(fn)(X, W)
    early = with_early_pads(closed)
    assert list(padded(early.jaxpr)) == given
    assert [one.aval for one in early.jaxpr.outvars] == [one.aval for one in closed.jaxpr.outvars]
    same_numbers(early, closed, [X, W])


def read_elsewhere(x, w):
    made = x @ w
    return jnp.pad(made, ROWS), jnp.sum(made)


def returned(x, w):
    made = x @ w
    return jnp.pad(made, ROWS), made


def of_no_product(x, w):
    return jnp.pad(jnp.tanh(x), ROWS)


def in_two_ways(x, w):
    made = w @ w
    return jnp.pad(made + made.T, ((0, 1), (0, 0)))


def of_split_rows(x, w):
    """The rows that are padded are parts of those of the product."""
    made = (x.reshape(BATCH * LENGTH, WIDTH) @ w).reshape(BATCH, LENGTH, WIDTH)
    return jnp.pad(made, ROWS)


def of_some_rows(x, w):
    return jnp.pad((x @ w)[:, 1:], ROWS)


def of_a_reduction(x, w):
    return jnp.pad(jnp.cumsum(x @ w, axis=1), ROWS)


def between(x, w):
    return lax.pad(x @ w, jnp.float32(0), ((0, 0, 0), (0, 0, 1), (0, 0, 0)))


def cut(x, w):
    return lax.pad(x @ w, jnp.float32(0), ((0, 0, 0), (0, -1, 0), (0, 0, 0)))


@pytest.mark.parametrize(
    "fn",
    [
        *(read_elsewhere, returned, of_no_product, of_a_reduction, between, cut),
        *(in_two_ways, of_split_rows, of_some_rows),
    ],
)
def test_other_pads_stay(fn):
    closed = jax.make_jaxpr(fn)(X, W)
    assert with_early_pads(closed) is closed


def test_a_bias_that_others_read_is_repeated_once_more():
    def fn(x, w):
        bias = jnp.broadcast_to(w[0], x.shape)
        return jnp.pad(x @ w + bias, ROWS), bias * 2

    closed = jax.make_jaxpr(fn)(X, W)
    early = with_early_pads(closed)
    assert list(padded(early.jaxpr)) == [X.shape]
    same_numbers(early, closed, [X, W])


@pytest.mark.parametrize("model", [plain, stack])
def test_what_may_be_saved_keeps_its_name(model):
    """But for the pad, which is a choice between two values now, and the pad before the product."""
    program = trace(step_of(model), *arguments(np.float32))
    early = padding_early(program)
    one, other = (find_residuals(step.written).homes for step in (program, early))
    assert set(one) - set(other) == {"pad"}
    assert set(other) - set(one) >= {"bsd,dnh->bsnh/early_pads/pad", "select_n"}


def test_what_cannot_be_padded_early_is_refused():
    args = arguments(np.float32)
    program = trace(step_of(stack), *args)
    nothing = "pads nothing that products make and nothing else reads"
    with pytest.raises(TraceError, match=nothing):
        padding_early(trace(of_no_product, X, W))
    early = padding_early(program)
    again = "was traced with early_pads already"
    for refused in (padding_early, casting_early, partial(summing_late, parts=[4])):
        with pytest.raises(TraceError, match=again):
            refused(early)
    with pytest.raises(TraceError, match=again):
        in_microbatches(early, 2)
    (loop,) = find_residuals(early.written).loops
    with pytest.raises(TraceError, match="has loops in parts already"):
        padding_early(loops_in_parts(program, {loop: [2]}))


def test_options_tell_it_and_trace_it_again():
    args = arguments(np.float32)
    traced = partial(trace, step_of(stack), *args, donate_argnums=0)
    early = padding_early(traced())
    assert early.options == {"donate_argnums": [0], "early_pads": True}
    assert traced(early_pads=True).fingerprint == early.fingerprint
    twice = padding_early(in_microbatches(traced(), 2))
    assert traced(early_pads=True, microbatches=2).fingerprint == twice.fingerprint
