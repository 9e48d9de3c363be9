"""Copies are resharded as planned in what XLA compiles, whatever else reads the value."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import autoshard
from autoshard.compiler.compiled import compile_plan
from autoshard.compiler.target import why_missing
from autoshard.compiler.verdict import judge
from autoshard.lower import lower
from autoshard.machine.load import load
from tests.helpers import case, random_plan

SHAPES = ((64, 64), (64, 128), (128, 64), (64, 128))
ARGUMENTS = tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in SHAPES)


def gradients(x, a, b, c):
    """Of two residual blocks: errors are read by products, sums and weights' gradients."""

    def loss(a, b, c):
        h = x + jnp.tanh(x @ a) @ b
        return jnp.sum((jnp.tanh(h @ c) @ c.T) ** 2)

    return jax.grad(loss, argnums=(0, 1, 2))(a, b, c)


GIVEN = case(gradients, *ARGUMENTS, mesh={"x": 4, "y": 2})


@pytest.mark.parametrize("seed", [0, 1, 5, 6, 7])
def test_an_exchange_is_no_gather_and_slice(seed, tmp_path):
    plan = random_plan(GIVEN, seed)
    machine = GIVEN.built.prices.machine
    compiled = compile_plan(lower(plan, gradients, *ARGUMENTS), machine, kind="cpu", cache=tmp_path)
    tallies = judge(plan, compiled).comparison.tallies
    assert [str(one) for one in tallies if one.found != one.planned] == []


def scaled(x, g, squares):
    """Rows forwards and backwards: both read what scales them."""
    scale = jnp.sqrt(squares)
    return x / scale, g * scale


@pytest.mark.skipif(bool(why_missing("tpu")), reason=why_missing("tpu") or "installed")
def test_what_two_layouts_read_is_broadcast_in_both(tmp_path):
    shapes = (1024, 512), (1024, 512), (1024, 1)
    arrays = tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)
    program = autoshard.trace(scaled, *arrays)
    words = ["pin x [data, None]", "pin result[0] [data, None]", "pin squares [data, None]"]
    words += ["pin g [data, model]", "pin result[1] [data, model]"]
    mesh = {"data": 2, "model": 4}
    plan = autoshard.search(program, "v5e-8", mesh=mesh, requirements=words, baselines=False)
    machine = load("v5e-8")
    compiled = compile_plan(lower(plan, scaled, *arrays), machine, kind="tpu", cache=tmp_path)
    tallies = judge(plan, compiled).comparison.tallies
    assert [str(one) for one in tallies if one.found != one.planned] == []
