"""Pads move before products where a kernel of their own is dear."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from autoshard.lower.verify import verify
from autoshard.plan.plan import Plan
from autoshard.plan.text.page import format_plan
from autoshard.program.trace import trace
from autoshard.search.keep.pads import PADS
from autoshard.search.search import search
from tests.helpers import toy_machine, with_compiler
from tests.search.keep.stacked import stacked_arguments

LAYERS, BATCH, WIDTH, LENGTH, WHOLE = 4, 16, 16, 6, 8
OPTIONS = {"mesh": {"x": 8}, "baselines": False}


def machine(name: str, **chip: float):
    """The toy machine with a compiler, and a chip of other figures."""
    toy = with_compiler(toy_machine(), name=name)
    return replace(toy, chip=replace(toy.chip, **chip))


DEAR = machine("xla:tpu", pad_tile_seconds=1e-3)
FREE = machine("xla:tpu", memory_bandwidth=1e12)
"""There a pad costs as good as nothing, and products cost what they compute."""


def layer(x, weights):
    made = jnp.pad(jnp.tanh(x @ weights["up"]), ((0, 0), (0, WHOLE - LENGTH), (0, 0)))
    summed = lax.cumsum(made, axis=1)[:, :LENGTH]
    return x + summed @ weights["down"], None


def step(params, x):
    def loss(params):
        with jax.named_scope("layers"):
            last, _ = lax.scan(jax.checkpoint(layer), x, params)
        return jnp.sum(last**2)

    value, grads = jax.value_and_grad(loss)(params)
    return value, jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


def arguments():
    params, x = stacked_arguments((LAYERS,), BATCH * LENGTH, WIDTH, 2 * WIDTH)
    return params, x.reshape(BATCH, LENGTH, WIDTH)


@pytest.fixture(scope="module")
def program():
    return trace(step, *arguments(), donate_argnums=0)


@pytest.fixture(scope="module")
def chosen(program):
    return search(program, DEAR, remat="search", **OPTIONS)


def test_pads_move_where_kernels_of_their_own_are_dear(program, chosen):
    assert chosen.options["early_pads"]
    (note,) = (note for note in chosen.notes if note.startswith(PADS))
    assert "test_pads.py:" in note
    assert PADS in " ".join(format_plan(chosen).split())
    behind = search(program, DEAR, **OPTIONS)
    assert chosen.estimate.step_seconds < behind.estimate.step_seconds


@pytest.mark.parametrize("toy", [FREE, machine("xla:gpu", pad_tile_seconds=1e-3)])
def test_pads_stay_where_they_cost_less_than_rows_of_products(program, toy):
    plan = search(program, toy, remat="search", **OPTIONS)
    assert "early_pads" not in plan.options
    assert not any(note.startswith(PADS) for note in plan.notes)


def test_the_plan_is_kept_and_runs_as_it_says(chosen, tmp_path):
    chosen.save(tmp_path / "plan.json")
    plan = Plan.load(tmp_path / "plan.json")
    assert plan == chosen
    args = arguments()
    assert verify(plan, step, *args, concrete=args).agrees
