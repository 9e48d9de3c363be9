"""Weights are cast before their loops where what is gathered narrow is worth its memory."""

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
from autoshard.program.rewritten import resaved
from autoshard.program.trace import trace
from autoshard.search.keep.early import EARLY, LEAST, Beside
from autoshard.search.keep.otherwise import keep_choices
from autoshard.search.keep.proposals import Proposal
from autoshard.search.keep.trials import Base, Trial
from autoshard.search.search import search
from tests.helpers import toy_machine, with_compiler
from tests.search.keep.stacked import stacked_arguments

LAYERS, BATCH, WIDTH = 8, 512, 64
OPTIONS = {"mesh": {"x": 8}, "baselines": False}
ROOM, TIGHT = 700_000, 550_000
"""Bytes of a device in which the weights of all layers have room in bfloat16, and in which not."""
NOTE = (
    "weights cast before their loops: [0]['down'] and 1 other to bfloat16, as WEIGHT.astype(TYPE) "
    "ahead of jax.lax.scan casts them"
)


def machine(bandwidth: float):
    """The toy machine with chips of another bandwidth to each other."""
    network = Switch(8, chip_bandwidth=bandwidth, latency_seconds=0.0, efficiency=1.0)
    return replace(toy_machine(), network=(network,))


def layer(x, weights):
    up, down = (weights[name].astype(jnp.bfloat16) for name in ("up", "down"))
    return x + jnp.tanh(x @ up) @ down, None


def step(params, x):
    def loss(params):
        with jax.named_scope("layers"):
            last, _ = lax.scan(jax.checkpoint(layer), x.astype(jnp.bfloat16), params)
        return jnp.sum(last.astype(jnp.float32) ** 2)

    value, grads = jax.value_and_grad(loss)(params)
    return value, jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


def arguments():
    return stacked_arguments((LAYERS,), BATCH, WIDTH, 2 * WIDTH)


@pytest.fixture(scope="module")
def program():
    return trace(step, *arguments(), donate_argnums=0)


@pytest.fixture(scope="module")
def slow():
    return machine(3e4)


@pytest.fixture(scope="module")
def chosen(program, slow):
    return search(program, slow, remat="search", memory_limit=ROOM, **OPTIONS)


def test_early_casts_are_chosen_where_gathers_are_dear(program, slow, chosen):
    assert chosen.options["early_casts"]
    assert NOTE in chosen.notes
    assert NOTE in " ".join(format_plan(chosen).split())
    late = search(program, slow, memory_limit=ROOM, **OPTIONS)
    assert "early_casts" not in late.options
    assert chosen.estimate.step_seconds < 0.9 * late.estimate.step_seconds
    gathers = [move for move in chosen.moves if move.kind == "all_gather"]
    assert [(move.value[:7], move.count) for move in gathers] == [("bf16[8,", 1), ("bf16[8,", 1)]


@pytest.mark.parametrize(
    ("bandwidth", "limit", "early"), [(3e4, ROOM, True), (3e4, TIGHT, False), (1e9, ROOM, False)]
)
def test_they_are_chosen_where_they_fit_and_gain_enough(program, bandwidth, limit, early):
    """The step that casts in turns is then the best that there is with either."""
    there = machine(bandwidth)
    plan = search(program, there, remat="search", memory_limit=limit, **OPTIONS)
    assert ("early_casts" in plan.options) == early
    assert plan.estimate.peak_bytes <= limit
    names = [one.name for one in plan.kept if one.saved]
    late = search(resaved(program, names), there, memory_limit=limit, **OPTIONS)
    ratio = plan.estimate.step_seconds / late.estimate.step_seconds
    assert ratio < 1 - LEAST if early else ratio == pytest.approx(1)


@pytest.mark.parametrize(
    ("price", "schedule", "by_schedule", "kept"),
    [
        (0.9, 0.9, True, True),
        (0.9, 1.1, True, False),  # cheaper by prices alone
        (0.9, 1.1, False, True),
        (1.1, 0.9, True, False),
        (1 - LEAST / 2, 0.9, True, False),
        (0.9, 1 - LEAST / 2, True, False),
    ],
)
def test_they_gain_by_prices_and_as_scheduled(program, chosen, price, schedule, by_schedule, kept):
    def trial(price: float, schedule: float) -> Trial:
        """A trial of a plan with a price, and so many seconds as scheduled, of 10."""
        estimate = replace(
            chosen.estimate, step_seconds=10 * price, scheduled_seconds=10 * schedule
        )
        proof = replace(chosen.proof, objective=10 * price)
        plan = replace(chosen, estimate=estimate, proof=proof)
        return Trial("one", program, program, None, 0.0, plan=plan)

    one = Beside(Base(program), Proposal("one", frozenset()), trial(1.0, 1.0), LEAST)
    judged = one.judged(trial(price, schedule), by_schedule=by_schedule)
    assert (judged.plan is not None) == kept
    assert bool(judged.why) != kept
    trusting = replace(one, scheduled=False).judged(trial(price, schedule), by_schedule=True)
    assert (trusting.plan is not None) == (price < 1 - LEAST)


def test_the_compiler_of_tpus_casts_early_itself(program, slow):
    tpu = with_compiler(slow, name="xla:tpu")
    plan = search(program, tpu, remat="search", memory_limit=ROOM, **OPTIONS)
    assert "early_casts" not in plan.options
    assert not any(EARLY in note for note in plan.notes)


def test_the_plan_is_kept_and_runs_as_it_says(chosen, tmp_path):
    chosen.save(tmp_path / "plan.json")
    plan = Plan.load(tmp_path / "plan.json")
    assert plan == chosen
    args = arguments()
    assert verify(plan, step, *args, concrete=args).agrees


def test_what_is_kept_may_be_asked_otherwise(chosen):
    planned = trace(step, *arguments(), **chosen.options)
    assert planned.fingerprint == chosen.fingerprint
    assert keep_choices(planned, chosen, ["*tanh"])
