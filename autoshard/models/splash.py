"""Fused causal attention as a Pallas kernel: JAX's splash attention for TPUs, forward and backward.

Scores never leave the chip, blocks that the mask hides are left out, and the backward pass makes
scores anew from the queries, the keys and the logarithms of the sums
(https://arxiv.org/abs/2205.14135; `jax.experimental.pallas.ops.tpu.splash_attention`). A plan
prices such a call from its own grid, on any chip.
"""

from __future__ import annotations

import math
from typing import Any

import jax
from jax.experimental.pallas.ops.tpu.splash_attention import (
    splash_attention_kernel,
    splash_attention_mask,
)

from autoshard import compat

MOST = 1024
"""Rows of a block, at most."""


def splash(
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    *,
    window: int = 0,
    block: int = MOST,
) -> jax.Array:
    """Causal attention of `queries: [b, s, n, h]` over `keys`, `values: [b, s, k, h]`.

    Args:
      queries, keys, values: `k` divides `n`.
      window: tokens that a query looks back at; 0 for all.
      block: rows and columns of a block, at most.

    Returns: `[b, s, n, h]`.
    """
    length, heads = queries.shape[1:3]
    block = math.gcd(length, block)
    if window and window < length:
        one = compat.local_mask(length, length, window)
    else:
        one = compat.causal_mask(length, length)
    sizes = splash_attention_kernel.BlockSizes(
        block_q=block,
        block_kv=block,
        block_kv_compute=block,
        block_q_dkv=block,
        block_kv_dkv=block,
        block_kv_dkv_compute=block,
        use_fused_bwd_kernel=True,
    )
    kernel: Any = splash_attention_kernel.make_splash_mha(
        splash_attention_mask.MultiHeadMask([one] * heads),
        block_sizes=sizes,
        residual_checkpoint_name="context",
        head_shards=1,
        q_seq_shards=1,
    )
    scaled = (queries * math.pow(queries.shape[-1], -0.5)).astype(queries.dtype)
    turned = [x.swapaxes(1, 2) for x in (scaled, keys, values)]
    return jax.vmap(kernel)(*turned).swapaxes(1, 2)
