"""JAX's own kernels whose grids do not say how they may be cut, with rules that do.

`grouped_product`   megablox `gmm`: data says how large its grid is
`paged_attention`   copies pages of keys and values by itself, ahead of time

Each is a function of `autoshard.kernel` around JAX's: a call is one op of a plan, forward and
backward, and a device calls JAX's function anew, with its own experts, sequences or heads.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from autoshard.program.kernels.ruled import kernel

__all__ = ["grouped_product", "paged_attention"]

Tiling = tuple[int, int, int]


def grouped_product(
    rows: jax.Array, matrices: jax.Array, sizes: jax.Array, *, tiling: Tiling = (128, 128, 128)
) -> jax.Array:
    """Multiply each row by its group's matrix, by JAX's Pallas kernel for TPUs (megablox).

    What `jax.lax.ragged_dot` computes. It may be cut by groups (experts), by columns and by what is
    contracted; rows stay whole on every device, which works on those of its own groups.

    Args:
      rows: `[m, k]`, of one group after another.
      matrices: `[g, k, n]`.
      sizes: int32 `[g]`, how many rows each group has; they sum up to `m`.
      tiling: rows, contracted elements and columns of a block; the first divides `m`.

    Returns `[m, n]`, of the type of `rows`.
    """
    places = jnp.arange(matrices.shape[0], dtype=jnp.int32)
    return _grouped(rows, matrices, sizes, places, tiling=tiling)


def _product_flops(rows: Any, matrices: Any, *_: Any) -> float:
    return 2.0 * rows.shape[0] * matrices.shape[1] * matrices.shape[2]


@kernel(
    "m k, g k n, s, g -> m n",
    reduction={"g": "sum", "k": "sum"},
    replicate=("m", "s"),
    flops=_product_flops,
)
def _grouped(
    rows: jax.Array, matrices: jax.Array, sizes: jax.Array, places: jax.Array, *, tiling: Tiling
) -> jax.Array:
    from jax.experimental.pallas.ops.tpu.megablox.ops import gmm

    return gmm(rows, matrices, sizes, rows.dtype, tiling, places[0])


def paged_attention(
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    lengths: jax.Array,
    pages: jax.Array,
    *,
    pages_per_block: int,
) -> jax.Array:
    """One query of each sequence over its pages of keys and values, by JAX's kernel for TPUs.

    It may be cut by sequences, by heads of keys and by the heads that share one; pages are whole on
    every device. Queries are taken as they come: scale them before.

    Args:
      queries: `[b, n, h]`; `n` is a multiple of `k`, and heads that share keys stand together.
      keys, values: `[k, p, s, h]`, pages of `s` positions.
      lengths: int32 `[b]`, positions of each sequence.
      pages: int32 `[b, m]`, the pages of each sequence in order.
      pages_per_block: pages that are worked on at once; divides `m`.

    Returns `[b, n, h]`.
    """
    batch, heads, width = queries.shape
    grouped = queries.reshape(batch, keys.shape[0], -1, width)
    out = _paged(grouped, keys, values, lengths, pages, pages_per_block=pages_per_block)
    return out.reshape(batch, heads, width)


@kernel("b k g h, k p s h, k p s h, b, b m -> b k g h", replicate=("h", "p", "s", "m"))
def _paged(
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    lengths: jax.Array,
    pages: jax.Array,
    *,
    pages_per_block: int,
) -> jax.Array:
    from jax.experimental.pallas.ops.tpu.paged_attention import paged_attention_kernel

    batch, _, _, width = queries.shape
    out = paged_attention_kernel.paged_attention(
        queries.reshape(batch, -1, width),
        keys,
        values,
        lengths,
        pages,
        pages_per_compute_block=pages_per_block,
    )
    return out.reshape(queries.shape)
