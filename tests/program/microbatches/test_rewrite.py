"""A step in microbatches computes what it does on the whole batch, or says which op does not."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.extend.core import jaxpr_as_fun

from autoshard import compat
from autoshard.program.microbatches import CutError, with_microbatches
from tests.program.keep.programs import CHECKPOINTS, PROGRAMS, draw

BATCH, STEPS, WIDTH = 8, 3, 4


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


def flat(fn, args):
    """The closed jaxpr of a step, its flat arguments, and the positions of its first argument."""
    closed = compat.drop_dead_code(jax.jit(fn).trace(*args).jaxpr)
    return closed, jax.tree.leaves(args), set(range(len(jax.tree.leaves(args[0]))))


def check(fn, args, count=2):
    """Hold a step in microbatches to the step; returns the jaxpr of the one loop around it."""
    closed, arrays, state = flat(fn, args)
    changed = with_microbatches(closed, count, state=state)
    found, wanted = (jax.jit(jaxpr_as_fun(one))(*arrays) for one in (changed, closed))
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)
    (loop,) = [
        one
        for one in changed.jaxpr.eqns
        if "microbatches" in str(one.source_info.name_stack) and one.primitive.name == "scan"
    ]
    assert loop.params["length"] == count
    return loop, changed


def refused(fn, args, count=2):
    closed, _, state = flat(fn, args)
    with pytest.raises(CutError) as caught:
        with_microbatches(closed, count, state=state)
    return str(caught.value)


def params():
    return {"up": draw(WIDTH, 6, seed=1), "down": draw(6, 3, seed=2), "bias": draw(3, seed=3)}


def logits(params, x):
    return jnp.tanh(x @ params["up"]) @ params["down"] + params["bias"]


def data():
    labels = np.random.default_rng(5).integers(0, 3, (BATCH, STEPS))
    return draw(BATCH, STEPS, WIDTH, seed=4), labels


def entropy(params, x, labels):
    classes = lax.broadcasted_iota(labels.dtype, (*labels.shape, 3), 2)
    picked = jnp.where(classes == labels[..., None], logits(params, x), 0.0).sum(-1)
    return jax.nn.logsumexp(logits(params, x), axis=-1) - picked


def trained(loss):
    """A step by a loss of (params, *batch), with momentum that also reads the gradients' norm."""

    def step(params, *batch):
        value, grads = jax.value_and_grad(loss)(params, *batch)
        norm = jnp.sqrt(sum(jnp.sum(g * g) for g in jax.tree.leaves(grads)))
        scale = jnp.minimum(1.0, 0.1 / norm)
        return value, jax.tree.map(lambda p, g: p - scale * (0.1 * g + 0.01 * p), params, grads)

    return step


@pytest.mark.parametrize("checkpoint", ["plain", "dots", "twice"])
@pytest.mark.parametrize("name", ["transformer", "branches"])
def test_numbers_are_those_of_the_whole_batch(name, checkpoint):
    check(*PROGRAMS[name](CHECKPOINTS[checkpoint]))


@pytest.mark.parametrize("count", [2, 4, 8])
def test_each_gradient_is_summed_once_and_the_optimizer_comes_after(count):
    step = trained(lambda params, x, labels: jnp.mean(entropy(params, x, labels)))
    loop, changed = check(step, (params(), *data()), count)
    carries = compat.scan_counts(loop.params)[1]
    shapes = sorted(var.aval.shape for var in loop.outvars[:carries])
    assert shapes == [(), (3,), (4, 6), (6, 3)]
    after = changed.jaxpr.eqns[changed.jaxpr.eqns.index(loop) :]
    assert "sqrt" in [one.primitive.name for one in after]
    inside = [var.aval.shape for one in loop.params["jaxpr"].eqns for var in one.outvars]
    assert (BATCH // count, STEPS, 6) in inside
    assert not [shape for shape in inside if shape[:1] == (BATCH,) and len(shape) > 2]


def test_a_sum_of_weights_that_the_loss_divides_by_is_made_before():
    def loss(params, x, labels):
        weights = (labels > 0).astype(x.dtype)
        return jnp.sum(weights * entropy(params, x, labels)) / jnp.sum(weights)

    check(trained(loss), (params(), *data()), 4)


def test_penalties_of_weights_are_added_once():
    def loss(params, x, labels):
        penalty = sum(jnp.sum(p * p) for p in jax.tree.leaves(params))
        return jnp.mean(entropy(params, x, labels)) + 0.1 * penalty

    check(trained(loss), (params(), *data()), 4)


def test_random_masks_and_constants_of_all_examples_are_dealt_out():
    def loss(params, x, labels, key):
        kept = jax.random.bernoulli(key, 0.7, x.shape)
        places = jnp.arange(BATCH)[:, None, None] * 0.1
        x = jnp.where(kept, x + places, 0.0)

        @jax.checkpoint
        def noisy(params, x):
            return entropy(params, x * jax.random.uniform(key, x.shape), labels)

        return jnp.mean(noisy(params, x))

    check(trained(loss), (params(), *data(), jax.random.key_data(jax.random.key(1))), 4)


def test_examples_merged_with_other_dimensions_and_results_by_example():
    def step(params, x, labels):
        def loss(params):
            rows = x.reshape(BATCH * STEPS, WIDTH)
            out = logits(params, rows).reshape(BATCH, STEPS, 3)
            return jnp.mean(out**2), (out.swapaxes(0, 1), jnp.argmax(out, -1) == labels)

        (value, (out, right)), grads = jax.value_and_grad(loss, has_aux=True)(params)
        return value, grads, out, jnp.mean(right)

    check(step, (params(), *data()), 4)


def test_loops_over_steps_and_lookups_keep_examples_apart():
    def loss(params, tokens, labels):
        x = params["table"][tokens]

        def turn(state, one):
            state = jnp.tanh(one @ params["w"] + state)
            return state, state

        _, out = lax.scan(turn, jnp.zeros((BATCH, WIDTH)), x.swapaxes(0, 1))
        total = lax.fori_loop(0, 3, lambda k, c: c + jnp.sin(c * k), out.swapaxes(0, 1))
        picked = jnp.take_along_axis(total, labels[..., None], axis=-1)
        return -jnp.mean(picked)

    weights = {"table": draw(5, WIDTH), "w": draw(WIDTH, WIDTH, seed=1)}
    tokens = np.random.default_rng(0).integers(0, 5, (BATCH, STEPS))
    check(jax.grad(loss), (weights, tokens, data()[1]), 2)


def test_kernels_run_on_a_smaller_grid_or_say_what_they_need_whole():
    def doubled(x_ref, y_ref):
        y_ref[...] = 2.0 * x_ref[...]

    def kernel(x, rows):
        spec = pl.BlockSpec((rows, STEPS, WIDTH), lambda i: (i, 0, 0))
        call = pl.pallas_call(
            *(doubled, jax.ShapeDtypeStruct(x.shape, x.dtype)),
            grid=(BATCH // rows,),
            in_specs=[spec],
            out_specs=spec,
            interpret=True,
        )
        return call(x)

    def loss(rows):
        return lambda params, x: jnp.mean(logits(params, kernel(x, rows)) ** 2)

    loop, _ = check(jax.grad(loss(1)), (params(), data()[0]), 4)
    (inside,) = [one for one in loop.params["jaxpr"].eqns if one.primitive.name == "pallas_call"]
    assert inside.params["grid_mapping"].grid == (2,)
    text = refused(jax.grad(loss(BATCH)), (params(), data()[0]))
    assert "pallas_call at" in text


def test_sixteen_bit_gradients_are_summed_in_float32():
    small = jax.tree.map(lambda p: jnp.asarray(p, jnp.bfloat16), params())

    def loss(params, x):
        return jnp.mean(logits(params, x) ** 2)

    closed, _, state = flat(jax.value_and_grad(loss), (small, jnp.ones((8, 4), jnp.bfloat16)))
    changed = with_microbatches(closed, 4, state=state)
    (loop,) = [one for one in changed.jaxpr.eqns if one.primitive.name == "scan"]
    carries = compat.scan_counts(loop.params)[1]
    assert {str(var.aval.dtype) for var in loop.outvars[:carries]} == {"float32"}
    assert [str(var.aval.dtype) for var in changed.jaxpr.outvars] == ["bfloat16"] * 4


def normalised(x):
    return (x - jnp.mean(x, 0)) / jnp.std(x, 0)


REFUSALS = {
    "statistics of the batch": (
        lambda params, x: jnp.mean(normalised(logits(params, x)) ** 3),
        "sub at jvp() (test_rewrite.py:",
        "reads single examples together with a sum over all of them",
    ),
    "pairs of examples": (
        lambda params, x: jnp.mean(jnp.tanh(logits(params, x) @ logits(params, x).T)),
        "dot_general at jvp()",
        "relates examples to other examples",
    ),
    "the largest example": (
        lambda params, x: jnp.max(logits(params, x)),
        "reduce_max at jvp()",
        "reduces the examples by max, not by a sum",
    ),
    "a running sum": (
        lambda params, x: jnp.mean(jnp.cumsum(logits(params, x), axis=0) ** 2),
        "cumsum at jvp()",
        "is not known to keep examples apart",
    ),
    "one example": (
        lambda params, x: jnp.sum(logits(params, x)[2] ** 2),
        "at jvp()",
        "some of them",
    ),
    "examples in turn": (
        lambda params, x: lax.scan(lambda c, row: (c + jnp.sum(logits(params, row)), None), 0.0, x)[
            0
        ],
        "scan at jvp()",
        "takes the examples one after another",
    ),
    "a branch by an example": (
        lambda params, x: jnp.mean(
            lax.cond(jnp.sum(logits(params, x)) > 0, jnp.sin, jnp.cos, logits(params, x)) ** 2
        ),
        "",
        "reads single examples together with a sum over all of them",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_does_something_else_with_examples_is_named(name):
    loss, where, why = REFUSALS[name]
    text = refused(jax.grad(loss), (params(), draw(8, WIDTH)))
    assert text.startswith("the step cannot be cut into 2 microbatches:\n  * ")
    assert where in text
    assert why in text


def test_a_batch_that_does_not_divide_is_refused_with_its_shapes():
    text = refused(jax.grad(lambda p, x: jnp.mean(logits(p, x))), (params(), draw(9, WIDTH)), 4)
    assert "this divides the first dimension of no input beside its state" in text
    assert "(9, 4)" in text


def random_loss(seed):
    """A loss of random ops that keep examples apart, in a random order of dimensions."""
    dice = np.random.default_rng(seed)
    steps = [
        lambda x, w: jnp.tanh(x @ w),
        lambda x, w: x * jnp.mean(x, -1, keepdims=True),
        lambda x, w: jax.nn.softmax(x, axis=-1) + x,
        lambda x, w: x.reshape(-1, WIDTH).reshape(x.shape) * 0.5,
        lambda x, w: jnp.einsum("bsd,btd->bst", x, x) @ x @ w,
        lambda x, w: lax.scan(lambda c, k: (jnp.sin(c @ w), jnp.sum(k)), x, w)[0],
        lambda x, w: jnp.where(lax.broadcasted_iota(int, x.shape, 1) > 0, x, -x),
        lambda x, w: x[:, ::-1] + jnp.concatenate([x[:, 1:], x[:, :1]], 1),
        lambda x, w: jax.checkpoint(lambda x: jnp.exp(-x * x) @ w)(x),
        lambda x, w: x + jnp.sum(w * w) + jnp.sum(w, 0),
        lambda x, w: jnp.pad(x, ((0, 0), (1, 1), (0, 0)))[:, 1:-1] * jnp.ones_like(x),
    ]
    chosen = [steps[k] for k in dice.integers(0, len(steps), 5)]
    ends = [lambda x: jnp.mean(x * x), lambda x: jnp.sum(jnp.mean(jnp.sin(x), (1, 2)))]
    end = ends[dice.integers(2)]

    def loss(params, x):
        for op, w in zip(chosen, params, strict=True):
            x = op(x, w)
        return end(x)

    return trained(loss), ([draw(WIDTH, WIDTH, seed=seed + k) for k in range(5)], draw(4, 3, WIDTH))


@pytest.mark.parametrize("seed", range(8))
def test_random_losses_are_cut(seed):
    check(*random_loss(seed), 2)
