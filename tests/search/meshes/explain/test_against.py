"""What differs between two plans, and the price of each difference in the step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoshard.plan.plan import PlanError
from autoshard.search.meshes.explain.against import against
from autoshard.search.meshes.explain.explain import PipelineExplainer
from autoshard.search.meshes.problem import runnable
from autoshard.solve.schedule.named import named_orders
from tests.search.meshes.explain.cases import planned, wide_step


@pytest.fixture(scope="module")
def explainer():
    step = wide_step()
    return PipelineExplainer(planned(step), step.fn, *step.args, **step.options)


def test_a_plan_with_one_layout_changed(explainer):
    plan = explainer.plan
    (stage, value) = explainer.values("params.layers")[-1]
    said = explainer.of_value(stage, value)
    chosen, told = said.explanation.alternatives[0], said.steps[0]
    plans = list(plan.stage_plans)
    plans[stage] = replace(plans[stage], decisions=chosen.decisions)
    other = replace(plan, stage_plans=tuple(plans))
    found = against(explainer, other, "params.layers")
    (one,) = found.stages
    assert found.form == ()
    assert (one.place.stage, one.changes) == (stage, chosen.changes)
    ((shown, alone, step),) = one.alone
    assert shown.startswith("params.layers[")
    assert alone.layout == chosen.layout
    assert step.seconds == told.seconds
    text = str(found)
    assert f"stage {stage} on mesh {plan.mesh_of[stage]} (h100-2, x=2): " in text
    assert "each of them alone, all else of the stage decided anew:" in text
    assert found.to_json()["stages"][0]["alone"][0]["pipeline"]["seconds"] == step.seconds
    every = against(explainer, other)
    assert len(every.stages[0].alone) > 1
    nothing = against(explainer, other, "batch.tokens")
    assert nothing.stages[0].alone == ()


def test_equal_plans_and_other_orders(explainer):
    plan = explainer.plan
    assert str(against(explainer, plan)).endswith("the plans are alike")
    orders = (runnable(one, plan.mode) for one in named_orders(plan.instance).values())
    other = replace(plan, order=next(one for one in orders if one != plan.order))
    text = str(against(explainer, other))
    assert text.endswith("what differs is the order of their tasks")


def test_other_forms_are_said(explainer):
    other = planned(wide_step(), modes=("split",), remat="search", gap=0.9)
    text = str(against(explainer, other))
    assert "  backward passes: fused -> split" in text


def test_other_programs_are_refused(explainer):
    other = replace(explainer.plan, program="mine.py:step")
    with pytest.raises(PlanError) as caught:
        against(explainer, other)
    assert str(caught.value) == (
        "the plans are of different programs: 'step' and 'mine.py:step'; give two plans of one"
    )
    with pytest.raises(PlanError, match="search for it again"):
        against(explainer, replace(explainer.plan, stage_plans=()))
