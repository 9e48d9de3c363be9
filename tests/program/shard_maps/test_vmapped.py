"""Collectives over an axis that `jax.vmap` named are reductions."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from autoshard.lower import lower
from autoshard.lower.verify import numeric_differences, verify_written
from autoshard.program.trace import trace
from tests.helpers import case, random_plan

X = np.random.default_rng(0).normal(size=(8, 16)).astype(np.float32)


def centred(x):
    return jax.vmap(lambda row: row - lax.pmean(row, "batch"), axis_name="batch")(x)


def spread(x):
    return jax.vmap(lambda row: lax.pmax(row, "b") - lax.pmin(row, "b"), axis_name="b")(x)


def gradient(x):
    return jax.grad(lambda x: jnp.sum(centred(x) ** 2))(x)


@pytest.mark.parametrize("fn", [centred, spread, gradient])
def test_they_are_planned_as_reductions_and_written_out(fn):
    program = trace(fn, X)
    names = {op.primitive for op in program.ops}
    assert names & {"reduce_sum", "reduce_max"}
    assert not names & {"psum", "pmax", "pmin"}
    plan = random_plan(case(fn, X, mesh={"x": 2, "y": 4}), 1)
    lowered = lower(plan, fn, X, explicit=True)
    assert verify_written(lowered).agrees
    assert numeric_differences(lowered, fn, (jnp.asarray(X),)) == []
