"""Bare calls of library kernels that the table knows, with arrays that they take."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

RNG = np.random.default_rng(0)


def array(*shape: int) -> Any:
    return jnp.asarray(RNG.standard_normal(shape), jnp.float32)


def products(rows: Any, matrices: Any, sizes: Any, **options: Any) -> Any:
    from jax.experimental.pallas.ops.tpu.megablox import gmm

    return gmm(rows, matrices, sizes, tiling=(64, 128, 128), **options)


def gradients(rows: Any, matrices: Any, sizes: Any, errors: Any) -> Any:
    return jax.vjp(partial(products, sizes=sizes), rows, matrices)[1](errors)


def decode(queries: Any, *rest: Any, **options: Any) -> Any:
    from jax.experimental.pallas.ops.tpu.paged_attention import paged_attention

    return paged_attention(queries, *rest, pages_per_compute_block=2, **options)


def ragged(queries: Any, *rest: Any, **options: Any) -> Any:
    from jax.experimental.pallas.ops.tpu.ragged_paged_attention import ragged_paged_attention

    options = {"num_kv_pages_per_block": 2, "num_queries_per_block": 8, **options}
    return ragged_paged_attention(queries, *rest, **options)


SIZES = jnp.array([40, 0, 70, 18, 128, 0, 0, 0], jnp.int32)
GROUPED = array(256, 256), array(8, 256, 256), SIZES
PAGES = jnp.asarray(RNG.integers(0, 16, (4, 4)), jnp.int32)
LENGTHS = jnp.array([5, 64, 1, 33], jnp.int32)
PAGED = array(4, 8, 128) / 11, array(2, 16, 16, 128), array(2, 16, 16, 128), LENGTHS, PAGES
TABLE = jnp.asarray(RNG.integers(0, 16, (6, 4)), jnp.int32)
ENDS = jnp.array([0, 1, 14, 15, 28, 0, 0], jnp.int32)
KEYS = jnp.array([5, 60, 33, 17, 0, 0], jnp.int32)
RAGGED = array(32, 8, 128) / 11, array(16, 16, 4, 128), KEYS, TABLE, ENDS, jnp.array([4], jnp.int32)

CALLS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "gmm": (products, GROUPED),
    "tgmm": (gradients, (*GROUPED, array(256, 256))),
    "paged_attention": (decode, PAGED),
    "ragged_paged_attention": (ragged, RAGGED),
}
