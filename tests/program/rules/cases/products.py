"""Products of matrices: plain, in batches, and ragged; and rows that are sent to them."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from autoshard.compat.row_exchange import exchange_rows
from tests.program.rules.cases.case import Family, f, i

PRODUCTS = Family()
case = PRODUCTS.case

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
        "([i, k], [l, k, j], [m])->([i, j]) {i=16, j=6, k=8, l=4, m=4, n=4} "
        "reduction={k, l} need_replication={m} exchange={n} joint={n:0.0 1.0 3.0}"
    ),
    lax.ragged_dot,
    f(16, 8),
    f(4, 8, 6),
    i(4),
)
case(
    "ragged_exchange",
    "ragged_exchange",
    (
        "([i, l, k], [i, j, k], [i, m], [i, m], [i, m], [i, m])->([i, j, k]) "
        "{i=4, j=12, k=8, l=16, m=4} need_replication={j, l, m} exchange={i}"
    ),
    lambda *arrays: exchange_rows(arrays, 0),
    f(4, 16, 8),
    f(4, 12, 8),
    *[i(4, 4)] * 4,
)
