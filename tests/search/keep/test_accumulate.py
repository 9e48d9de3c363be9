"""The number of microbatches is decided with the layouts, and the plan runs as decided."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from autoshard.lower.verify import verify
from autoshard.plan.plan import Plan
from autoshard.plan.same_program import for_program
from autoshard.program.rewritten import in_microbatches
from autoshard.program.trace import TraceError, trace
from autoshard.search.search import search
from tests.helpers import toy_machine
from tests.search.keep.stacked import stacked_arguments

BATCH, WIDTH = 2048, 32
OPTIONS = {"mesh": {"x": 8}, "baselines": False}


def loss(params, x):
    return jnp.mean((jnp.tanh(x @ params["up"]) @ params["down"]) ** 2)


def step(params, x):
    value, grads = jax.value_and_grad(loss)(params, x)
    return value, jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


def arguments():
    return stacked_arguments((), BATCH, WIDTH, 4 * WIDTH)


@pytest.fixture(scope="module")
def program():
    return trace(step, *arguments(), donate_argnums=0)


@pytest.fixture(scope="module")
def ample(program):
    return search(program, toy_machine(), accumulate=(1, 2, 4), **OPTIONS)


@pytest.fixture(scope="module")
def tight(program, ample):
    """A plan in half of the memory that the whole batch at once takes."""
    limit = 0.5 * ample.estimate.peak_bytes
    plan = search(program, toy_machine(), accumulate=(1, 2, 4), memory_limit=limit, **OPTIONS)
    assert plan.estimate.peak_bytes <= limit
    return plan


def test_with_room_to_spare_the_batch_stays_whole(ample, program):
    assert "microbatches" not in ample.options
    assert ample.fingerprint == program.fingerprint
    (note,) = [note for note in ample.notes if note.startswith("the step works on its whole batch")]
    assert "; other numbers, on the meshes on which they were planned: 2: " in note


def test_microbatches_make_a_step_fit(tight, program):
    count = tight.options["microbatches"]
    assert count in (2, 4)
    assert any(f"microbatches={count})" in note for note in tight.notes)
    assert any("planned: 1: " in note for note in tight.notes)
    assert for_program(tight, in_microbatches(program, count)) == tight


def test_the_bound_is_that_of_all_numbers(ample, program):
    found = [search(in_microbatches(program, count), toy_machine(), **OPTIONS) for count in (2, 4)]
    assert ample.proof.bound <= min(plan.proof.objective for plan in found)
    assert ample.proof.objective <= min(plan.proof.objective for plan in found)


def test_the_plan_is_kept_lowered_and_verified(tight, tmp_path):
    tight.save(tmp_path / "plan.json")
    plan = Plan.load(tmp_path / "plan.json")
    assert plan == tight
    args = arguments()
    verdict = verify(plan, step, *args, concrete=args)
    assert verdict.agrees, str(verdict)


def test_where_there_is_nothing_to_save_the_number_is_chosen_alone(program):
    plan = search(program, toy_machine(), accumulate=(2,), remat="search", **OPTIONS)
    assert plan.options["microbatches"] == 2
    assert any("there is nothing to choose to save" in note for note in plan.notes)
    both = search(program, toy_machine(), accumulate=(1, 2), remat="search", **OPTIONS)
    assert "microbatches" not in both.options
    assert any("there is nothing to choose to save" in note for note in both.notes)


def test_a_step_that_cannot_be_cut_is_refused_by_its_op():
    def largest(params, x):
        return jnp.max(x @ params)

    program = trace(jax.grad(largest), np.ones((4, 4)), np.ones((8, 4)), donate_argnums=0)
    options = {"mesh": {"x": 8}, "baselines": False}
    with pytest.raises(TraceError, match=r"reduce_max .*test_accumulate.py.* not by a sum"):
        search(program, toy_machine(), accumulate=(2, 4), **options)
    plan = search(program, toy_machine(), accumulate=(1, 2), **options)
    assert any("2 microbatches cannot be had: the step" in note for note in plan.notes)
    with pytest.raises(TraceError, match="was traced with microbatches already"):
        in_microbatches(in_microbatches(trace(step, *arguments()), 2), 2)
