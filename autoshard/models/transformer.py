"""The blocks of a decoder-only transformer: RMS norm, rotary positions, grouped attention, SwiGLU.

Sizes are letters in the einsums below: `b` sequences, `q` and `s` positions, `d` model width,
`n` query heads = `k` key/value heads times `g` queries each, `h` head size, `f` hidden width.

- RMS norm: https://arxiv.org/abs/1910.07467, in float32.
- Rotary embedding: https://arxiv.org/abs/2104.09864, each head split into two halves.
- Grouped-query attention: https://arxiv.org/abs/2305.13245; keys and values are never repeated.
- SwiGLU: https://arxiv.org/abs/2002.05202.

Attention is one of `autoshard.models.attention`; by default the plain one, in which nothing is
fused by hand, so that every tensor is visible to the sharder.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from autoshard.models.annotate import constrain
from autoshard.models.attention import Attend, plain
from autoshard.models.training import abstract, project

ATTENTION_AXES = {
    "wq": ("embed", "heads", "head_size"),
    "wk": ("embed", "kv_heads", "head_size"),
    "wv": ("embed", "kv_heads", "head_size"),
    "wo": ("heads", "head_size", "embed"),
}
DECODER_AXES = {
    "embedding": ("vocab", "embed"),
    "unembedding": ("embed", "vocab"),
    "attention_norm": ("norm",),
    "ffn_norm": ("norm",),
    "final_norm": ("norm",),
    **ATTENTION_AXES,
}
"""Logical names of what every decoder has: its tables, its norms and its attention."""
TOKEN_AXES = {"tokens": ("batch", "length"), "targets": ("batch", "length")}
SWIGLU_AXES = {"gate": ("embed", "mlp"), "up": ("embed", "mlp"), "down": ("mlp", "embed")}
STREAM = ("batch", "norm_length", "embed")
"""Logical names between the parts of a layer; inside of them the positions are called "length"."""


def rms_norm(x: jax.Array, scale: jax.Array, epsilon: float = 1e-5) -> jax.Array:
    """`x / sqrt(mean(x^2) + epsilon) * scale` over the last dimension."""
    wide = x.astype(jnp.float32)
    mean_square = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
    return (wide * lax.rsqrt(mean_square + epsilon) * scale).astype(x.dtype)


def rotary_angles(positions: jax.Array, head_size: int, theta: float) -> jax.Array:
    """Angles `[positions, head_size / 2]` of the rotary embedding."""
    exponents = jnp.arange(0, head_size, 2, dtype=jnp.float32) / head_size
    return positions.astype(jnp.float32)[:, None] * theta**-exponents


def rotate(x: jax.Array, angles: jax.Array) -> jax.Array:
    """Rotate `x: [b, s, heads, h]` by `angles: [s, h / 2]`."""
    cosine, sine = jnp.cos(angles)[:, None, :], jnp.sin(angles)[:, None, :]
    left, right = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = (left * cosine - right * sine, right * cosine + left * sine)
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)


def attention_weights(width: int, heads: int, kv_heads: int, head_size: int, dtype: Any) -> Any:
    """The abstract weights that `queries_keys_values` and `attention` read."""
    return {
        "wq": abstract(width, heads, head_size, dtype=dtype),
        "wk": abstract(width, kv_heads, head_size, dtype=dtype),
        "wv": abstract(width, kv_heads, head_size, dtype=dtype),
        "wo": abstract(heads, head_size, width, dtype=dtype),
    }


def queries_keys_values(
    weights: Any, x: jax.Array, angles: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Queries `[b, s, n, h]`, keys and values `[b, s, k, h]` of `x: [b, s, d]`."""
    queries = rotate(project("bsd,dnh->bsnh", x, weights["wq"]), angles)
    keys = rotate(project("bsd,dkh->bskh", x, weights["wk"]), angles)
    values = project("bsd,dkh->bskh", x, weights["wv"])
    return (
        constrain(queries, "batch", "length", "heads", "head_size"),
        constrain(keys, "batch", "kv_length", "kv_heads", "head_size"),
        constrain(values, "batch", "kv_length", "kv_heads", "head_size"),
    )


def attention(weights: Any, x: jax.Array, angles: jax.Array, attend: Attend = plain) -> jax.Array:
    """Causal self-attention of `x: [b, s, d]`."""
    queries, keys, values = queries_keys_values(weights, x, angles)
    out = attend(queries, keys, values)
    out = constrain(out, "batch", "length", "heads", "head_size")
    return project("bsnh,nhd->bsd", out, weights["wo"])


def swiglu_weights(width: int, hidden: int, dtype: Any) -> Any:
    """The abstract weights that `swiglu` reads."""
    return {
        "gate": abstract(width, hidden, dtype=dtype),
        "up": abstract(width, hidden, dtype=dtype),
        "down": abstract(hidden, width, dtype=dtype),
    }


def swiglu(weights: Any, x: jax.Array) -> jax.Array:
    """The gated feed-forward layer `(silu(x W_gate) * x W_up) W_down`."""
    gate = jax.nn.silu(project("bsd,df->bsf", x, weights["gate"]))
    up = project("bsd,df->bsf", x, weights["up"])
    hidden = constrain(gate * up, "batch", "length", "mlp")
    return project("bsf,fd->bsd", hidden, weights["down"])
