"""What is computed element by element, and what only passes arrays on."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from tests.newer_jax import shard_alike
from tests.program.rules.cases.case import Family, b, f, i

ELEMENTWISE = Family()
case = ELEMENTWISE.case

if shard_alike is not None:
    case(
        "shard_alike",
        "shard_alike",
        "([i, j], [i, j])->([i, j], [i, j]) {i=4, j=6}",
        lambda a, b: shard_alike(a, b),
        f(4, 6),
        f(4, 6),
    )


case("iota", "iota", "()->([i, j]) {i=4, j=8}", lambda: lax.broadcasted_iota(jnp.int32, (4, 8), 1))
case("empty", "empty", "()->([i, j]) {i=4, j=8}", lambda: lax.empty((4, 8), jnp.float32))
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
