"""Convolutions, pools, and the gradients of both."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tests.program.rules.cases.case import Family, f


def conv(a: Any, k: Any, stride: int = 1, padding: str = "VALID", **options: Any) -> Any:
    names = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(
        a, k, (stride, stride), padding, dimension_numbers=names, **options
    )


def pool(a: Any, window: int, stride: int) -> Any:
    size, step = (1, window), (1, stride)
    return lax.reduce_window(a, -jnp.inf, lax.max, size, step, "VALID")


WINDOWS = Family()
case = WINDOWS.case

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
        "p=1} reduction={n}"
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
        "p=3} reduction={n} need_replication={o, p} permutation={j, k}"
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
