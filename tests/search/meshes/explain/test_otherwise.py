"""What keeping a value otherwise costs is what the step takes whose stage is cut and planned so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoshard.lower.mpmd.cut.saving import StageChoice
from autoshard.machine.cluster import load_cluster
from autoshard.program.select import RequirementError
from autoshard.search.meshes.explain.explain import PipelineExplainer
from autoshard.search.meshes.explain.otherwise import AGAIN, HOST, SAVED, keep_choices, otherwise
from autoshard.search.meshes.matching import recut
from autoshard.search.meshes.price import price
from autoshard.search.meshes.search import search_meshes
from autoshard.search.meshes.stage_program import stage_program
from autoshard.search.search import search
from tests.lower.mpmd.cases import small_step
from tests.search.meshes.chains import chains
from tests.search.meshes.explain.cases import by_hand

STAGE = 1


STEP = chains(4, rows=2048, layers=4)


@pytest.fixture(scope="module")
def explainer():
    step = STEP
    plan = search_meshes(
        {4: step}, load_cluster("2 x h100-2"), compare=False, stages=(2,), modes=("fused",),
        gap=0.3, time_limit=60, remat="search",
    )  # fmt: skip
    return PipelineExplainer(plan, step.fn, *step.args, **step.options)


def names_of(explainer, stage):
    return explainer.plan.saves[stage].choice.names


@pytest.mark.parametrize("instead", [SAVED, AGAIN, HOST])
def test_it_is_the_step_with_that_stage_cut_and_planned_so(explainer, instead):
    staged, plan = explainer.staged, explainer.plan
    asked = next(
        one
        for one in keep_choices(explainer, ["*"])
        if one.stage == STAGE and one.instead == instead
    )
    found = otherwise(explainer, asked)
    assert found.kept.fits
    choices = [one.choice for one in plan.saves]
    own = choices[STAGE].names
    assert own is not None
    name = asked.value.name
    names = own - {name} if instead == AGAIN else own | {name}
    away = frozenset([name]) if instead == HOST else frozenset()
    choices[STAGE] = StageChoice(names, away, bool(away))
    partition = recut(plan, staged.step.traced, choices)
    program = stage_program(partition, STAGE, plan.mode)
    traced, planned = program.traced(), plan.stage_plans[STAGE]
    made = search(
        traced,
        staged.machine(STAGE),
        mesh=dict(zip(planned.mesh.names, planned.mesh.sizes, strict=True)),
        memory_limit=planned.memory_limit,
        gap=0.005,
        baselines=False,
    )
    priced = price(made, traced, staged.machine(STAGE), program.arguments)
    prices = [priced if s == STAGE else one for s, one in enumerate(staged.prices)]
    most, least = by_hand(staged, prices, partition)
    now = staged.now.seconds
    assert least - now - 1e-9 <= found.kept.seconds <= most - now + 1e-9
    worked = priced.busy_seconds(4) - staged.prices[STAGE].busy_seconds(4)
    assert found.stage_seconds == pytest.approx(worked, abs=1e-12)
    assert found.host_bytes == priced.host_bytes
    assert bool(found.host_bytes) == (instead == HOST)


def test_each_value_is_asked_about_in_each_stage(explainer):
    every = keep_choices(explainer)
    assert {one.stage for one in every} == {0, 1}
    assert all(one.instead != ("saved" if one.value.saved else "computed again") for one in every)
    assert [one.value.bytes for one in every] == sorted(
        (one.value.bytes for one in every), reverse=True
    )
    saved = {one.value.name for one in every if one.stage == 0 and one.value.saved}
    assert saved == set(names_of(explainer, 0))
    with pytest.raises(RequirementError) as caught:
        keep_choices(explainer, ["*sin*"])
    assert str(caught.value).startswith("a value called '*sin*' is kept by no stage among 0, 1; ")


def test_where_memory_binds_fewer_microbatches_are_on_their_way(explainer):
    """Within the memory that the plan takes more is saved at the price of another order."""
    plan = explainer.plan
    limits = tuple(peak * (1 + 1e-6) for peak in plan.peak_bytes)
    plans = tuple(
        replace(one, memory_limit=limits[m])
        for one, m in zip(plan.stage_plans, plan.mesh_of, strict=True)
    )
    tight = replace(plan, memory_limit=limits, stage_plans=plans)
    within = PipelineExplainer(tight, STEP.fn, *STEP.args, **STEP.options)
    asked = next(
        one
        for one in keep_choices(within, ["layers/squeeze#2"])
        if (one.stage, one.instead) == (0, SAVED)
    )
    ample, found = otherwise(explainer, asked), otherwise(within, asked)
    assert found.kept.fits
    assert ample.kept.fits
    assert found.kept.bytes <= 1e-6 * limits[0] < ample.kept.bytes
    assert found.kept.seconds > ample.kept.seconds


def test_steps_without_choices_are_refused():
    step = small_step(scan=False)
    plan = search_meshes(
        {4: step}, load_cluster("2 x h100-1"), compare=False, stages=(2,), modes=("fused",),
        gap=0.9, time_limit=30,
    )  # fmt: skip
    plain = PipelineExplainer(plan, step.fn, *step.args, **step.options)
    with pytest.raises(RequirementError, match=r"stand in loops \(scan\)"):
        keep_choices(plain)
