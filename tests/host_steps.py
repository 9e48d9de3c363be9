"""Small steps that keep something in the memory of the host, for tests of several packages."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

POLICY = jax.checkpoint_policies.save_and_offload_only_these_names(
    names_which_can_be_saved=[],
    names_which_can_be_offloaded=["h"],
    offload_src="device",
    offload_dst="pinned_host",
)
SPACE = jax.memory.Space


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def layer(x: Any, w: Any) -> tuple[Any, None]:
    h = checkpoint_name(jnp.tanh(x @ w), "h")
    return h @ w.T + x, None


def activations(weights: Any, x: Any) -> Any:
    """A gradient whose activations wait for the backward pass on the host."""

    def loss(weights: Any) -> Any:
        return jnp.sum(jax.lax.scan(jax.checkpoint(layer, policy=POLICY), x, weights)[0] ** 2)

    return jax.value_and_grad(loss)(weights)


def moments(params: Any, kept: Any, x: Any) -> Any:
    """A step of momentum whose moments lie on the host between steps."""

    def loss(params: Any) -> Any:
        return jnp.sum(jnp.tanh(x @ params["a"]) @ params["b"])

    out, slopes = jax.value_and_grad(loss)(params)
    kept = jax.device_put(kept, SPACE.Device)
    kept = jax.tree.map(lambda m, g: 0.9 * m + g, kept, slopes)
    params = jax.tree.map(lambda w, m: w - 0.1 * m, params, kept)
    return params, jax.device_put(kept, SPACE.Host), out


def momentum(params: Any, kept: Any, x: Any) -> Any:
    """The same step, which says nothing of memories."""

    def loss(params: Any) -> Any:
        return jnp.sum(jnp.tanh(x @ params["a"]) @ params["b"])

    out, slopes = jax.value_and_grad(loss)(params)
    kept = jax.tree.map(lambda m, g: 0.9 * m + g, kept, slopes)
    return jax.tree.map(lambda w, m: w - 0.1 * m, params, kept), kept, out


ACTIVATIONS = (f32(3, 16, 64), f32(64, 16))
PARAMS = {"a": f32(16, 64), "b": f32(64, 16)}
MOMENTS = (PARAMS, PARAMS, f32(64, 16))
