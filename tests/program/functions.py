"""Functions to trace that several tests share."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax


def two_loops(x):
    def again(h):
        with jax.named_scope("inner"):
            return lax.while_loop(lambda g: jnp.sum(g) < 9.0, jnp.exp, h)

    with jax.named_scope("outer"):
        x = lax.while_loop(lambda h: jnp.sum(h) < 5.0, lambda h: jnp.sin(again(h)), x)
    with jax.named_scope("last"):
        return lax.while_loop(lambda h: jnp.sum(h) < 7.0, jnp.cos, x)


def base(x, w):
    return jnp.tanh(x @ w)
