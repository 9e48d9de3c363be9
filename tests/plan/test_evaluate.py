"""The independent evaluator agrees with the problem, and refuses what contradicts itself."""

from __future__ import annotations

import itertools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from autoshard.machine.load import load
from autoshard.plan.consistency import InconsistentPlanError
from autoshard.plan.evaluate import evaluate, step_seconds, tidy
from autoshard.solve.evaluate import evaluate as price_of_choices
from tests.helpers import MESHES, case, random_plan


def f(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def step(weights, x):
    @jax.checkpoint
    def layer(h, w):
        return jnp.tanh(h @ w), None

    def loss(weights):
        return jnp.sum(jax.lax.scan(layer, x, weights)[0] ** 2)

    value, grads = jax.value_and_grad(loss)(weights)
    return value, weights - 0.1 * grads


ARGS = f(3, 16, 16), f(8, 16)


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("machine", ["v5p-8", "h100-8"])
def test_the_price_is_the_objective_of_the_problem(mesh, machine):
    given = case(step, *ARGS, mesh=MESHES[mesh], machine=load(machine), limit=1e9)
    for seed in range(3):
        plan = random_plan(given, seed)
        choices = given.built.encode(plan.decisions)
        assert choices is not None
        found = price_of_choices(given.built.problem, choices)
        assert not found.violations
        np.testing.assert_allclose(plan.estimate.step_seconds, found.objective, rtol=1e-9)
        seconds = step_seconds(given.built.prices, plan.decisions, plan.mesh.names)
        np.testing.assert_allclose(seconds, plan.estimate.step_seconds, rtol=1e-12)
        reserved = given.program.constant_bytes
        np.testing.assert_allclose(
            plan.estimate.peak_bytes, found.peak + reserved, rtol=1e-9, atol=0.5
        )


def test_moves_add_up_to_the_estimate():
    plan = random_plan(case(step, *ARGS, mesh=MESHES["2x4"]), 0)
    estimate = plan.estimate
    np.testing.assert_allclose(sum(m.seconds for m in plan.moves), estimate.collective_seconds)
    assert estimate.lower_seconds <= estimate.step_seconds <= estimate.upper_seconds
    assert estimate.compute_seconds == estimate.lower_seconds


def test_copies_that_nobody_reads_are_dropped():
    given = case(step, *ARGS, mesh=MESHES["8"])
    weights = given.program.inputs[0]
    plans = (random_plan(given, seed).decisions for seed in itertools.count())
    decisions = next(one for one in plans if one.copy[weights] is None)
    layouts = [layout for layout in ((-1,), (1,), (2,)) if layout != decisions.stored[weights]]
    copy, mode = list(decisions.copy), list(decisions.mode)
    copy[weights], mode[weights] = layouts[0], 3
    crowded = replace(decisions, copy=tuple(copy), mode=tuple(mode))
    tidied = tidy(given.built.prices, crowded)
    assert evaluate(given.built.prices, tidied, ("x",)).moves
    assert tidied == tidy(given.built.prices, tidied)
    if decisions.copy[weights] is None:
        assert tidied == decisions


def test_contradictions_are_all_named():
    given = case(step, *ARGS, mesh=MESHES["8"], donate_argnums=(0,))
    decisions = random_plan(given, 1).decisions
    stored = list(decisions.stored)
    first = given.program.inputs[0]
    stored[first] = (1,) if stored[first] != (1,) else (2,)
    named = r"(?s)contradicts itself.*is read in.*comes in"
    with pytest.raises(InconsistentPlanError, match=named):
        evaluate(given.built.prices, replace(decisions, stored=tuple(stored)), ("x",))
