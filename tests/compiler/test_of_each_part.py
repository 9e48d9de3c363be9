"""Ops that each device runs on its part: no compiler gathers what is cut."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from autoshard.compiler.compiled import compile_plan
from autoshard.compiler.target import kind_of, why_missing
from autoshard.lower.spmd import lower
from autoshard.machine.load import load
from autoshard.program.trace import trace
from autoshard.search.search import search

ROWS = jax.ShapeDtypeStruct((64, 1024), jnp.float32)
GROUPS = jax.ShapeDtypeStruct((8, 64, 16), jnp.float32)
OPS = {
    "top_k": (lambda x: lax.top_k(x, 4), ROWS, "[x, None]"),
    "top_k of groups": (lambda x: lax.top_k(x, 2), GROUPS, "[x, y, None]"),
    "approx_top_k": (lambda x: lax.approx_max_k(x, 4), ROWS, "[x, None]"),
    "one place": (lambda x: x[3], ROWS, "[None, x]"),
}


@pytest.mark.parametrize("machine", ["h100-4", "v5e-4"])
@pytest.mark.parametrize("name", OPS)
def test_the_batch_of_an_op_is_not_gathered(name, machine):
    loaded = load(machine)
    if missing := why_missing(kind_of(loaded)):
        pytest.skip(missing)
    fn, array, layout = OPS[name]
    mesh, pins = {"x": 2, "y": 2}, [f"pin x {layout}"]
    plan = search(trace(fn, array), loaded, mesh=mesh, baselines=False, requirements=pins)
    assert not plan.moves
    assert not compile_plan(lower(plan, fn, array), loaded).partitioned
