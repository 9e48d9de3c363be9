"""Sums over devices end after their loops where a turn waits for them."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from autoshard.lower.verify import verify
from autoshard.machine.network import Switch
from autoshard.plan.plan import Plan
from autoshard.plan.text.page import format_plan
from autoshard.program.trace import trace
from autoshard.search.keep.late import LATE, parts_of
from autoshard.search.search import search
from tests.helpers import toy_machine, with_compiler
from tests.search.keep.stacked import stacked_arguments

LAYERS, BATCH, WIDTH = 8, 512, 64
OPTIONS = {"mesh": {"x": 8}, "baselines": False, "memory_limit": 4_000_000}


def machine(latency: float):
    """The toy machine with chips that are so many seconds apart."""
    network = Switch(8, chip_bandwidth=1e6, latency_seconds=latency, efficiency=1.0)
    return replace(toy_machine(), network=(network,))


def layer(x, weights):
    normed = x * weights["scale"] + weights["bias"]
    return x + jnp.tanh(normed @ weights["up"]) @ weights["down"], None


def step(params, x):
    def loss(params):
        with jax.named_scope("layers"):
            last, _ = lax.scan(jax.checkpoint(layer), x, params)
        return jnp.sum(last**2)

    value, grads = jax.value_and_grad(loss)(params)
    return value, jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


def arguments():
    params, x = stacked_arguments((LAYERS,), BATCH, WIDTH, 2 * WIDTH)
    short = dict.fromkeys(("scale", "bias"), params["up"][:, :, 0])
    return {**params, **short}, x


@pytest.fixture(scope="module")
def program():
    return trace(step, *arguments(), donate_argnums=0)


@pytest.fixture(scope="module")
def chosen(program):
    return search(program, machine(1e-2), remat="search", **OPTIONS)


def test_sums_end_late_where_turns_wait_for_them(program, chosen):
    assert chosen.options["late_sums"] == [8]
    assert any(note.startswith(LATE) for note in chosen.notes)
    assert LATE in " ".join(format_plan(chosen).split())
    turns = search(program, machine(1e-2), **OPTIONS)
    assert parts_of(program, turns) == [8]
    short = {move.value for move in turns.moves if move.count == LAYERS and move.bytes <= 4 * WIDTH}
    assert short
    assert not [one for one in chosen.moves if one.count == LAYERS and one.bytes <= 4 * WIDTH]
    assert chosen.estimate.step_seconds < turns.estimate.step_seconds


def test_on_tpus_it_is_not_tried(program):
    tpu = with_compiler(machine(1e-2), name="xla:tpu")
    plan = search(program, tpu, remat="search", **OPTIONS)
    assert "late_sums" not in plan.options
    assert not any(LATE in note for note in plan.notes)


def test_where_sums_run_a_turn_behind_it_is_not_tried(program):
    gpu = with_compiler(machine(1e-2), name="xla:gpu")
    for flags, late in (("default", True), ("recipe", False)):
        plan = search(program, with_compiler(gpu, flags=flags), remat="search", **OPTIONS)
        assert ("late_sums" in plan.options) == late


def test_the_plan_is_kept_and_runs_as_it_says(chosen, tmp_path):
    chosen.save(tmp_path / "plan.json")
    plan = Plan.load(tmp_path / "plan.json")
    assert plan == chosen
    args = arguments()
    assert verify(plan, step, *args, concrete=args).agrees
