"""What a plan is in one line, for plans that are made to be a scheme."""

from __future__ import annotations

import jax.numpy as jnp
import pytest

from autoshard.machine.load import load
from autoshard.models.find import find
from autoshard.program.trace import trace
from autoshard.search.search import search
from autoshard.show.profile import profile
from autoshard.show.scheme_line import scheme_line
from tests.helpers import toy_machine
from tests.problem.requirements.programs import array, plan_of, train_step

SCHEMES = {
    "FSDP over 8 (data, model)": (
        "pin batch.* [(data, model), ...]",
        "pin weights.* [(data, model), None]",
        "pin scope mlp:dot_general [(data, model), None]",
    ),
    "data parallel over 8 (data, model)": (
        "pin batch.* [(data, model), ...]",
        "pin weights.* [None, None]",
        "pin scope mlp:dot_general [(data, model), None]",
    ),
    "data parallel over 2 (data), TP over 4 (model)": (
        "pin batch.* [data, ...]",
        "pin weights.up [None, model]",
        "pin weights.down [model, None]",
        "pin scope mlp:dot_general [data, ?]",
    ),
}


@pytest.fixture(scope="module")
def program():
    """With so many rows that weights are moved, and not what is computed of them."""
    weights = {"up": array(256, 1024), "down": array(1024, 256)}
    batch = {"inputs": array(2**16, 256), "targets": array(2**16, 256)}
    return trace(train_step, weights, batch, donate_argnums=0)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_scheme_is_called_by_its_name(program, scheme):
    plan = plan_of(program, *SCHEMES[scheme])
    assert scheme_line(profile(plan, program, toy_machine(8))) == scheme


def test_what_no_axis_cuts_is_replicated():
    weights = {"up": array(32, 64), "down": array(64, 32)}
    batch = {"inputs": array(16, 32), "targets": array(16, 32)}
    program = trace(train_step, weights, batch, donate_argnums=0)
    machine = load("v5e-8")  # on which collectives take longer than these products
    plan = search(program, machine, mesh={"x": 2, "y": 4}, baselines=False)
    assert scheme_line(profile(plan, program, machine)) == "replicated over 8 (x, y)"


def test_the_weights_of_a_step_that_serves_are_not_its_cache():
    machine, name = load("h100-8"), "llama3-1b-decode,batch=1"  # one row, which no axis cuts
    step = find(name, machine=machine)
    program = trace(step.fn, *step.args, name=name, **step.options)
    plan = search(program, machine, mesh={"x": 8}, time_limit=10.0, baselines=False)
    assert scheme_line(profile(plan, program, machine)) == "TP over 8 (x)"


def test_it_says_that_weights_are_cast_before_their_loops():
    step = find("llama3-8b:tiny")
    program = trace(step.fn, *step.args, early_casts=True, **step.options)
    plan = search(program, toy_machine(8), mesh={"x": 8}, time_limit=10.0, baselines=False)
    line = scheme_line(profile(plan, program, toy_machine(8)))
    assert line.endswith("(x), weights cast before their loops")


def test_it_says_that_products_read_padded_rows():
    def step(x, w):
        return jnp.sort(jnp.pad(x @ w, ((0, 8), (0, 0))))

    program = trace(step, array(56, 64), array(64, 64), early_pads=True)
    plan = search(program, toy_machine(8), mesh={"x": 8}, time_limit=10.0, baselines=False)
    line = scheme_line(profile(plan, program, toy_machine(8)))
    assert line.endswith("(x), pads before products")


def test_it_says_that_sums_end_after_their_loops():
    step = find("llama3-8b:tiny")
    program = trace(step.fn, *step.args, late_sums=[4], **step.options)
    plan = search(program, toy_machine(8), mesh={"x": 8}, time_limit=10.0, baselines=False)
    line = scheme_line(profile(plan, program, toy_machine(8)))
    assert line.endswith("(x), sums over devices after their loops")
