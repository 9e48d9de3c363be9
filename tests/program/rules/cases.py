"""One equation of every family, the rule that it must have, and how its operands are drawn.

A case is found by its name; its function has one equation of the primitive that is meant.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.shard_alike import shard_alike


@dataclass(frozen=True)
class Drawn:
    """An operand to draw: well-conditioned floats, small indices, booleans, or random keys."""

    shape: tuple[int, ...]
    dtype: Any = jnp.float32

    def draw(self, generator: np.random.Generator) -> Any:
        if self.dtype == "key":
            seeds = generator.integers(0, 2**30, self.shape).astype(np.uint32)
            return jax.random.wrap_key_data(jnp.asarray(np.stack([seeds, seeds + 1], -1)))
        if self.dtype is bool:
            return jnp.asarray(generator.random(self.shape) > 0.5)
        if np.issubdtype(self.dtype, np.integer):
            return jnp.asarray(generator.integers(0, 6, self.shape), self.dtype)
        values = generator.uniform(0.2, 0.9, self.shape)
        if len(self.shape) > 1 and self.shape[-1] == self.shape[-2]:
            values = values + 3 * np.eye(self.shape[-1])
        return jnp.asarray(values, self.dtype)


def f(*shape: int, dtype: Any = jnp.float32) -> Drawn:
    return Drawn(shape, dtype)


def i(*shape: int) -> Drawn:
    return Drawn(shape, jnp.int32)


def b(*shape: int) -> Drawn:
    return Drawn(shape, bool)


def key(*shape: int) -> Drawn:
    return Drawn(shape, "key")


@dataclass(frozen=True)
class Case:
    primitive: str
    rule: str
    function: Callable[..., Any]
    operands: tuple[Drawn, ...]


def gather(*offset: int, collapsed: tuple[int, ...] = (), mapped: tuple[int, ...] = (0,)) -> Any:
    return lax.GatherDimensionNumbers(offset, collapsed, mapped)


def conv(a: Any, k: Any, stride: int = 1, padding: str = "VALID", **options: Any) -> Any:
    names = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(
        a, k, (stride, stride), padding, dimension_numbers=names, **options
    )


def pool(a: Any, window: int, stride: int) -> Any:
    size, step = (1, window), (1, stride)
    return lax.reduce_window(a, -jnp.inf, lax.max, size, step, "VALID")


def sum_of_squares(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *operands: (function(*operands) ** 2).sum()


CASES: dict[str, Case] = {}


def case(name: str, primitive: str, rule: str, function: Callable[..., Any], *operands: Drawn):
    CASES[name] = Case(primitive, rule, function, operands)


case(
    "dot_general",
    "dot_general",
    "([i, j, l], [i, l, k])->([i, j, k]) {i=4, j=6, k=2, l=8} reduction={l}",
    lambda a, b: jnp.einsum("bik,bkj->bij", a, b),
    f(4, 6, 8),
    f(4, 8, 2),
)
case(
    "dot_two_contracted",
    "dot_general",
    "([i, k, l], [k, l, j])->([i, j]) {i=4, j=6, k=2, l=8} reduction={k, l}",
    lambda a, b: jnp.einsum("ihk,hkj->ij", a, b),
    f(4, 2, 8),
    f(2, 8, 6),
)
case(
    "dot_general_bf16",
    "dot_general",
    "([i, k], [k, j])->([i, j]) {i=4, j=2, k=8} reduction={k}",
    lambda a, b: jnp.dot(a, b, preferred_element_type=jnp.float32),
    f(4, 8, dtype=jnp.bfloat16),
    f(8, 2, dtype=jnp.bfloat16),
)
case(
    "ragged_dot",
    "ragged_dot_general",
    (
        "([i, k], [l, k, j], [m])->([i, j]) {i=16, j=6, k=8, l=4, m=4} reduction={k} "
        "need_replication={i, l, m}"
    ),
    lax.ragged_dot,
    f(16, 8),
    f(4, 8, 6),
    i(4),
)
case(
    "conv_overlap",
    "conv_general_dilated",
    (
        "([i, j, k, m], [n, o, m, l])->([i, j, k, l]) {i=2, j=16, k=16, l=6, m=4, n=3, o=3} "
        "reduction={m} need_replication={n, o} permutation={j, k}"
    ),
    lambda a, k: conv(a, k, padding="SAME"),
    f(2, 16, 16, 4),
    f(3, 3, 4, 6),
)
case(
    "conv_1x1",
    "conv_general_dilated",
    (
        "([i, j, k, m], [n, o, m, l])->([i, j, k, l]) {i=2, j=8, k=8, l=6, m=4, n=1, o=1} "
        "reduction={m}"
    ),
    conv,
    f(2, 8, 8, 4),
    f(1, 1, 4, 6),
)
case(
    "conv_patches",
    "conv_general_dilated",
    (
        "([i, jm, kn, o], [m, n, o, l])->([i, j, k, l]) {i=2, j=4, k=4, l=6, m=4, n=4, o=4} "
        "reduction={m, n, o}"
    ),
    lambda a, k: conv(a, k, 4),
    f(2, 16, 16, 4),
    f(4, 4, 4, 6),
)
case(
    "conv_groups",
    "conv_general_dilated",
    (
        "([i, j, k, ln], [o, p, n, lm])->([i, j, k, lm]) {i=2, j=8, k=8, l=4, m=3, n=2, o=1, "
        "p=1} reduction={n} need_replication={l}"
    ),
    lambda a, k: conv(a, k, feature_group_count=4),
    f(2, 8, 8, 8),
    f(1, 1, 2, 12),
)
case(
    "conv_groups_overlap",
    "conv_general_dilated",
    (
        "([i, j, k, ln], [o, p, n, lm])->([i, j, k, lm]) {i=2, j=6, k=6, l=2, m=4, n=4, o=3, "
        "p=3} reduction={n} need_replication={i, l, o, p} permutation={j, k}"
    ),
    lambda a, k: conv(a, k, feature_group_count=2),
    f(2, 8, 8, 8),
    f(3, 3, 4, 8),
)
case(
    "conv_depthwise",
    "conv_general_dilated",
    (
        "([i, j, k, l], [n, o, p, lm])->([i, j, k, lm]) {i=2, j=6, k=6, l=8, m=2, n=3, o=3, "
        "p=1} reduction={p} need_replication={n, o} permutation={j, k}"
    ),
    lambda a, k: conv(a, k, feature_group_count=8),
    f(2, 8, 8, 8),
    f(3, 3, 1, 16),
)
case(
    "conv_strided",
    "conv_general_dilated",
    (
        "([i, j, k, m], [n, o, m, l])->([i, j, k, l]) {i=2, j=8, k=8, l=6, m=4, n=3, o=3} "
        "reduction={m} need_replication={n, o} permutation={j, k}"
    ),
    lambda a, k: conv(a, k, 2, "SAME"),
    f(2, 16, 16, 4),
    f(3, 3, 4, 6),
)
case(
    "conv_kernel_gradient",
    "conv_general_dilated",
    (
        "([m, n, o, k], [m, p, q, l])->([i, j, k, l]) {i=3, j=3, k=8, l=6, m=2, n=16, o=16, "
        "p=16, q=16} reduction={m} need_replication={n, o, p, q}"
    ),
    lambda k, a: jax.vjp(lambda k: conv(a, k, padding="SAME"), k)[1](a[..., :6]),
    f(3, 3, 8, 6),
    f(2, 16, 16, 8),
)
case(
    "conv_1x1_kernel_gradient",
    "conv_general_dilated",
    (
        "([m, n, o, k], [m, n, o, l])->([i, j, k, l]) {i=1, j=1, k=8, l=6, m=2, n=8, o=8} "
        "reduction={m, n, o}"
    ),
    lambda k, a: jax.vjp(lambda k: conv(a, k), k)[1](a[..., :6]),
    f(1, 1, 8, 6),
    f(2, 8, 8, 8),
)
case(
    "conv_1x1_strided",
    "conv_general_dilated",
    (
        "([i, jm, kn, o], [p, q, o, l])->([i, j, k, l]) {i=2, j=4, k=4, l=6, m=2, n=2, o=4, "
        "p=1, q=1} reduction={o} need_replication={m, n}"
    ),
    lambda a, k: conv(a, k, 2),
    f(2, 8, 8, 4),
    f(1, 1, 4, 6),
)
case(
    "conv_patches_kernel_gradient",
    "conv_general_dilated",
    (
        "([m, ni, oj, k], [m, n, o, l])->([i, j, k, l]) {i=4, j=4, k=8, l=6, m=2, n=4, o=4} "
        "reduction={m} need_replication={n, o}"
    ),
    lambda k, a: jax.vjp(lambda k: conv(a, k, 4), k)[1](a[:, :4, :4, :6]),
    f(4, 4, 8, 6),
    f(2, 16, 16, 8),
)
case(
    "conv_patches_input_gradient",
    "conv_general_dilated",
    (
        "([i, j, l, o], [p, q, n, o])->([i, jk, lm, n]) {i=2, j=4, k=4, l=4, m=4, n=8, o=6, "
        "p=4, q=4} reduction={o} need_replication={p, q}"
    ),
    lambda k, a: jax.vjp(lambda a: conv(a, k, 4), a)[1](a[:, :4, :4, :6]),
    f(4, 4, 8, 6),
    f(2, 16, 16, 8),
)
case(
    "conv_1x1_strided_input_gradient",
    "conv_general_dilated",
    (
        "([i, j, l, o], [p, q, n, o])->([i, jk, lm, n]) {i=2, j=8, k=2, l=8, m=2, n=8, o=6, "
        "p=1, q=1} reduction={o}"
    ),
    lambda k, a: jax.vjp(lambda a: conv(a, k, 2), a)[1](a[:, :8, :8, :6]),
    f(1, 1, 8, 6),
    f(2, 16, 16, 8),
)
case(
    "conv_overlap_input_gradient",
    "conv_general_dilated",
    (
        "([i, j, k, m], [n, o, l, m])->([i, j, k, l]) {i=2, j=16, k=16, l=8, m=6, n=3, o=3} "
        "reduction={m} need_replication={n, o} permutation={j, k}"
    ),
    lambda k, a: jax.vjp(lambda a: conv(a, k, padding="SAME"), a)[1](a[..., :6]),
    f(3, 3, 8, 6),
    f(2, 16, 16, 8),
)
case(
    "pool_tiles",
    "reduce_window_max",
    "([i, jk])->([i, j]) {i=4, j=4, k=2} need_replication={k}",
    lambda a: pool(a, 2, 2),
    f(4, 8),
)
case(
    "pool_overlap",
    "reduce_window_max",
    "([i, j])->([i, j]) {i=4, j=14} permutation={j}",
    lambda a: pool(a, 3, 1),
    f(4, 16),
)
case(
    "pool_gradient",
    "select_and_scatter_add",
    "([i, k], [i, j])->([i, j]) {i=4, j=8, k=4} need_replication={k} permutation={j}",
    lambda a: jax.vjp(lambda a: pool(a, 2, 2), a)[1](a[:, :4]),
    f(4, 8),
)
case(
    "embedding",
    "gather",
    (
        "([l, k], [i, j, m])->([i, j, k]) {i=4, j=2, k=6, l=8, m=1} reduction={l} "
        "need_replication={m}"
    ),
    lambda a, n: a[n],
    f(8, 6),
    i(4, 2),
)
case(
    "gather_fill",
    "gather",
    "([k, j], [i, l])->([i, j]) {i=4, j=6, k=8, l=1} reduction={k} need_replication={l}",
    lambda a, n: jnp.take(a, n, axis=0),
    f(8, 6),
    i(4),
)
case(
    "gather_fill_integers",
    "gather",
    "([k, j], [i, l])->([i, j]) {i=4, j=6, k=8, l=1} need_replication={k, l}",
    lambda a, n: jnp.take(a, n, axis=0),
    i(8, 6),
    i(4),
)
case(
    "take_along_axis",
    "gather",
    "([i, k], [i, j, l])->([i, j]) {i=4, j=6, k=8, l=1} reduction={k} need_replication={l}",
    lambda a, n: jnp.take_along_axis(a, n, axis=1),
    f(4, 8),
    i(4, 6),
)
case(
    "gather_window",
    "gather",
    "([i, j], [k])->([i, j]) {i=4, j=2, k=1} need_replication={j, k}",
    lambda a, n: lax.gather(a, n, gather(0, 1, mapped=(1,)), (4, 2)),
    f(4, 8),
    i(1),
)
case(
    "scatter_add",
    "scatter-add",
    ("([i, j], [k, l], [k, j])->([i, j]) {i=8, j=6, k=4, l=1} reduction={k} need_replication={l}"),
    lambda a, n, u: a.at[n].add(u),
    f(8, 6),
    i(4),
    f(4, 6),
)
case(
    "scatter_max",
    "scatter-max",
    (
        "([i, j], [k, l], [k, j])->([i, j]) {i=8, j=6, k=4, l=1} reduction={k:max} "
        "need_replication={l}"
    ),
    lambda a, n, u: a.at[n].max(u),
    f(8, 6),
    i(4),
    f(4, 6),
)
case(
    "scatter_min",
    "scatter-min",
    (
        "([i, j], [k, l], [k, j])->([i, j]) {i=8, j=6, k=4, l=1} reduction={k:min} "
        "need_replication={l}"
    ),
    lambda a, n, u: a.at[n].min(u),
    f(8, 6),
    i(4),
    f(4, 6),
)
case(
    "scatter_mul",
    "scatter-mul",
    (
        "([i, j], [k, l], [k, j])->([i, j]) {i=8, j=6, k=4, l=1} reduction={k:prod} "
        "need_replication={l}"
    ),
    lambda a, n, u: a.at[n].multiply(u),
    f(8, 6),
    i(4),
    f(4, 6),
)
case(
    "scatter_set",
    "scatter",
    "([i, j], [k, l], [k, j])->([i, j]) {i=8, j=6, k=4, l=1} need_replication={k, l}",
    lambda a, n, u: a.at[n].set(u),
    f(8, 6),
    i(4),
    f(4, 6),
)
case(
    "segment_sum",
    "scatter-add",
    ("([i, j], [k, l], [k, j])->([i, j]) {i=6, j=4, k=8, l=1} reduction={k} need_replication={l}"),
    lambda a, n: jax.ops.segment_sum(a, n, 6),
    f(8, 4),
    i(8),
)
case(
    "reduce_sum",
    "reduce_sum",
    "([i, j])->([i]) {i=4, j=8} reduction={j}",
    lambda a: a.sum(1),
    f(4, 8),
)
case(
    "reduce_max",
    "reduce_max",
    "([i, j])->([i]) {i=4, j=8} reduction={j:max}",
    lambda a: a.max(1),
    f(4, 8),
)
case(
    "reduce_min",
    "reduce_min",
    "([j, i])->([i]) {i=8, j=4} reduction={j:min}",
    lambda a: a.min(0),
    f(4, 8),
)
case(
    "reduce_prod",
    "reduce_prod",
    "([i, j])->([i]) {i=4, j=8} reduction={j:prod}",
    lambda a: a.prod(1),
    f(4, 8),
)
case(
    "reduce_and",
    "reduce_and",
    "([i, j])->([i]) {i=4, j=8} reduction={j:and}",
    lambda a: a.all(1),
    b(4, 8),
)
case(
    "reduce_or",
    "reduce_or",
    "([i, j])->([i]) {i=4, j=8} reduction={j:or}",
    lambda a: a.any(1),
    b(4, 8),
)
case(
    "reduce_xor",
    "reduce_xor",
    "([i, j])->([i]) {i=4, j=8} need_replication={j}",
    lambda a: lax.reduce_xor(a, (1,)),
    i(4, 8),
)
case(
    "argmax",
    "argmax",
    "([i, j])->([i]) {i=4, j=8} need_replication={j}",
    lambda a: a.argmax(1),
    f(4, 8),
)
case(
    "reduce_by_function",
    "reduce",
    "([i, j], [])->([i]) {i=4, j=8} need_replication={j}",
    lambda a: lax.reduce(a, -jnp.inf, jnp.logaddexp, (1,)),
    f(4, 8),
)
case(
    "reduce_two_arrays",
    "reduce",
    "([i, j], [i, j], [], [])->([i], [i]) {i=4, j=8} need_replication={j}",
    lambda a, c: lax.reduce((a, c), (0.0, 0.0), lambda x, y: (x[0] + y[0], x[1] + y[1]), (1,)),
    f(4, 8),
    f(4, 8),
)
case(
    "reshape_split",
    "reshape",
    "([i, jk])->([i, j, k]) {i=4, j=2, k=6}",
    lambda a: a.reshape(4, 2, 6),
    f(4, 12),
)
case("reshape_merge", "reshape", "([i, j])->([ij]) {i=4, j=8}", lambda a: a.reshape(32), f(4, 8))
case(
    "reshape_both",
    "reshape",
    "([ij, k])->([i, jk]) {i=2, j=2, k=6}",
    lambda a: a.reshape(2, 12),
    f(4, 6),
)
case(
    "reshape_no_common_factor",
    "reshape",
    "([im, nl])->([ij, kl]) {i=2, j=3, k=2, l=2, m=2, n=3} need_replication={m, n}",
    lambda a: a.reshape(6, 4),
    f(4, 6),
)
case(
    "squeeze",
    "squeeze",
    "([i, k, j])->([i, j]) {i=4, j=8, k=1}",
    lambda a: lax.squeeze(a, (1,)),
    f(4, 1, 8),
)
case("tile", "tile", "([i, k])->([i, jk]) {i=4, j=2, k=8}", lambda a: jnp.tile(a, (1, 2)), f(4, 8))
case(
    "transpose",
    "transpose",
    "([j, k, i])->([i, j, k]) {i=6, j=4, k=8}",
    lambda a: a.transpose(2, 0, 1),
    f(4, 8, 6),
)
case(
    "broadcast_in_dim",
    "broadcast_in_dim",
    "([j, l])->([i, j, k]) {i=2, j=4, k=8, l=1}",
    lambda a: jnp.broadcast_to(a, (2, 4, 8)),
    f(4, 1),
)
case(
    "concatenate",
    "concatenate",
    "([i, j], [i, j])->([i, j]) {i=4, j=4} need_replication={j}",
    lambda a, c: jnp.concatenate([a, c], 1),
    f(4, 8),
    f(4, 4),
)
case(
    "pad",
    "pad",
    "([i, j], [])->([i, j]) {i=4, j=8} permutation={j}",
    lambda a: jnp.pad(a, ((0, 0), (1, 3))),
    f(4, 8),
)
case(
    "slice", "slice", "([i, j])->([i, j]) {i=4, j=4} permutation={j}", lambda a: a[:, 2:6], f(4, 8)
)
case(
    "split",
    "split",
    "([i, j])->([i, j], [i, j]) {i=4, j=4} permutation={j}",
    lambda a: lax.split(a, (4, 4), 1),
    f(4, 8),
)
case(
    "rev",
    "rev",
    "([i, j])->([i, j]) {i=4, j=8} permutation={j}",
    lambda a: lax.rev(a, (1,)),
    f(4, 8),
)
case(
    "dynamic_slice",
    "dynamic_slice",
    "([i, j], [], [])->([i, j]) {i=4, j=2} need_replication={j}",
    lambda a, n: lax.dynamic_slice(a, (0, n), (4, 2)),
    f(4, 8),
    i(),
)
case(
    "dynamic_update_slice_long",
    "dynamic_update_slice",
    "([i, j], [i, k], [], [])->([i, j]) {i=4, j=8, k=2} need_replication={j, k}",
    lambda a, u, n: lax.dynamic_update_slice(a, u, (0, n)),
    f(4, 8),
    f(4, 2),
    i(),
)
case(
    "dynamic_update_slice_one",
    "dynamic_update_slice",
    "([i, j], [i, k], [], [])->([i, j]) {i=4, j=8, k=1} need_replication={k}",
    lambda a, u, n: lax.dynamic_update_slice(a, u, (0, n)),
    f(4, 8),
    f(4, 1),
    i(),
)
case(
    "cumsum",
    "cumsum",
    "([i, j])->([i, j]) {i=4, j=8} need_replication={j}",
    lambda a: lax.cumsum(a, 1),
    f(4, 8),
)
case(
    "cumprod",
    "cumprod",
    "([i, j])->([i, j]) {i=4, j=8} need_replication={i}",
    lambda a: lax.cumprod(a, 0),
    f(4, 8),
)
case(
    "cummax",
    "cummax",
    "([i, j])->([i, j]) {i=4, j=8} need_replication={j}",
    lambda a: lax.cummax(a, 1),
    f(4, 8),
)
case(
    "cummin",
    "cummin",
    "([i, j])->([i, j]) {i=4, j=8} need_replication={j}",
    lambda a: lax.cummin(a, 1),
    f(4, 8),
)
case(
    "cumlogsumexp",
    "cumlogsumexp",
    "([i, j])->([i, j]) {i=4, j=8} need_replication={j}",
    lambda a: lax.cumlogsumexp(a, 1, reverse=True),
    f(4, 8),
)
case(
    "sort",
    "sort",
    "([i, j])->([i, j]) {i=4, j=8} need_replication={j}",
    lambda a: lax.sort(a, dimension=1),
    f(4, 8),
)
case(
    "sort_two_arrays",
    "sort",
    "([i, j], [i, j])->([i, j], [i, j]) {i=8, j=4} need_replication={i}",
    lambda a, n: lax.sort((a, n), dimension=0, num_keys=1),
    f(8, 4),
    i(8, 4),
)
case(
    "shard_alike",
    "shard_alike",
    "([i, j], [i, j])->([i, j], [i, j]) {i=4, j=6}",
    lambda a, b: shard_alike(a, b),
    f(4, 6),
    f(4, 6),
)
case(
    "top_k",
    "top_k",
    "([i, k])->([i, j], [i, j]) {i=4, j=2, k=8} need_replication={j, k}",
    lambda a: lax.top_k(a, 2),
    f(4, 8),
)
case(
    "approx_top_k",
    "approx_top_k",
    "([i, k])->([i, j], [i, j]) {i=4, j=2, k=8} need_replication={j, k}",
    lambda a: lax.approx_max_k(a, 2),
    f(4, 8),
)
case("iota", "iota", "()->([i, j]) {i=4, j=8}", lambda: lax.broadcasted_iota(jnp.int32, (4, 8), 1))
case(
    "select_n",
    "select_n",
    "([i, j], [i, j], [i, j])->([i, j]) {i=4, j=8}",
    lambda p, a, c: lax.select_n(p, a, c),
    b(4, 8),
    f(4, 8),
    f(4, 8),
)
case(
    "select_n_by_scalar",
    "select_n",
    "([], [i, j], [i, j])->([i, j]) {i=4, j=8}",
    lambda p, a, c: lax.select_n(p, a, c),
    b(),
    f(4, 8),
    f(4, 8),
)
case(
    "clamp",
    "clamp",
    "([], [i, j], [])->([i, j]) {i=4, j=8}",
    lambda a: lax.clamp(0.3, a, 0.7),
    f(4, 8),
)
case(
    "convert_element_type",
    "convert_element_type",
    "([i, j])->([i, j]) {i=4, j=8}",
    lambda a: a.astype(jnp.bfloat16),
    f(4, 8),
)
case(
    "bitcast_convert_type",
    "bitcast_convert_type",
    "([i, j])->([i, j, k]) {i=4, j=8, k=4} need_replication={k}",
    lambda a: lax.bitcast_convert_type(a, jnp.int8),
    f(4, 8),
)
case("add_scalar", "add", "([i, j], [])->([i, j]) {i=4, j=8}", lambda a: a + 1.0, f(4, 8))
case(
    "add_broadcast",
    "add",
    "([i, j], [i, k])->([i, j]) {i=4, j=8, k=1}",
    lambda a, c: lax.add(a, c),
    f(4, 8),
    f(4, 1),
)
case("integer_pow", "integer_pow", "([i, j])->([i, j]) {i=4, j=8}", lambda a: a**-3, f(4, 8))
case("logistic", "logistic", "([i, j])->([i, j]) {i=4, j=8}", lax.logistic, f(4, 8))
case("erf_inv", "erf_inv", "([i, j])->([i, j]) {i=4, j=8}", lax.erf_inv, f(4, 8))
case("lgamma", "lgamma", "([i, j])->([i, j]) {i=4, j=8}", lax.lgamma, f(4, 8))
case(
    "nextafter",
    "nextafter",
    "([i, j], [i, j])->([i, j]) {i=4, j=8}",
    lax.nextafter,
    f(4, 8),
    f(4, 8),
)
case("igamma", "igamma", "([i, j], [i, j])->([i, j]) {i=4, j=8}", lax.igamma, f(4, 8), f(4, 8))
case("igammac", "igammac", "([i, j], [i, j])->([i, j]) {i=4, j=8}", lax.igammac, f(4, 8), f(4, 8))
case(
    "igamma_grad_a",
    "igamma_grad_a",
    "([i, j], [i, j])->([i, j]) {i=4, j=8}",
    lax.igamma_grad_a,
    f(4, 8),
    f(4, 8),
)
case(
    "regularized_incomplete_beta",
    "regularized_incomplete_beta",
    "([i, j], [i, j], [i, j])->([i, j]) {i=4, j=8}",
    lax.betainc,
    f(4, 8),
    f(4, 8),
    f(4, 8),
)
case(
    "optimization_barrier",
    "optimization_barrier",
    "([i, j], [k])->([i, j], [k]) {i=4, j=8, k=6}",
    lambda a, c: lax.optimization_barrier((a, c)),
    f(4, 8),
    i(6),
)
case("copy", "copy", "([i, j])->([i, j]) {i=4, j=8}", jnp.copy, f(4, 8))
case(
    "stop_gradient",
    "stop_gradient",
    "([i, j])->([i, j]) {i=4, j=8}",
    lambda a: lax.stop_gradient(a),
    f(4, 8),
)
case(
    "fft",
    "fft",
    "([k, l])->([i, j]) {i=4, j=8, k=4, l=8} need_replication={i, j, k, l}",
    lambda a: jnp.fft.fft(a),
    f(4, 8),
)
case(
    "cholesky",
    "cholesky",
    "([i, j, k])->([i, j, k]) {i=4, j=6, k=6} need_replication={j, k}",
    lambda a: lax.linalg.cholesky(a, symmetrize_input=False),
    f(4, 6, 6),
)
case(
    "triangular_solve",
    "triangular_solve",
    "([i, l, j], [i, l, k])->([i, j, k]) {i=4, j=6, k=2, l=6} need_replication={j, k, l}",
    lambda a, c: lax.linalg.triangular_solve(a, c, left_side=True),
    f(4, 6, 6),
    f(4, 6, 2),
)
case(
    "lu",
    "lu",
    (
        "([i, n, o])->([i, j, k], [i, l], [i, m]) {i=4, j=6, k=6, l=6, m=6, n=6, o=6} "
        "need_replication={j, k, l, m, n, o}"
    ),
    lax.linalg.lu,
    f(4, 6, 6),
)
case(
    "qr",
    "qr",
    (
        "([i, n, o])->([i, j, k], [i, l, m]) {i=4, j=6, k=6, l=6, m=6, n=6, o=6} "
        "need_replication={j, k, l, m, n, o}"
    ),
    lax.linalg.qr,
    f(4, 6, 6),
)
case(
    "eigh",
    "eigh",
    (
        "([i, m, n])->([i, j, k], [i, l]) {i=4, j=6, k=6, l=6, m=6, n=6} need_replication={j, "
        "k, l, m, n}"
    ),
    lambda a: lax.linalg.eigh(a, symmetrize_input=False),
    f(4, 6, 6),
)
case(
    "eig",
    "eig",
    (
        "([i, o, p])->([i, j], [i, k, l], [i, m, n]) {i=4, j=6, k=6, l=6, m=6, n=6, o=6, p=6} "
        "need_replication={j, k, l, m, n, o, p}"
    ),
    lax.linalg.eig,
    f(4, 6, 6),
)
case(
    "svd",
    "svd",
    (
        "([i, o, p])->([i, j], [i, k, l], [i, m, n]) {i=4, j=6, k=6, l=6, m=6, n=6, o=6, p=6} "
        "need_replication={j, k, l, m, n, o, p}"
    ),
    lax.linalg.svd,
    f(4, 6, 6),
)
case(
    "schur",
    "schur",
    (
        "([i, n, o])->([i, j, k], [i, l, m]) {i=4, j=6, k=6, l=6, m=6, n=6, o=6} "
        "need_replication={j, k, l, m, n, o}"
    ),
    lax.linalg.schur,
    f(4, 6, 6),
)
case(
    "hessenberg",
    "hessenberg",
    (
        "([i, m, n])->([i, j, k], [i, l]) {i=4, j=6, k=6, l=5, m=6, n=6} need_replication={j, "
        "k, l, m, n}"
    ),
    lax.linalg.hessenberg,
    f(4, 6, 6),
)
case(
    "tridiagonal",
    "tridiagonal",
    (
        "([i, o, p])->([i, j, k], [i, l], [i, m], [i, n]) {i=4, j=6, k=6, l=6, m=5, n=5, o=6, "
        "p=6} need_replication={j, k, l, m, n, o, p}"
    ),
    lambda a: lax.linalg.tridiagonal(a, lower=True),
    f(4, 6, 6),
)
case(
    "tridiagonal_solve",
    "tridiagonal_solve",
    (
        "([i, l], [i, m], [i, n], [i, o, p])->([i, j, k]) {i=4, j=6, k=2, l=6, m=6, n=6, o=6, "
        "p=2} need_replication={j, k, l, m, n, o, p}"
    ),
    lax.linalg.tridiagonal_solve,
    f(4, 6),
    f(4, 6),
    f(4, 6),
    f(4, 6, 2),
)
case(
    "householder_product",
    "householder_product",
    (
        "([i, l, m], [i, n])->([i, j, k]) {i=4, j=6, k=6, l=6, m=6, n=6} need_replication={j, "
        "k, l, m, n}"
    ),
    lax.linalg.householder_product,
    f(4, 6, 6),
    f(4, 6),
)
case(
    "ormqr",
    "ormqr",
    (
        "([i, l, m], [i, n], [i, o, p])->([i, j, k]) {i=4, j=6, k=2, l=6, m=6, n=6, o=6, p=2} "
        "need_replication={j, k, l, m, n, o, p}"
    ),
    lax.linalg.ormqr,
    f(4, 6, 6),
    f(4, 6),
    f(4, 6, 2),
)
case(
    "cholesky_update",
    "cholesky_update",
    "([k, l], [m])->([i, j]) {i=6, j=6, k=6, l=6, m=6} need_replication={i, j, k, l, m}",
    lax.linalg.cholesky_update,
    f(6, 6),
    f(6),
)
case(
    "random_bits",
    "random_bits",
    "([])->([i, j]) {i=4, j=8}",
    lambda k: jax.random.bits(k, (4, 8)),
    key(),
)
case(
    "random_bits_of_keys",
    "random_bits",
    "([i])->([i, j]) {i=4, j=8}",
    lambda k: jax.vmap(lambda k: jax.random.bits(k, (8,)))(k),
    key(4),
)
case("random_split", "random_split", "([])->([i]) {i=4}", lambda k: jax.random.split(k, 4), key())
case(
    "random_fold_in",
    "random_fold_in",
    "([i], [i])->([i]) {i=4}",
    lambda k, n: jax.vmap(jax.random.fold_in)(k, n),
    key(4),
    i(4),
)
case(
    "random_seed", "random_seed", "([i])->([i]) {i=4}", lambda n: jax.vmap(jax.random.key)(n), i(4)
)
case(
    "random_wrap",
    "random_wrap",
    "([i, j])->([i]) {i=4, j=2} need_replication={j}",
    jax.random.wrap_key_data,
    Drawn((4, 2), jnp.uint32),
)
case(
    "random_unwrap",
    "random_unwrap",
    "([i])->([i, j]) {i=4, j=2} need_replication={j}",
    jax.random.key_data,
    key(4),
)
case(
    "random_gamma",
    "random_gamma",
    "([], [i])->([i]) {i=4}",
    lambda k, a: jax.random.gamma(k, a),
    key(),
    f(4),
)
case(
    "key_slice",
    "slice",
    "([i])->([i]) {i=2} permutation={i}",
    lambda k: lax.slice(k, (0,), (2,)),
    key(4),
)
case(
    "rng_bit_generator",
    "rng_bit_generator",
    ("([mn])->([ij], [k, l]) {i=2, j=2, k=4, l=8, m=2, n=2} need_replication={i, j, k, l, m, n}"),
    lambda k: lax.rng_bit_generator(k, (4, 8)),
    Drawn((4,), jnp.uint32),
)
