"""What another layout costs of a step is what the pipeline with that choice forced takes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoshard.plan.plan import PlanError
from autoshard.program.layout_pattern import Dimension, LayoutPattern
from autoshard.program.select import RequirementError, shown_path
from autoshard.search.meshes.explain.explain import PipelineExplainer
from autoshard.search.meshes.plan import PipelinePlan
from autoshard.search.meshes.price import price
from autoshard.search.search import search
from tests.search.meshes.explain.cases import by_hand, planned, wide_step


@pytest.fixture(scope="module")
def step():
    return wide_step()


@pytest.fixture(scope="module")
def plan(step):
    return planned(step)


@pytest.fixture(scope="module")
def explainer(step, plan):
    return PipelineExplainer(plan, step.fn, *step.args, **step.options)


def pattern(layout, names, rank):
    axes = [[names[a] for a, d in enumerate(layout) if d == k] for k in range(rank)]
    return str(LayoutPattern(tuple(Dimension(tuple(found)) for found in axes)))


def test_a_plan_has_its_own_price(plan, explainer):
    now = explainer.staged.now
    assert now.seconds == pytest.approx(plan.step_seconds, rel=1e-9)
    assert now.peak_bytes == pytest.approx(plan.peak_bytes, rel=1e-9)
    assert explainer.notes == []


@pytest.mark.parametrize("target", ["params.layers", "sent[0][0]"])
def test_every_price_is_that_of_the_pipeline_with_the_choice_forced(explainer, target):
    staged = explainer.staged
    found = explainer.values(target)
    assert [stage for stage, _ in found] == [0, 1]
    for stage, value in found:
        program, own = staged.programs[stage], staged.plan.stage_plans[stage]
        said = explainer.of_value(stage, value)
        rank = len(program.values[value].shape)
        assert said.explanation.alternatives
        for one, told in zip(said.explanation.alternatives, said.steps, strict=True):
            asked = f"pin {shown_path(program, value)} " + pattern(one.layout, own.mesh.names, rank)
            cold = search(
                program,
                staged.machine(stage),
                mesh=dict(zip(own.mesh.names, own.mesh.sizes, strict=True)),
                memory_limit=own.memory_limit,
                requirements=[asked],
                baselines=False,
            )
            arguments = staged.step.programs[stage].arguments
            prices = list(staged.prices)
            prices[stage] = price(cold, program, staged.machine(stage), arguments)
            most, least = by_hand(staged, prices)
            assert one.step_seconds == pytest.approx(cold.estimate.step_seconds, rel=1e-8)
            assert least * (1 - 1e-8) <= told.seconds <= most * (1 + 1e-8)
            assert told.fits


def rows(plan):
    """The rows of the stacked layers in each of two stages."""
    first = len(plan.stages[0])
    return f"[0:{first}]", f"[{first}:4]"


def test_values_are_found_by_the_names_of_the_step(plan, explainer):
    programs = explainer.staged.programs
    first, second = rows(plan)

    def named(target):
        return [shown_path(programs[stage], v) for stage, v in explainer.values(target)]

    assert named("params.layers") == [f"params.layers{first}", f"params.layers{second}"]
    assert named(f"params.layers{second}") == [f"params.layers{second}"]
    assert named("params.embedding") == ["params.embedding", "params.embedding"]
    assert named("result[1].layers") == [f"result[1].layers{first}", f"result[1].layers{second}"]
    assert named("sent[0][0]") == ["result.sent[0][0]", "sent[0][0]"]
    assert {stage for stage, _ in explainer.values("line cases.py:62:tanh")} == {0, 1}


def test_what_is_not_there_is_refused(step, plan, explainer):
    with pytest.raises(RequirementError) as caught:
        explainer.values("params.layer")
    assert str(caught.value) == (
        "'params.layer' names no value of stages 0, 1; did you mean params.layers?"
    )
    with pytest.raises(RequirementError, match=r"'line cases.py:1' names no value of stages 0, 1"):
        explainer.values("line cases.py:1")
    with pytest.raises(RequirementError) as caught:
        PipelineExplainer(plan, step.fn, *step.args, **step.options, stages=[1, 2, -1])
    assert str(caught.value) == "the plan has no stage 2 and -1: its stages are 0 to 1"
    old = replace(plan, stage_plans=())
    with pytest.raises(PlanError, match="saved without the plans of its stages"):
        PipelineExplainer(old, step.fn, *step.args, **step.options)
    other = wide_step(5)
    with pytest.raises(PlanError, match="is not for this step"):
        PipelineExplainer(plan, other.fn, *other.args, **other.options)


def test_one_stage_alone(step, plan):
    alone = PipelineExplainer(plan, step.fn, *step.args, **step.options, stages=[1])
    assert {stage for stage, _ in alone.values("params.layers")} == {1}
    assert [one.place.stage for one in alone.dearest()] == [1]


def test_a_file_keeps_what_is_explained(step, plan, explainer, tmp_path):
    plan.save(tmp_path / "plan.json")
    again = PipelinePlan.load(tmp_path / "plan.json")
    there = PipelineExplainer(again, step.fn, *step.args, **step.options)
    for one, other in zip(
        explainer.explain("params.embedding"), there.explain("params.embedding"), strict=True
    ):
        assert str(one) == str(other)
    assert [one.dearest for one in there.dearest()] == [one.dearest for one in explainer.dearest()]


def test_damaged_plans_of_stages_are_told(plan):
    data = plan.to_json()
    with pytest.raises(PlanError, match=r"plan_of is \[0\] for 2 stages"):
        PipelinePlan.from_json({**data, "plan_of": [0]})
    plans = [{**one, "mesh": "x"} for one in data["plans"]]
    with pytest.raises(PlanError, match=r"plans\[0\]: the plan is damaged"):
        PipelinePlan.from_json({**data, "plans": plans})


def test_the_text_says_what_the_step_makes_of_it(plan, explainer):
    (said,) = (one for one in explainer.explain("params.layers") if one.place.stage == 1)
    text = str(said)
    assert text.startswith("stage 1 on mesh 1 (h100-2, x=2) works ")
    assert f"params.layers{rows(plan)[1]} f32[" in text
    assert "all else of the stage decided anew, and the step priced with it:" in text
    assert "at the peak of mesh 1" in text
    told = said.to_json()
    assert told["stage"] == 1
    assert len(told["other_layouts"]) == len(said.steps)
    assert told["other_layouts"][0]["pipeline"]["seconds"] == said.steps[0].seconds


def test_equal_stages_are_solved_once():
    """Of four stages of one layer each those in the middle are equal."""
    step = wide_step()
    plan = planned(step, stages=(4,), gap=0.9)
    explainer = PipelineExplainer(plan, step.fn, *step.args, **step.options)
    first, second = (explainer.staged.programs[stage].fingerprint for stage in (1, 2))
    assert first == second
    said = {one.place.stage: one for one in explainer.explain("params.layers")}
    assert [said[stage].alike for stage in range(4)] == [None, None, 1, None]
    assert explainer._explainers.keys() == {0, 1, 3}
    assert "  for the reasons of stage 1\n" in str(said[2])
    assert "[1:2]" not in str(said[2])
    alike = [one.alike for one in explainer.dearest()]
    assert alike == [None, None, 1, None]
    again = PipelineExplainer(plan, step.fn, *step.args, **step.options, stages=[2])
    (alone,) = again.explain("params.layers")
    assert alone.alike is None
    assert [one.seconds for one in alone.steps] == [one.seconds for one in said[2].steps]
