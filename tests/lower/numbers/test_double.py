"""What a step computes in double precision is what it says, whatever functions its ops hold."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from autoshard.lower.numbers.double import widened

ROWS = np.random.default_rng(0).normal(size=(8, 16))


def sum_and_max(a, b):
    return a[0] + b[0], jnp.maximum(a[1], b[1])


def later(a, b):
    return jnp.maximum(a[0], b[0]), jnp.where(a[0] >= b[0], a[1], b[1])


def reduced_twice(rows):
    return lax.reduce((rows, 2 * rows), (0.0, 0.0), sum_and_max, (1,))


def reduced_by_windows(rows):
    return lax.reduce_window((rows, 2 * rows), (0.0, 0.0), sum_and_max, (1, 2), (1, 2), "VALID")


def place_of_the_largest(rows):
    places = lax.broadcasted_iota(jnp.int32, rows.shape, 1)
    first = jnp.asarray(-jnp.inf, rows.dtype), jnp.int32(0)
    return lax.reduce((rows, places), first, later, (1,))


def products(rows):
    return lax.reduce(rows, jnp.ones((), rows.dtype), lambda a, b: a * b, (1,))


@pytest.mark.parametrize("fn", [reduced_twice, reduced_by_windows, place_of_the_largest, products])
def test_reductions_by_functions_of_their_own(fn):
    rows = jnp.asarray(ROWS, jnp.float32)
    with jax.enable_x64(True):
        exact = jnp.asarray(rows, jnp.float64)
        found, expected = widened(fn, rows)(exact), fn(exact)
        for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            assert one.dtype == other.dtype
            np.testing.assert_allclose(one, other, rtol=1e-14)
