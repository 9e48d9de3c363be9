"""A lowered step changes its arguments as the step itself does, and the judges see it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from autoshard.lower.numbers.numeric import require_same_outputs
from autoshard.lower.spmd import lower
from autoshard.lower.verify import verify
from autoshard.search.search import search
from tests.helpers import MESHES, case, concrete_like, random_plan, toy_machine
from tests.program.in_place_steps import (
    BATCH,
    Average,
    average_step,
    model_and_optimizer,
    plain_step,
    ref_step,
    refs,
    returning_step,
    train_step,
)


def batch():
    return concrete_like((BATCH,))[0]


def copied(tree):
    return jax.tree.map(lambda leaf: jnp.array(leaf, copy=True), tree)


def test_flax_objects_are_trained_in_place() -> None:
    objects = model_and_optimizer()
    given = case(train_step, *objects, BATCH, mesh=MESHES["8"])
    lowered = lower(random_plan(given, 1), train_step, *objects, BATCH)
    mine, theirs = (
        jax.device_put((*copied(objects), batch()), lowered.in_shardings),
        copied(objects),
    )
    model = mine[0]
    kernel = model.up.kernel.get_raw_value()
    step = lowered.jit()
    for _ in range(2):
        expected = plain_step(*theirs, batch())
        require_same_outputs(expected, step(*mine), tolerances={"float32": 1e-4})
    assert kernel.is_deleted()
    assert model.up.kernel[...].sharding == lowered.in_shardings[0].up.kernel.get_raw_value()
    for ours, known in (
        (model.up.kernel, theirs[0].up.kernel),
        (model.norm.mean, theirs[0].norm.mean),
    ):
        require_same_outputs(known[...], ours[...], tolerances={"float32": 1e-3})
    assert mine[1].step[...] == 2


@pytest.mark.parametrize("seed", range(2))
def test_plans_of_steps_that_change_objects_are_verified(seed) -> None:
    objects = model_and_optimizer()
    given = case(train_step, *objects, BATCH, mesh=MESHES["2x4"])
    plan = random_plan(given, seed)
    verdict = verify(plan, train_step, *objects, BATCH, concrete=(*copied(objects), batch()))
    assert verdict.differences == ()
    assert verdict.agrees, verdict


def test_a_step_costs_the_same_whether_it_returns_its_state_or_changes_it() -> None:
    objects = model_and_optimizer()
    plans = [
        search(case(step, *objects, BATCH, mesh=MESHES["8"], **options).program, toy_machine())
        for step, options in ((train_step, {}), (returning_step, {"donate_argnums": (0, 1)}))
    ]
    one, other = (plan.estimate for plan in plans)
    assert one.step_seconds == pytest.approx(other.step_seconds, rel=1e-3)
    assert one.peak_bytes == pytest.approx(other.peak_bytes, rel=1e-3)


def test_refs_are_changed_on_the_mesh() -> None:
    (x,) = concrete_like((BATCH["x"],))
    given = case(ref_step, *refs(), x, mesh=MESHES["8"])
    plan = random_plan(given, 0)
    verdict = verify(plan, ref_step, *refs(), x, concrete=(*refs(), x))
    assert verdict.differences == ()
    lowered = lower(plan, ref_step, *refs(), x)
    arrays = jax.tree.map(lambda ref: np.asarray(ref[...]), refs())
    placed = jax.device_put((*arrays, x), lowered.in_shardings)
    mine = *jax.tree.map(jax.new_ref, placed[:2]), placed[2]
    theirs = (*refs(), x)
    step = lowered.jit()
    for _ in range(2):
        require_same_outputs(ref_step(*theirs), step(*mine), tolerances={"float32": 1e-4})
    for known, ours in zip(jax.tree.leaves(theirs[:2]), jax.tree.leaves(mine[:2]), strict=True):
        require_same_outputs(known[...], ours[...], tolerances={"float32": 1e-4})


def test_other_arguments_are_refused_by_their_places() -> None:
    average = Average(jnp.ones(8), (jnp.zeros(()), jnp.ones(())))
    given = case(average_step, average, jnp.ones(8), mesh=MESHES["8"])
    lowered = lower(random_plan(given, 0), average_step, average, jnp.ones(8))
    other = Average(jnp.ones(8), (jnp.zeros(()),))
    with pytest.raises(
        TypeError,
        match=r"other arguments: \[0\].parts\[1\] is missing; search for a plan of these$",
    ):
        lowered.jit()(other, jnp.ones(8))
    with pytest.raises(TypeError, match="so that its plan alone says donate_argnums; give others"):
        lowered.jit(donate_argnums=())
    assert lowered.functional(donate_argnums=())(average, jnp.ones(8))[0] == 8.0
    assert lowered.jit()(average, jnp.ones(8)) == 8.0
    assert average.total[0] == 3.0
