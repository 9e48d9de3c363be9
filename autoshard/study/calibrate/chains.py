"""The programs that are timed: chains of links, each of which needs the one before.

Every function returns the program of a chain of so many links, to be run by every device on its own
arrays (`autoshard.study.calibrate.timing.on_each_device`):

    matmul          x [m, k] @ w [k, n], then @ v [n, k], which has as many FLOP and bytes
    elementwise     x / 2 + a, then x / 2 + b: two arrays are read and one is written
    multiply_adds   many multiply-adds per element, for the vector unit
    attention       softmax(q k^T) v, which is the next q
    collective      all_reduce, all_to_all, collective_permute: the result is the next operand;
                    all_gather: the first shard of the result is; reduce_scatter: the result is
                    written over the first shard of its operand

Barriers keep elementwise links from being fused. The last two collectives touch one shard of memory
besides.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

Program = Callable[..., Any]

MULTIPLY_ADDS = 128
"""Per element and link: enough that the vector unit is busy, not memory."""


def matmul(links: int) -> Program:
    """`x [m, k], w [k, n], v [n, k]` to `[m, n]` or `[m, k]`."""

    def program(x: Any, w: Any, v: Any) -> Any:
        for link in range(links):
            x = x @ (v if link % 2 else w)
        return x

    return program


def elementwise(links: int) -> Program:
    """Three arrays of one shape to one."""

    def program(x: Any, a: Any, b: Any) -> Any:
        for link in range(links):
            x = jax.lax.optimization_barrier(x * 0.5 + (b if link % 2 else a))
        return x

    return program


def multiply_adds(links: int) -> Program:
    """One array to one."""

    def program(x: Any) -> Any:
        for _ in range(links):
            y = x
            for _ in range(MULTIPLY_ADDS):
                y = y * x + 0.125
            x = jax.lax.optimization_barrier(y)
        return x

    return program


def attention(links: int) -> Program:
    """`q, k, v [heads, length, depth]` to the same."""

    def program(q: Any, k: Any, v: Any) -> Any:
        for _ in range(links):
            scores = jnp.einsum("hqd,hkd->hqk", q, k) / math.sqrt(q.shape[-1])
            q = jnp.einsum("hqk,hkd->hqd", jax.nn.softmax(scores, axis=-1), v)
        return q

    return program


def collective(kind: str, group: int, links: int) -> Program:
    """`[group, n]` (to be gathered: `[1, n]`) to the same, over the axis "group"."""

    def program(x: Any) -> Any:
        for _ in range(links):
            x = _collective(x, kind, group)
        return x

    return program


def beside(kind: str | None, group: int, links: int) -> Program:
    """Matmuls `x @ w`, and collectives of `y` that do not need them; without `kind`, none."""

    def program(x: Any, w: Any, *y: Any) -> Any:
        for _ in range(links):
            x = x @ w
            if kind is not None:
                y = tuple(_collective(operand, kind, group) for operand in y)
        return x, *y

    return program


def hlo_name(kind: str) -> str:
    """What XLA calls a collective, as a pattern; some compilers slice an all-reduce instead."""
    return "reduce-scatter|all-reduce" if kind == "reduce_scatter" else kind.replace("_", "-")


def _collective(x: Any, kind: str, group: int) -> Any:
    if kind == "all_gather":
        return jax.lax.all_gather(x, "group", axis=0, tiled=True)[:1]
    if kind == "reduce_scatter":
        summed = jax.lax.psum_scatter(x, "group", scatter_dimension=0, tiled=True)
        return jax.lax.dynamic_update_slice(x, summed, (0, 0))
    if kind == "all_reduce":
        return jax.lax.psum(x, "group")
    if kind == "all_to_all":
        return jax.lax.all_to_all(x, "group", 0, 0, tiled=True)
    return jax.lax.ppermute(x, "group", [(i, (i + 1) % group) for i in range(group)])
