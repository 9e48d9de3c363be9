"""Pallas calls cut along every axis of their grids compute what they compute whole, bit by bit."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxpr_as_fun

from autoshard import compat
from tests.lower.parts.one_op import OneOp
from tests.program.kernels.functions import (
    attention,
    column_sum,
    looked_up,
    matmul,
    row_softmax,
    running_sum,
    turned,
    updated,
)


def array(*shape: int) -> Any:
    rng = np.random.default_rng(sum(shape))
    return jnp.asarray(rng.standard_normal(shape), jnp.float32)


QUERIES, KEYS, VALUES = array(2, 4, 32, 8), array(2, 2, 32, 8), array(2, 2, 32, 8) + 1
PLACES = jnp.arange(8, dtype=jnp.int32)[::-1]


@pytest.mark.parametrize(
    ("fn", "arrays", "ways"),
    [
        (matmul, (array(32, 16), array(16, 32)), 9),
        (row_softmax, (array(16, 8),), 4),
        (attention, (QUERIES, KEYS, VALUES), 14),
        (partial(attention, causal=True), (QUERIES, KEYS, VALUES), 7),
        (running_sum, (array(8, 16),), 1),
        (partial(running_sum, anew=True), (array(8, 16),), 4),
        (looked_up, (PLACES, array(16, 1, 32)), 4),
        (updated, (array(16, 8), array(1, 8)), 4),
        (turned, (array(16, 8),), 1),
        (column_sum, (array(16, 32),), 4),
        (jax.vmap(matmul), (array(2, 32, 16), array(2, 16, 32)), 15),
        (jax.vmap(matmul, (0, None)), (array(4, 32, 16), array(16, 32)), 16),
    ],
)
def test_every_cut_over_two_axes_computes_what_the_whole_does(
    fn: Callable[..., Any], arrays: tuple[Any, ...], ways: int
) -> None:
    interpreted = compat.with_kernels(jax.make_jaxpr(fn)(*arrays), compat.interpreted)
    (expected,) = jax.jit(jaxpr_as_fun(interpreted))(*arrays)
    one = OneOp(fn, arrays, compat.PALLAS)
    assignments = list(one.assignments((2, 2)))
    assert len(assignments) == ways
    for assignment in assignments:
        found = one.on_parts(assignment, (2, 2))
        np.testing.assert_array_equal(found, expected, err_msg=str(assignment))
