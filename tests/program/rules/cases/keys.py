"""Random bits, and arrays of keys."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from tests.program.rules.cases.case import Drawn, Family, f, i, key

KEYS = Family()
case = KEYS.case

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
