"""Advice: what is priced is what a search or the evaluator says of the changed step itself."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

import autoshard
from autoshard.models.find import find
from autoshard.plan.evaluate import evaluate
from autoshard.plan.records import MeshShape
from autoshard.program.trace import trace
from autoshard.search.assemble import prices_of
from autoshard.study.advice import LAYOUTS, SEARCHED, advice, alike


def planned(reference, machine, mesh):
    found = find(reference, machine=machine)
    program = trace(found.fn, *found.args, name=reference, **found.options)
    plan = autoshard.search(program, machine, mesh=mesh, baselines=False)
    return found, plan, prices_of(plan, program, autoshard.load_machine(machine))


def test_batch_and_chips_are_priced_as_the_larger_step_is():
    found, plan, prices = planned("mlp:tiny,batch=64", "h100-8", {"x": 8})
    told = {one.what: one for one in advice(plan, prices, found)}
    larger = find("mlp:tiny,batch=128")
    program = trace(larger.fn, *larger.args, **larger.options)
    anew = prices_of(plan, program, prices.machine)
    estimate = evaluate(anew, plan.decisions, plan.mesh.names).estimate
    batch = told["a batch of 128 in place of 64"]
    assert (batch.step_seconds, batch.work, batch.chips) == (estimate.step_seconds, 2, 1)
    assert (batch.how, batch.priced) == ("batch=128", LAYOUTS)
    assert batch.saved(plan) == pytest.approx(
        1 - batch.step_seconds / 2 / plan.estimate.step_seconds
    )
    chips = told["16 chips, and a batch of 128"]
    assert chips.how.startswith("--machine h100-16 --mesh x=16")
    wide = replace(plan, mesh=MeshShape(("x",), (16,)))
    anew = prices_of(wide, program, autoshard.load_machine("h100-16"))
    assert chips.step_seconds == evaluate(anew, plan.decisions, ("x",)).estimate.step_seconds
    assert chips.saved(plan) < 0  # ranks behind what saves something
    assert all(one.seconds < plan.estimate.step_seconds for one in told.values())
    ranks = [one.saved(plan) for one in told.values()]
    assert ranks == sorted(ranks, reverse=True)
    other = find("mlp:tiny,batch=64,layers=3")
    assert not alike(trace(other.fn, *other.args, **other.options), prices.program)
    for step in (None, other):
        assert not any("batch" in one.what for one in advice(plan, prices, step))


def test_twice_the_chips_keep_the_flags_of_the_compiler():
    found, plan, prices = planned("mlp:tiny,batch=64", "h100-8@recipe", {"x": 8})
    told = {one.what: one for one in advice(plan, prices, found)}
    chips = told["16 chips, and a batch of 128"]
    assert chips.how.startswith("--machine h100-16@recipe --mesh x=16")


def step(weights, x):
    def layer(x, w):
        return jnp.tanh(x @ w), None

    def loss(weights):
        return jnp.mean(jax.lax.scan(jax.checkpoint(layer), x, weights)[0])

    return jax.tree.map(jnp.subtract, weights, jax.grad(loss)(weights))


def test_what_is_saved_is_searched_for_and_products_of_floats_are_narrowed():
    shapes = (jax.ShapeDtypeStruct((4, 2048, 2048), jnp.float32),
              jax.ShapeDtypeStruct((4096, 2048), jnp.float32))  # fmt: skip
    program = autoshard.trace(step, *shapes, donate_argnums=0)
    plan = autoshard.search(program, "h100-4", mesh={"x": 4}, baselines=False)
    told = advice(plan, prices_of(plan, program, autoshard.load_machine("h100-4")))
    kept = next(one for one in told if one.how == "--remat search")
    assert kept.priced == SEARCHED
    assert kept.what == (
        "keeping 32.0 MiB per device for the backward pass instead of computing it again"
    )
    best = autoshard.search(program, "h100-4", mesh={"x": 4}, remat="search", baselines=False)
    assert kept.step_seconds == pytest.approx(best.estimate.step_seconds, rel=0.02)
    narrow = next(one for one in told if "bfloat16" in one.what)
    assert 0.05 < narrow.saved(plan) < 0.5
    assert not any("batch" in one.what for one in told)
