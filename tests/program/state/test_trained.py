"""Which parameters a train step trains."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
import pytest
from jax import lax

from autoshard.program.notes import notes_of
from autoshard.program.state.trained import few_trained
from autoshard.program.trace import trace
from autoshard.search.search import search
from tests.helpers import toy_machine
from tests.program.steps import f, i

PARAMETERS = {"below": f(16, 64), "stack": f(3, 64, 64), "head": f(64, 8)}
X, Y = f(32, 16), f(32, 8)


def outputs(params, x):
    h = jnp.tanh(x @ params["below"])
    h, _ = lax.scan(lambda h, w: (jnp.tanh(h @ w), None), h, params["stack"])
    return h @ params["head"]


def loss(params, x, y):
    return jnp.mean((outputs(params, x) - y) ** 2)


def stopped(params, x, y):
    kept = {k: v if k == "head" else lax.stop_gradient(v) for k, v in params.items()}
    return loss(kept, x, y)


def step_of(optimizer, loss=loss):
    def train_step(params, state, x, y):
        value, gradients = jax.value_and_grad(loss)(params, x, y)
        updates, state = optimizer.update(gradients, state, params)
        return value, optax.apply_updates(params, updates), state

    return train_step, jax.eval_shape(optimizer.init, PARAMETERS)


def traced(optimizer, loss=loss):
    fn, state = step_of(optimizer, loss)
    return trace(fn, PARAMETERS, state, X, Y, donate_argnums=(0, 1))


MASKED = optax.partition(
    {"train": optax.adam(1e-3), "keep": optax.set_to_zero()},
    {"below": "keep", "stack": "keep", "head": "train"},
)
HEAD, ALL = 64 * 8, 16 * 64 + 3 * 64 * 64 + 64 * 8


@pytest.mark.parametrize(
    ("optimizer", "loss"),
    [
        (MASKED, loss),
        (optax.chain(optax.clip_by_global_norm(1.0), MASKED), loss),
        (optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3)), stopped),
        (optax.adamw(1e-3, weight_decay=0.1), stopped),
    ],
    ids=["masked", "clipped-then-masked", "stopped-then-clipped", "stopped-but-decaying"],
)
def test_parameters_that_no_gradient_reaches_are_not_trained(optimizer, loss) -> None:
    program = traced(optimizer, loss)
    found = few_trained(program, 0.5)
    assert found is not None
    assert [program.values[k].path for k in found.trained] == ["[0]['head']"]
    assert (found.trained_count, found.count) == (HEAD, ALL)


def test_a_plan_says_that_few_are_trained() -> None:
    (note,) = search(traced(MASKED), toy_machine(), time_limit=5).notes
    assert note == (
        f"train_step trains 512 of its {ALL:,} parameters (3.7 %); the others, the first of them "
        "params.below, stay as they are: its seconds and bytes are not those of training them all"
    )


def adapted(adapters, base, x, y):
    def with_adapters(adapters):
        below = {**base, "below": base["below"] + adapters["a"] @ adapters["b"]}
        return loss(below, x, y)

    value, gradients = jax.value_and_grad(with_adapters)(adapters)
    return value, jax.tree.map(lambda p, g: p - 0.1 * g, adapters, gradients)


def test_weights_below_adapters_are_parameters_and_examples_are_not() -> None:
    program = trace(adapted, {"a": f(16, 2), "b": f(2, 64)}, PARAMETERS, X, Y, donate_argnums=0)
    found = few_trained(program, 0.5)
    assert found is not None
    assert (found.trained_count, found.count) == (16 * 2 + 2 * 64, 16 * 2 + 2 * 64 + ALL)


def in_turns(params, x, y):
    """Gradients of the head alone, added up in a loop over microbatches."""

    def turn(total, batch):
        gradients = jax.grad(stopped)(params, *batch)
        return jax.tree.map(jnp.add, total, gradients), None

    zeros = jax.tree.map(jnp.zeros_like, params)
    sums, _ = lax.scan(turn, zeros, (x.reshape(4, 8, 16), y.reshape(4, 8, 8)))
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, sums)


def test_zeros_are_followed_through_loops() -> None:
    found = few_trained(trace(in_turns, PARAMETERS, X, Y, donate_argnums=0), 0.5)
    assert found is not None
    assert (found.trained_count, found.count) == (HEAD, ALL)


def test_nothing_is_said_of_steps_that_train_all() -> None:
    """Moments, examples that outweigh the parameters, averages and statistics are none of them."""
    assert notes_of(traced(optax.adamw(1e-3))) == ()

    def averaged(params, average, x, y):
        gradients = jax.grad(loss)(params, x, y)
        params = jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)
        return params, jax.tree.map(lambda a, p: 0.9 * a + 0.1 * p, average, params)

    many = (f(4096, 16), f(4096, 8))
    assert notes_of(trace(averaged, PARAMETERS, PARAMETERS, *many, donate_argnums=(0, 1))) == ()

    def embeds(params, table, tokens, y):
        def of_table(both):
            return loss(both[0], both[1][tokens], y)

        new = jax.grad(of_table)((params, table))
        return jax.tree.map(lambda p, g: p - 0.1 * g, (params, table), new)

    assert notes_of(trace(embeds, PARAMETERS, f(512, 16), i(32), Y, donate_argnums=(0, 1))) == ()


def frozen(params, x, y):
    return loss(jax.tree.map(lax.stop_gradient, params), x, y)


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_a_step_whose_gradients_are_all_stopped_trains_none(weight) -> None:

    def weighted(*args):
        return weight * frozen(*args)

    step, state = step_of(optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3)), weighted)

    def train_step(*args):
        value, params, state = step(*args)
        return value, params, state, jnp.sum(params["head"] ** 2)

    program = trace(train_step, PARAMETERS, state, X, Y, donate_argnums=(0, 1))
    found = few_trained(program, 0.5)
    assert found is not None
    assert (found.trained, found.trained_count, found.count) == ((), 0, 3 * ALL)
    (note,) = notes_of(program)
    assert note.startswith(
        f"train_step trains nothing: no example has a part in the {3 * ALL:,} numbers of its new "
        "state, the first of them 0.below, so there is no backward pass"
    )


def test_nothing_is_said_of_steps_that_serve_or_simulate() -> None:
    """Weights come back as they are, or not at all; a cache is made of what comes in."""

    def token(state, cache, x, position):
        keys = lax.dynamic_update_slice(cache["keys"], x @ state["below"], (position, 0))
        out = jnp.tanh(keys @ state["stack"][0]) @ state["head"]
        return state, {"keys": keys, "length": cache["length"] + 1}, out

    cache = {"keys": f(32, 64), "length": f()}
    args = PARAMETERS, cache, f(1, 16), i()
    assert notes_of(trace(token, *args, donate_argnums=(0, 1))) == ()
    assert notes_of(trace(lambda *args: token(*args)[1:], *args, donate_argnums=1)) == ()

    def diffused(field, time):
        return field + 0.1 * (jnp.roll(field, 1, 0) - field), time + 0.1

    assert notes_of(trace(diffused, f(64, 64), f(), donate_argnums=(0, 1))) == ()
    assert notes_of(trace(diffused, f(64, 64), f(), donate_argnums=0)) == ()


def test_nothing_is_said_of_steps_that_train_nothing() -> None:
    assert notes_of(trace(outputs, PARAMETERS, X)) == ()
    assert notes_of(trace(loss, PARAMETERS, X, Y)) == ()
    assert notes_of(trace(jax.grad(loss, argnums=1), PARAMETERS, X, Y)) == ()
