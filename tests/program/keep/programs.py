"""Small steps with backward passes of every form, with and without `jax.checkpoint`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name

POLICIES = jax.checkpoint_policies
CHECKPOINTS: dict[str, Callable[[Any], Any]] = {
    "plain": lambda body: body,
    "checkpoint": jax.checkpoint,
    "dots": lambda body: jax.checkpoint(body, policy=POLICIES.dots_saveable),
    "names": lambda body: jax.checkpoint(body, policy=POLICIES.save_only_these_names("hidden")),
    "twice": lambda body: jax.checkpoint(jax.checkpoint(body)),
}
"""How bodies are wrapped, by name."""
LAYERS, WIDTH, BATCH = 3, 4, 2


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    """Numbers around zero, the same each time."""
    return np.random.default_rng(seed).standard_normal(shape) * 0.5


def mlp(wrap: Callable[[Any], Any]) -> tuple[Any, Any]:
    """A scan over layers with two products, a function of a `jit` of its own, and a name."""

    def body(x, weights):
        hidden = checkpoint_name(jnp.tanh(x @ weights["up"]), "hidden")
        return x + jax.nn.silu(hidden) @ weights["down"], jnp.max(hidden)

    def loss(params, x):
        x, peaks = lax.scan(wrap(body), x, params)
        return jnp.sum(x * x) + jnp.sum(peaks)

    params = {"up": draw(LAYERS, WIDTH, 8), "down": draw(LAYERS, 8, WIDTH, seed=1)}
    return jax.value_and_grad(loss), (params, draw(BATCH, WIDTH, seed=2))


def transformer(wrap: Callable[[Any], Any]) -> tuple[Any, Any]:
    """One head of causal attention and a gated layer, scanned, with a step of gradient descent."""
    steps = 3

    def norm(x):
        return x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-5)

    def body(x, weights, mask):
        q, k, v = (norm(x) @ weights[name] for name in "qkv")
        shares = jax.nn.softmax(jnp.where(mask, q @ k.swapaxes(-1, -2), -1e9))
        x = x + checkpoint_name(shares @ v, "hidden")
        return x + (jax.nn.gelu(norm(x) @ weights["up"]) @ weights["down"]), None

    def loss(params, x):
        mask = jnp.tril(jnp.ones((steps, steps), bool))
        x, _ = lax.scan(wrap(lambda x, one: body(x, one, mask)), x, params)
        return jnp.mean(x**2)

    def step(params, x):
        value, grads = jax.value_and_grad(loss)(params, x)
        return value, jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)

    params = {name: draw(LAYERS, WIDTH, WIDTH, seed=k) for k, name in enumerate("qkv")}
    params |= {"up": draw(LAYERS, WIDTH, 8, seed=3), "down": draw(LAYERS, 8, WIDTH, seed=4)}
    return step, (params, draw(BATCH, steps, WIDTH, seed=5))


def nested(wrap: Callable[[Any], Any]) -> tuple[Any, Any]:
    """A scan over layers, in each of which a loop runs in the other direction."""

    def turn(state, x):
        state = jnp.sin(state * x) + x
        return state, checkpoint_name(jnp.exp(-state * state), "hidden")

    def body(x, weight):
        x = jnp.tanh(x @ weight)
        state, rows = lax.scan(turn, x[0], x, reverse=True)
        return rows + state, None

    def loss(weights, x):
        return jnp.sum(lax.scan(wrap(body), x, weights)[0] ** 3)

    return jax.grad(loss, (0, 1)), (draw(LAYERS, WIDTH, WIDTH), draw(BATCH, WIDTH, seed=1))


def branches(wrap: Callable[[Any], Any]) -> tuple[Any, Any]:
    """A `cond` in each layer, and the whole step in another."""

    def body(x, one):
        weight, flag = one
        hidden = checkpoint_name(jnp.sin(x @ weight), "hidden")
        hidden = lax.cond(flag, lambda h: h * jnp.cos(h), lambda h: jnp.tanh(h), hidden)
        return x + hidden, None

    def loss(weights, x, flags):
        return jnp.sum(lax.scan(wrap(body), x, (weights, flags))[0] ** 2)

    def step(weights, x, flags):
        grads = jax.grad(loss)
        zeros = lambda weights, x, flags: weights * 0  # noqa: E731
        return lax.cond(flags[0], grads, zeros, weights, x, flags)

    flags = np.array([True, False, True])
    return step, (draw(LAYERS, WIDTH, WIDTH), draw(BATCH, WIDTH, seed=1), flags)


def masked(wrap: Callable[[Any], Any]) -> tuple[Any, Any]:
    """A scan over layers whose derivatives read masks of what the forward pass makes."""

    def body(x, weights):
        hidden = checkpoint_name(jax.nn.relu(x @ weights["up"]), "hidden")
        return x + jnp.abs(hidden @ weights["down"]), None

    def loss(params, x):
        return jnp.sum(lax.scan(wrap(body), x, params)[0] ** 2)

    params = {"up": draw(LAYERS, WIDTH, 8), "down": draw(LAYERS, 8, WIDTH, seed=1)}
    return jax.value_and_grad(loss), (params, draw(BATCH, WIDTH, seed=2))


def accumulated(wrap: Callable[[Any], Any]) -> tuple[Any, Any]:
    """Gradients of parts of the batch, summed in a loop around the forward and backward loops."""
    grads, (params, _) = mlp(wrap)

    def step(params, xs):
        def part(total, x):
            value, one = grads(params, x)
            return jax.tree.map(jnp.add, total, one), value

        return lax.scan(part, jax.tree.map(jnp.zeros_like, params), xs)

    return step, (params, draw(2, BATCH, WIDTH, seed=2))


def unrolled(wrap: Callable[[Any], Any]) -> tuple[Any, Any]:
    """Three layers one after another, each with products and a loop, that read a table."""

    def layer(x, weights, table):
        hidden = checkpoint_name(jnp.tanh(x @ weights["up"]) * table, "hidden")
        last, _ = lax.scan(lambda c, row: (jnp.sin(c + row), None), hidden[0], hidden)
        return x + jax.nn.relu(hidden * last) @ weights["down"]

    def loss(params, x, rows):
        table = jnp.cos(rows)
        for index, weights in enumerate(params):
            with jax.named_scope(f"layer_{index}"):
                x = wrap(layer)(x, weights, table)
        return jnp.sum(x * x)

    params = [
        {"up": draw(WIDTH, 8, seed=k), "down": draw(8, WIDTH, seed=10 + k)} for k in range(LAYERS)
    ]
    return jax.value_and_grad(loss), (params, draw(BATCH, WIDTH, seed=2), draw(8, seed=3))


PROGRAMS = {one.__name__: one for one in (mlp, transformer, nested, branches, masked, accumulated)}
"""Builders of a step and its arguments in double precision, by name."""
