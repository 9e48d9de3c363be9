"""Attention of whole sequences without a mask, as encoders have it, in ways that compute the same.

plain     scores, softmax in float32, weighted sum: every tensor is visible to the sharder
splash    JAX's own Pallas kernel for TPUs, `jax.experimental.pallas.ops.tpu.splash_attention`;
          positions are filled up to its lanes, and segments keep what is filled up apart
cudnn     cuDNN's kernel for NVIDIA GPUs, `jax.nn.dot_product_attention(implementation="cudnn")`
flash     the kernel of the platform: splash or cudnn

Queries, keys and values are `[b, s, n, h]`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

import jax
import jax.numpy as jnp

from autoshard.models.attention import LANES, Attend, kernel_of, splash_kernel

__all__ = ["WHOLE", "whole_attention"]


def whole_attention(kind: str) -> Attend:
    """Attention of one kind, of queries, keys and values.

    "flash" is that of the platform on which JAX runs by default.

    Raises ValueError for other kinds, and for "flash" where JAX has no kernel for the platform.
    """
    if kind == "flash":
        kind = kernel_of((jax.default_backend(),))
    if kind not in WHOLE:
        raise ValueError(f"attention is {kind!r}; it must be one of {', '.join(WHOLE)}, flash")
    return WHOLE[kind]


def plain(queries: jax.Array, keys: jax.Array, values: jax.Array) -> jax.Array:
    """Attention with its scores written out."""
    scores = jnp.einsum("bqnh,bsnh->bnqs", queries, keys).astype(jnp.float32)
    shares = jax.nn.softmax(scores / math.sqrt(queries.shape[-1]), axis=-1)
    return jnp.einsum("bnqs,bsnh->bqnh", shares.astype(values.dtype), values)


def splash(queries: jax.Array, keys: jax.Array, values: jax.Array) -> jax.Array:
    """Attention by JAX's Pallas kernel for TPUs, forward and backward in one block of rows each."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    length, heads, head_size = queries.shape[1:]
    filled = -(-length // LANES) * LANES
    kernel = splash_kernel(masks.FullMask((filled, filled)), heads, filled)
    scaled = queries * jnp.asarray(1 / math.sqrt(head_size), queries.dtype)
    turned = [jnp.swapaxes(one, 1, 2) for one in (scaled, keys, values)]
    if filled == length:
        return jnp.swapaxes(jax.vmap(kernel)(*turned), 1, 2)
    more = ((0, 0), (0, 0), (0, filled - length), (0, 0))
    beyond = (jnp.arange(filled) >= length).astype(jnp.int32)
    attend = partial(kernel, segment_ids=kernels.SegmentIds(q=beyond, kv=beyond))
    out = jax.vmap(attend)(*(jnp.pad(one, more) for one in turned))
    return jnp.swapaxes(out[:, :, :length], 1, 2)


def cudnn(queries: jax.Array, keys: jax.Array, values: jax.Array) -> jax.Array:
    """Attention by cuDNN."""
    return jax.nn.dot_product_attention(queries, keys, values, implementation="cudnn")


WHOLE: Mapping[str, Attend] = {"plain": plain, "splash": splash, "cudnn": cudnn}
"""Attention without a mask by the name of its kind."""
