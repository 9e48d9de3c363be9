"""A plan that was found for two meshes, written and read back, runs and is the plain step."""

from __future__ import annotations

import jax
import pytest

from autoshard import compat
from autoshard.lower.interpret import LoweringError
from autoshard.lower.numbers.double import wide, widened
from autoshard.lower.numbers.numeric import compare_outputs
from autoshard.machine.cluster import load_cluster
from autoshard.machine.compiler import FLAGS
from autoshard.models import training
from autoshard.plan.plan import PlanError
from autoshard.search.meshes.lower import lower_plan
from autoshard.search.meshes.plan import PipelinePlan
from autoshard.search.meshes.search import search_meshes
from autoshard.search.meshes.stage_program import paths_of
from tests.helpers import sampled
from tests.lower.mpmd.cases import small_step, tiny_llama
from tests.lower.mpmd.runs import BOUNDS, FLOOR


def found(step, count=4, *, cluster="2 x h100-2", time_limit=60.0, **options):
    steps = {count: step}
    return search_meshes(
        steps, load_cluster(cluster), compare=False, gap=0.9, time_limit=time_limit, **options
    )


TIGHT = 200e3
"""Bytes of a device: less than the whole weights of a stage take, so that they are sharded."""


CASES = [
    (tiny_llama(layers=4, scan=True), "2 x h100-2", 2, "fused", TIGHT),
    (small_step(scan=True), "2 x h100-2", 4, "split", None),
    (small_step(9, scan=True, clip=0.1), "h100-1 + h100-4 + h100-2", 3, "fused", 14e3),
]
"""A step, meshes, stages, whether the backward is one task, bytes of a device."""


@pytest.mark.parametrize(
    ("step", "cluster", "stages", "mode", "limit"), sampled(CASES, lambda one: one is not CASES[0])
)
def test_the_found_plan_runs_and_equals_the_plain_step(
    step, cluster, stages, mode, limit, tmp_path
):
    if len(jax.devices()) < 7:
        pytest.skip("needs 7 devices")
    path = tmp_path / "plan.json"
    args = training.sample(step.args, 0, BOUNDS)
    with jax.enable_x64(True):
        fn, args = widened(step.fn, *args), wide(args)
        options = {"modes": (mode,), "memory_limit": limit, "stages": (stages,)}
        found((fn, args, step.options), cluster=cluster, **options).save(path)
    plan = PipelinePlan.load(path)
    assert {t.kind for tasks in plan.order for t in tasks} == (
        {"F", "BW"} if mode == "fused" else {"F", "B", "W"}
    )
    with jax.enable_x64(True):
        lowered = lower_plan(plan, fn, *args, donate_argnums=(0, 1))
        (*state, batch), plain = args, jax.jit(fn)
        expected, differences = jax.tree.map(lambda leaf: leaf + 0, state), []
        for _ in range(2):
            loss, *state = lowered.run(*state, batch)
            right, *expected = plain(*expected, batch)
            differences += compare_outputs(
                (right, expected), lowered.whole((loss, state)), floor=FLOOR
            )
    assert differences == []
    sharded = [one for stage in plan.shardings for one in stage if any(one.spec)]
    assert bool(sharded) == (limit is not None)
    paths = paths_of(lowered.partition)
    layouts = {
        (paths[slot.value], slot.mesh): layout.spec
        for slot, layout in lowered.layouts.items()
        if slot.value in paths and slot.microbatch < 0 and not slot.total
    }
    for stage, planned in enumerate(plan.shardings):
        for one in planned:
            if one.argument.group == "state":
                assert layouts[one.argument.path, plan.mesh_of[stage]] == one.spec


def test_a_plan_of_another_step_is_refused():
    plan = found(small_step(layers=2), time_limit=20, stages=(2,), modes=("fused",))
    other = small_step(layers=4, microbatches=2)
    with pytest.raises(PlanError) as caught:
        lower_plan(plan, other.fn, *other.args, donate_argnums=(0, 1))
    assert str(caught.value) == (
        "the plan of 'step' is not for this step:\n"
        "  * the plan has 4 microbatches, step has 2\n"
        "  * the plan's stages are layer_0, layer_1, those of step are layer_0-layer_3\n"
        "search again"
    )
    with pytest.raises(LoweringError, match=r"meshes of 2 \+ 2 devices; there are 1"):
        lower_plan(plan, other.fn, *other.args, devices=jax.devices()[:1])


def test_flags_of_a_mesh_are_those_of_its_programs(tmp_path, monkeypatch):
    step = small_step(layers=2, scan=True)
    path = tmp_path / "plan.json"
    options = {"time_limit": 20, "stages": (2,), "modes": ("fused",)}
    found(step, cluster="h100-2 + h100-2@recipe", **options).save(path)
    plan = PipelinePlan.load(path)
    assert sorted(plan.flags) == ["default", "recipe"]
    told = []
    real = jax.jit

    def seen(fn, **given):
        told.append(given.get("compiler_options"))
        return real(fn, **given)

    monkeypatch.setattr(jax, "jit", seen)
    lower_plan(plan, step.fn, *step.args)
    known = compat.known_flags(FLAGS["xla:gpu", "recipe"])
    assert known in told
    assert {} in told
