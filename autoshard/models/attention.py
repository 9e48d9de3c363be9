"""Causal attention of whole sequences, in several ways that compute the same.

plain     scores, mask, softmax in float32, weighted sum: every tensor is visible to the sharder
blocked   the same over one block of keys after another, with a running maximum and sum; the
          backward pass makes the scores anew from their log-sum-exp. No array of all scores.
splash    JAX's own Pallas kernel for TPUs, `jax.experimental.pallas.ops.tpu.splash_attention`
cudnn     cuDNN's kernel for NVIDIA GPUs, `jax.nn.dot_product_attention(implementation="cudnn")`
flash     the kernel of the platform: splash or cudnn

The last three keep the output and its log-sum-exp, `[b, n, s]` in float32, for the backward pass
(FlashAttention-2, https://arxiv.org/abs/2307.08691), and skip blocks of scores that the mask hides.

Queries are `[b, s, n, h]`, keys and values `[b, s, k, h]`; `n` is a multiple of `k`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from autoshard import compat

__all__ = ["CAUSAL", "KINDS", "causal_attention", "kernel_of"]

Attend = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]

MASKED = -1e30
BLOCK = 512
"""Keys, and for splash queries, in a block, where so many divide the sequence."""

LANES = 128
"""The least block of splash."""

KINDS = ("plain", "blocked", "splash", "cudnn", "flash")

_KERNELS = {"tpu": "splash", "cuda": "cudnn", "gpu": "cudnn"}


def kernel_of(platforms: Collection[str]) -> str:
    """The kernel that stands for "flash" on these platforms, as JAX calls them.

    Raises ValueError where JAX has none.
    """
    for platform in platforms:
        if platform in _KERNELS:
            return _KERNELS[platform]
    raise ValueError(
        f"attention='flash' stands for a kernel of TPUs or GPUs, and this is for "
        f"{' or '.join(platforms) or 'an unknown platform'}; say 'splash' (TPU), 'cudnn' (GPU), "
        "'blocked' or 'plain'"
    )


def causal_attention(kind: str, length: int) -> Attend:
    """Causal attention of one kind over so many positions, of queries, keys and values.

    "flash" is that of the platform on which JAX runs by default.

    Raises ValueError for other kinds, and where no block of the kernel divides the positions.
    """
    if kind == "flash":
        kind = kernel_of((jax.default_backend(),))
    if kind not in CAUSAL:
        raise ValueError(f"attention is {kind!r}; it must be one of {', '.join(KINDS)}")
    if kind == "splash" and _block(length) < LANES:
        raise ValueError(
            f"splash attention takes blocks of {LANES} positions, which do not divide a sequence "
            f"of {length}; choose a sequence that they do"
        )
    return CAUSAL[kind]


def plain(
    queries: jax.Array, keys: jax.Array, values: jax.Array, position: jax.Array | int = 0
) -> jax.Array:
    """Attention of queries at `position`, `position + 1`, ... over keys at 0, 1, ..."""
    batch, length, heads, head_size = queries.shape
    kv_heads = keys.shape[2]
    queries = queries.reshape(batch, length, kv_heads, heads // kv_heads, head_size)
    scores = jnp.einsum("bqkgh,bskh->bkgqs", queries, keys).astype(jnp.float32)
    shape = (length, keys.shape[1])
    asking = lax.broadcasted_iota(jnp.int32, shape, 0) + position
    visible = lax.broadcasted_iota(jnp.int32, shape, 1) <= asking
    scores = jnp.where(visible, scores / math.sqrt(head_size), MASKED)
    shares = jax.nn.softmax(scores, axis=-1).astype(values.dtype)
    out = jnp.einsum("bkgqs,bskh->bqkgh", shares, values)
    return out.reshape(batch, length, heads, head_size)


def after_cache(
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    cache: Mapping[str, jax.Array],
    position: jax.Array,
) -> jax.Array:
    """Attention of one query at `position` over its own key and those of `cache` before it.

    The cache, `keys` and `values` of `[b, s, k, h]`, is read as it is: who calls writes the new key
    into it, and where it is donated no compiler needs a copy. The softmax is over both parts.
    """
    grouped = _grouped(queries, keys)
    scale = math.sqrt(queries.shape[-1])
    scores = jnp.einsum("bqkgh,bskh->bkgqs", grouped, cache["keys"]).astype(jnp.float32)
    earlier = lax.broadcasted_iota(jnp.int32, (1, scores.shape[-1]), 1) < position
    scores = jnp.where(earlier, scores / scale, MASKED)
    own = jnp.einsum("bqkgh,bqkh->bkgq", grouped, keys).astype(jnp.float32) / scale
    largest = jnp.maximum(jnp.max(scores, axis=-1), own)
    shares, share = jnp.exp(scores - largest[..., None]), jnp.exp(own - largest)
    total = jnp.sum(shares, axis=-1) + share
    shares = (shares / total[..., None]).astype(values.dtype)
    out = jnp.einsum("bkgqs,bskh->bqkgh", shares, cache["values"])
    out = out + jnp.einsum("bkgq,bqkh->bqkgh", (share / total).astype(values.dtype), values)
    return out.reshape(queries.shape)


@jax.custom_vjp
def blocked(queries: jax.Array, keys: jax.Array, values: jax.Array) -> jax.Array:
    """Attention over one block of keys after another (https://arxiv.org/abs/2112.05682)."""
    return _blocked_forward(queries, keys, values)[0]


def _blocked_forward(queries: jax.Array, keys: jax.Array, values: jax.Array) -> tuple[Any, Any]:
    grouped = _grouped(queries, keys)
    batch, length, kv_heads, group, head_size = grouped.shape

    def step(carry: Any, block: Any) -> tuple[Any, None]:
        largest, total, out = carry
        scores, values = _scores(grouped, *block[:2]), block[2]
        new = jnp.maximum(largest, jnp.max(scores, axis=-1))
        shares, decay = jnp.exp(scores - new[..., None]), jnp.exp(largest - new)
        part = jnp.einsum(
            "bkgqs,bskh->bkgqh",
            shares.astype(values.dtype),
            values,
            preferred_element_type=jnp.float32,
        )
        total = total * decay + jnp.sum(shares, axis=-1)
        return (new, total, out * decay[..., None] + part), None

    rows = (batch, kv_heads, group, length)
    start = (
        jnp.full(rows, MASKED, jnp.float32),
        jnp.zeros(rows, jnp.float32),
        jnp.zeros((*rows, head_size), jnp.float32),
    )
    (largest, total, out), _ = lax.scan(step, start, _blocks(keys, values))
    out = jnp.moveaxis(out / total[..., None], 3, 1).astype(queries.dtype).reshape(queries.shape)
    return out, (queries, keys, values, out, largest + jnp.log(total))


def _blocked_backward(kept: Any, error: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Dao et al., algorithm 2 of https://arxiv.org/abs/2307.08691, by blocks of keys."""
    queries, keys, values, out, log_sum = kept
    grouped, error = _grouped(queries, keys), _grouped(error, keys)
    wide = jnp.float32
    product = error.astype(wide) * _grouped(out, keys).astype(wide)
    offset = jnp.moveaxis(jnp.sum(product, axis=-1), 1, 3)
    scale = 1 / math.sqrt(queries.shape[-1])
    of = partial(jnp.einsum, preferred_element_type=wide)

    def step(to_queries: jax.Array, block: Any) -> tuple[jax.Array, Any]:
        _, keys, values = block
        shares = jnp.exp(_scores(grouped, *block[:2]) - log_sum[..., None])
        to_values = of("bkgqs,bqkgh->bskh", shares.astype(values.dtype), error)
        inner = of("bqkgh,bskh->bkgqs", error, values) - offset[..., None]
        to_scores = (shares * inner * scale).astype(keys.dtype)
        to_keys = of("bkgqs,bqkgh->bskh", to_scores, grouped)
        to_queries = to_queries + of("bkgqs,bskh->bqkgh", to_scores, keys)
        return to_queries, (to_keys.astype(keys.dtype), to_values.astype(values.dtype))

    start = jnp.zeros(grouped.shape, wide)
    to_queries, parts = lax.scan(step, start, _blocks(keys, values))
    to_keys, to_values = (jnp.moveaxis(one, 0, 1).reshape(keys.shape) for one in parts)
    return to_queries.astype(queries.dtype).reshape(queries.shape), to_keys, to_values


blocked.defvjp(_blocked_forward, _blocked_backward)


def _grouped(queries: jax.Array, keys: jax.Array) -> jax.Array:
    batch, length, heads, head_size = queries.shape
    kv_heads = keys.shape[2]
    return queries.reshape(batch, length, kv_heads, heads // kv_heads, head_size)


def _blocks(*arrays: jax.Array) -> tuple[jax.Array, ...]:
    """Where each block of keys starts, and the blocks of each array, one after another."""
    batch, length, kv_heads, head_size = arrays[0].shape
    size = _block(length)
    parts = (one.reshape(batch, -1, size, kv_heads, head_size) for one in arrays)
    return jnp.arange(0, length, size), *(jnp.moveaxis(one, 1, 0) for one in parts)


def _scores(grouped: jax.Array, start: jax.Array, keys: jax.Array) -> jax.Array:
    """Scores `[b, k, g, q, s]` of all queries with a block of keys that begins at `start`."""
    scores = jnp.einsum("bqkgh,bskh->bkgqs", grouped, keys).astype(jnp.float32)
    shape = scores.shape[-2:]
    places = lax.broadcasted_iota(jnp.int32, shape, 1) + start
    visible = places <= lax.broadcasted_iota(jnp.int32, shape, 0)
    return jnp.where(visible, scores / math.sqrt(grouped.shape[-1]), MASKED)


def _block(length: int) -> int:
    """The largest power of two that divides a length, up to `BLOCK`."""
    return math.gcd(length, BLOCK)


def splash(queries: jax.Array, keys: jax.Array, values: jax.Array) -> jax.Array:
    """Attention by JAX's Pallas kernel for TPUs; heads of a group read the same keys and values."""
    _, length, heads, head_size = queries.shape
    kernel = splash_kernel(compat.causal_mask(length, length), heads, length)
    scaled = queries * jnp.asarray(1 / math.sqrt(head_size), queries.dtype)
    attend: Any = jax.vmap(kernel)
    out = attend(*(jnp.swapaxes(one, 1, 2) for one in (scaled, keys, values)))
    return jnp.swapaxes(out, 1, 2)


def splash_kernel(mask: Any, heads: int, length: int) -> Any:
    """The Pallas kernel for one sequence, with the same mask in all heads."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    size = _block(length)
    return kernels.make_splash_mha(
        masks.MultiHeadMask([mask] * heads),
        head_shards=1,
        q_seq_shards=1,
        block_sizes=kernels.BlockSizes(
            *(size,) * 3, *(size,) * 3, block_q_dq=size, block_kv_dq=size
        ),
    )


def cudnn(queries: jax.Array, keys: jax.Array, values: jax.Array, *, window: int = 0) -> jax.Array:
    """Attention by cuDNN; heads of a group read the same keys and values.

    Args:
      queries, keys, values: as of `plain`.
      window: tokens that a query looks back at; 0 for all.
    """
    return jax.nn.dot_product_attention(
        queries,
        keys,
        values,
        is_causal=True,
        implementation="cudnn",
        local_window_size=(window, 0) if window and window < queries.shape[1] else None,
    )


CAUSAL: Mapping[str, Attend] = {
    "plain": plain,
    "blocked": blocked,
    "splash": splash,
    "cudnn": cudnn,
}
"""Causal attention by the name of its kind."""
