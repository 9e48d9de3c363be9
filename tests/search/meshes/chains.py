"""A step whose layers keep much for their backward passes, if they save it."""

from __future__ import annotations

import jax
import jax.numpy as jnp

import autoshard
from autoshard.models import training

LAYERS, WIDTH, DEPTH = 8, 16, 6


def chains(microbatches: int = 8, rows: int = 32, *, layers: int = LAYERS) -> training.Step:
    """A step of gradient descent of checkpointed layers, each a chain of `tanh(x w)`.

    A microbatch has so many `rows`.
    """

    def layer(x, weights):
        for number in range(DEPTH):
            x = jnp.tanh(x @ weights[number])
        return x, None

    def loss(params, batch):
        with jax.named_scope("read"):
            x = batch["inputs"] @ params["read"]
        with jax.named_scope("layers"):
            x, _ = jax.lax.scan(jax.checkpoint(layer), x, params["layers"])
        with jax.named_scope("write"):
            return jnp.mean((x @ params["read"].T - batch["targets"]) ** 2)

    def step(params, batch):
        value, gradients = autoshard.accumulate_grads(loss, microbatches=microbatches)(
            params, batch
        )
        return value, jax.tree.map(lambda w, g: w - 1e-2 * g, params, gradients)

    params = {
        "read": training.abstract(WIDTH, WIDTH),
        "layers": training.abstract(layers, DEPTH, WIDTH, WIDTH),
    }
    data = training.abstract(rows * microbatches, WIDTH)
    return training.Step(
        step, (params, {"inputs": data, "targets": data}), {"donate_argnums": (0,)}
    )
