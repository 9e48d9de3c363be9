"""A well-known scheme that the compiler runs faster than the cheapest plan, and what is said."""

from __future__ import annotations

import jax
import jax.numpy as jnp

import autoshard
from autoshard.plan.text.page import format_plan
from autoshard.solve.limit_hit import LimitHit

TABLES, ROWS, WIDTH, BATCH = 8, 100_000, 64, 4096


def loss(params, ids, x):
    hidden = jax.nn.relu(x @ params["up"]) @ params["down"]
    found = [jnp.take(table, ids, axis=0).mean(1) for table in params["tables"]]
    stacked = jnp.stack([hidden, *found], 1)
    return jnp.mean(jnp.einsum("bnd,bmd->bnm", stacked, stacked) ** 2)


def step(params, ids, x):
    return jax.tree.map(lambda w, g: w - 0.1 * g, params, jax.grad(loss)(params, ids, x))


def test_a_dearer_scheme_is_taken_by_its_schedule_and_the_proof_says_so():
    shape = jax.ShapeDtypeStruct
    params = {
        "up": shape((13, 512), jnp.float32),
        "down": shape((512, WIDTH), jnp.float32),
        "tables": [shape((ROWS, WIDTH), jnp.float32)] * TABLES,
    }
    ids, x = shape((BATCH, 10), jnp.int32), shape((BATCH, 13), jnp.float32)
    program = autoshard.trace(step, params, ids, x, donate_argnums=0)
    taken = autoshard.search(program, "h100-8", mesh={"x": 8}, time_limit=20.0)
    cheapest = autoshard.search(
        program, "h100-8", mesh={"x": 8}, time_limit=20.0, by_schedule=False
    )
    assert taken.estimate.expected_seconds < cheapest.estimate.expected_seconds
    assert taken.estimate.step_seconds > cheapest.estimate.step_seconds
    assert taken.proof.limit_hit is LimitHit.COMPILER
    assert LimitHit.COMPILER.message in " ".join(format_plan(taken).split())
    assert cheapest.proof.limit_hit is not LimitHit.COMPILER
