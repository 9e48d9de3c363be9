"""Calls of tokamax' ragged products, traced for a TPU where there is none, with arrays for them."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

RNG = np.random.default_rng(0)
DEVICE = {"device_kind": "TPU v5", "num_cores": 1, "platform": "tpu"}


@contextlib.contextmanager
def on_tpu(kind: str = "TPU v5") -> Iterator[None]:
    """As if there were a TPU; skips where tokamax is not installed."""
    tokamax = pytest.importorskip("tokamax", reason="tokamax is not installed")
    device = jax.sharding.AbstractDevice(**{**DEVICE, "device_kind": kind})
    mesh = jax.sharding.AbstractMesh((), (), abstract_device=device)
    logging.getLogger("absl").setLevel(logging.ERROR)  # that no tuned tiles are known
    with tokamax.config.cross_compile(True), jax.sharding.use_abstract_mesh(mesh):
        yield


def array(*shape: int, dtype: Any = jnp.float32) -> Any:
    return jnp.asarray(RNG.standard_normal(shape), dtype)


def products(rows: Any, matrices: Any, sizes: Any, *, kind: str, **options: Any) -> Any:
    import tokamax

    return tokamax.ragged_dot(rows, matrices, sizes, implementation=kind, **options)


def gradients(rows: Any, matrices: Any, sizes: Any, errors: Any, **options: Any) -> Any:
    return jax.vjp(partial(products, sizes=sizes, **options), rows, matrices)[1](errors)


def quantised(array: Any, dtype: Any, *blocks: int) -> Any:
    """With one scale for each block of so many elements."""
    import qwix

    return qwix.quantize(array, dtype, tiled_axes=dict(enumerate(blocks)))


def right_quantised(rows: Any, matrices: Any, sizes: Any, *, kind: str, dtype: Any, block: int):
    return products(rows, quantised(matrices, dtype, 1, block, 1), sizes, kind=kind)


def both_quantised(rows: Any, matrices: Any, sizes: Any, *, kind: str, dtype: Any) -> Any:
    rows = quantised(rows, dtype, 1, rows.shape[1])
    return products(rows, quantised(matrices, dtype, 1, matrices.shape[1], 1), sizes, kind=kind)


def offset(rows: Any, matrices: Any, sizes: Any, first: Any, *, kind: str) -> Any:
    """The product of rows of some groups alone."""
    return products(rows, matrices, sizes, kind=kind, group_offset=first, zero_initialize=True)


SIZES = jnp.array([40, 0, 170, 18, 228, 0, 56, 0], jnp.int32)
ROWS, MATRICES, ERRORS = array(512, 256), array(8, 256, 256), array(512, 256)
GROUPED = ROWS, MATRICES, SIZES
HALF = ROWS.astype(jnp.bfloat16), MATRICES.astype(jnp.bfloat16), SIZES
V1, V2 = "mosaic_tpu", "mosaic_tpu_v2"

CALLS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "gmm": (partial(products, kind=V1), GROUPED),
    "tgmm": (partial(gradients, kind=V1), (*GROUPED, ERRORS)),
    "gmm of bf16": (partial(products, kind=V1), HALF),
    "gmm with relu": (partial(products, kind=V1, activation=jax.nn.relu), GROUPED),
    "gmm of int8 matrices": (
        partial(right_quantised, kind=V1, dtype=jnp.int8, block=256),
        HALF,
    ),
    "gmm of int8": (partial(both_quantised, kind=V1, dtype=jnp.int8), HALF),
    "gmm_v2": (partial(products, kind=V2), GROUPED),
    "tgmm_v2": (partial(gradients, kind=V2), (*GROUPED, ERRORS)),
    "gmm_v2 of bf16": (partial(products, kind=V2), HALF),
    "gmm_v2 with silu": (
        partial(products, kind=V2, fuse_gateup_activation="silu", zero_initialize=True),
        (ROWS, array(8, 256, 512), SIZES),
    ),
    "gmm_v2 of fp8 matrices": (
        partial(right_quantised, kind=V2, dtype=jnp.float8_e4m3fn, block=128),
        HALF,
    ),
    "gmm_v2 of some groups": (
        partial(offset, kind=V2),
        (ROWS, MATRICES[:4], SIZES, jnp.array([2], jnp.int32)),
    ),
}
