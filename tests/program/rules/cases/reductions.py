"""Reductions, running sums, and what sorts a dimension."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from tests.program.rules.cases.case import Family, b, f, i

REDUCTIONS = Family()
case = REDUCTIONS.case

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
