"""When XLA:GPU should leave products apart that read one array."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

from autoshard.compiler.compiled import ask
from autoshard.compiler.target import target_of, why_missing
from autoshard.lower.facts.merged_products import merging_loses
from autoshard.lower.spmd import lower
from autoshard.machine.load import load
from autoshard.program.trace import trace
from autoshard.search.search import search
from tests.helpers import case, random_plan

TOLD = "xla_gpu_dot_merger_threshold_mb"
H100 = load("h100-8")


def bf16(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def gated(x, gate, up):
    return jnp.tanh(x @ gate) * (x @ up)


def converted(x, gate, up):
    return gated(x, gate.astype(x.dtype), up.astype(x.dtype))


def one_by_one(x, first, second):
    """The second product waits for the first."""
    y = x @ first
    return jnp.einsum("bi,ij->bj", x + 0 * y[:, :1], second) + y


def layers(x, gates, ups):
    return jax.lax.scan(lambda x, w: (jnp.tanh(gated(x, *w)), None), x, (gates, ups))[0]


FEW, MANY, WIDE = bf16(64, 4096), bf16(65536, 4096), bf16(4096, 4096)
STACK = bf16(4, 4096, 4096)


@pytest.mark.parametrize(
    ("fn", "arguments", "loses"),
    [
        (gated, (FEW, WIDE, WIDE), True),
        (layers, (FEW, STACK, STACK), True),
        (gated, (MANY, WIDE, WIDE), False),  # more than 64 MiB
        (gated, (bf16(8192, 256), bf16(256, 256), bf16(256, 256)), False),  # a copy of 256 KiB
        (converted, (FEW, f32(4096, 4096), f32(4096, 4096)), False),  # written for the call anyway
        (one_by_one, (FEW, WIDE, WIDE), False),
    ],
)
def test_weights_are_not_copied_for_few_rows(fn, arguments, loses):
    given = case(fn, *arguments, mesh={"x": 1}, machine=load("h100-1"))
    plan = random_plan(given, 0)
    assert merging_loses(given.program, plan.decisions, (1,)) == loses


def test_what_a_device_has_counts():
    """A device has an eighth of 128 MiB of each weight, or all of it."""
    program = trace(gated, FEW, bf16(4096, 16384), bf16(4096, 16384))
    found = {}
    for machine, layout in (("h100-1", "[None, None]"), ("h100-8", "[None, x]")):
        loaded, pins = load(machine), [f"pin {name} {layout}" for name in ("gate", "up")]
        mesh = {"x": loaded.chips}
        plan = search(program, loaded, mesh=mesh, baselines=False, requirements=pins)
        found[machine] = merging_loses(program, plan.decisions, plan.mesh.sizes)
    assert found == {"h100-1": False, "h100-8": True}


@pytest.mark.skipif(bool(why_missing("gpu")), reason=why_missing("gpu") or "installed")
def test_xla_leaves_them_apart_where_it_is_told_to():
    program = trace(layers, FEW, STACK, STACK)
    lowered = lower(
        search(program, H100, mesh={"x": 8}, baselines=False), layers, FEW, STACK, STACK
    )
    assert lowered.compiler_options[TOLD] == 0
    target = target_of(H100, lowered.plan.mesh, "gpu")
    stage = lowered.lower(platforms=(target.platform,))
    usual, told = (
        ask(stage, replace(target, options={**target.options, **options})).answer.final
        for options in ({}, lowered.compiler_options)
    )
    assert "concatenate(" in usual
    assert "concatenate(" not in told
