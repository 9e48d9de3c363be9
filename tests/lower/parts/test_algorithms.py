"""What platforms lower to loops or calls of their own is run on the parts that a plan cuts."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from autoshard.lower import lower
from autoshard.lower.verify import numeric_differences, verify_collectives
from tests.helpers import best_plan, case

N = 4
MATRICES = jax.ShapeDtypeStruct((8, N, N), jnp.float32)


def singular_values(a):
    return jnp.linalg.svd(a, compute_uv=False)


def eigenvalues(a):
    return jnp.linalg.eigvalsh(a @ a.mT)


def decomposed(a):
    return lax.linalg.lu(a)


def triangular(a):
    return jnp.linalg.qr(a)[1]


def converging(a):
    return lax.igamma(jnp.abs(a) + 1.0, jnp.abs(a))


def incomplete(a):
    return lax.betainc(jnp.abs(a) + 1.0, jnp.abs(a) + 2.0, lax.logistic(a))


@pytest.mark.parametrize(
    "step", [singular_values, eigenvalues, decomposed, triangular, converging, incomplete]
)
def test_a_batch_that_is_cut_is_never_tested_or_gathered_as_a_whole(step):
    """Shardy sees the loops of TPUs; there is nothing in them that all devices must know."""
    plan = best_plan(case(step, MATRICES, mesh={"x": 8}))
    assert list(plan.specs["inputs"].values()) == [jax.sharding.PartitionSpec("x")]
    assert not plan.moves
    lowered = lower(plan, step, MATRICES)
    found = verify_collectives(lowered)
    assert found.agrees, str(found)
    assert " all_reduce" not in lowered.mlir_text(platform="tpu")
    given = np.random.default_rng(0).normal(size=MATRICES.shape).astype(np.float32)
    assert numeric_differences(lowered, step, (jnp.asarray(given),)) == []
