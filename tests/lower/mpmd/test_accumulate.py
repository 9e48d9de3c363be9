"""Gradients over microbatches are those of the whole batch."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import autoshard
from autoshard.lower.mpmd.accumulate import MicrobatchError


def loss_fn(params, batch):
    hidden = jnp.tanh(batch["inputs"] @ params["up"])
    return jnp.mean((hidden @ params["down"] - batch["targets"]) ** 2)


def arguments(examples: int = 8, dtype=jnp.float32):
    keys = jax.random.split(jax.random.key(0), 4)
    params = {
        "up": jax.random.normal(keys[0], (4, 6), dtype),
        "down": jax.random.normal(keys[1], (6, 3), dtype),
    }
    batch = {
        "inputs": jax.random.normal(keys[2], (examples, 4), dtype),
        "targets": jax.random.normal(keys[3], (examples, 3), dtype),
    }
    return params, batch


def assert_close(actual, expected, **tolerance):
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert a.dtype == e.dtype
        assert jnp.allclose(a, e, **(tolerance or {"rtol": 1e-5, "atol": 1e-6}))


@pytest.mark.parametrize("microbatches", [1, 2, 8])
def test_equals_the_plain_gradient(microbatches):
    params, batch = arguments()
    expected = jax.value_and_grad(loss_fn)(params, batch)
    function = autoshard.accumulate_grads(loss_fn, microbatches=microbatches)
    assert_close(function(params, batch), expected)
    assert_close(jax.jit(function)(params, batch), expected)


def test_auxiliary_values_come_back_stacked():
    params, batch = arguments()

    def with_aux(params, batch):
        return loss_fn(params, batch), {"mean": jnp.mean(batch["inputs"]), "rows": batch["inputs"]}

    function = autoshard.accumulate_grads(with_aux, microbatches=4, has_aux=True)
    (loss, aux), gradients = function(params, batch)
    assert_close((loss, gradients), jax.value_and_grad(loss_fn)(params, batch))
    assert aux["mean"].shape == (4,)
    assert_close(aux["rows"][1], batch["inputs"][1::4])
    assert_close(jnp.mean(aux["mean"]), jnp.mean(batch["inputs"]))


def test_other_arguments_are_the_same_for_every_microbatch():
    params, batch = arguments()

    def scaled(scale, batch, params, *, power):
        return scale**power * loss_fn(params, batch)

    function = autoshard.accumulate_grads(scaled, microbatches=2, argnums=(-1, 0))
    loss, (of_params, of_scale) = function(2.0, batch, params, power=3.0)
    expected, (params_like, scale_like) = jax.value_and_grad(scaled, argnums=(2, 0))(
        2.0, batch, params, power=3.0
    )
    assert_close((loss, of_params, of_scale), (expected, params_like, scale_like))


def test_gradients_of_narrow_parameters_are_summed_in_float32():
    def dot(params, batch):
        return jnp.mean(batch @ params)

    params, batch = jnp.ones((1,), jnp.bfloat16), jnp.full((512, 1), 1.0, jnp.bfloat16)
    _, gradient = autoshard.accumulate_grads(dot, microbatches=512)(params, batch)
    assert gradient.dtype == jnp.bfloat16
    assert gradient[0] == 1.0  # a sum in bfloat16 stops at 256


def test_a_batch_that_does_not_divide_is_named():
    params, batch = arguments()
    batch = {**batch, "targets": jnp.zeros((6, 3)), "step": 3.0}
    with pytest.raises(MicrobatchError) as caught:
        autoshard.accumulate_grads(loss_fn, microbatches=4)(params, batch)
    assert str(caught.value) == (
        "the batch cannot be cut into 4 equal microbatches:\n"
        "  * args[1]['step']: float32[] is a scalar: pass it as an argument outside of "
        "batch_argnums\n"
        "  * args[1]['targets']: float32[6,3] leaves 2 of its 6 examples over\n"
        "Choose a number of microbatches that divides the batch, or pad the batch."
    )


def test_batches_of_unequal_length_are_named():
    params, batch = arguments()
    batch = {**batch, "targets": jnp.zeros((4, 3))}
    with pytest.raises(MicrobatchError, match=r"\['inputs'\]: float32\[8,4\] has 8 examples"):
        autoshard.accumulate_grads(loss_fn, microbatches=2)(params, batch)


def test_wrong_positions_are_refused():
    params, batch = arguments()
    with pytest.raises(ValueError, match="microbatches is 0; it must be 1 or more"):
        autoshard.accumulate_grads(loss_fn, microbatches=0)
    with pytest.raises(ValueError, match="batch_argnums holds 2, but the function is given 2"):
        autoshard.accumulate_grads(loss_fn, microbatches=2, batch_argnums=2)(params, batch)
    with pytest.raises(ValueError, match=r"arguments \[1\] are both in argnums and in"):
        autoshard.accumulate_grads(loss_fn, microbatches=2, argnums=1)(params, batch)
