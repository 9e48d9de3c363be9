"""What a stage adds to the step that works more, and how the step is priced with it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from autoshard.search.meshes.explain.explain import PipelineExplainer
from autoshard.search.meshes.explain.staged import CLOSE
from autoshard.search.meshes.problem import loop_seconds
from tests.search.meshes.explain.cases import planned, wide_step


@pytest.fixture(scope="module")
def explainer():
    step = wide_step(3)  # one stage has two of the layers
    return PipelineExplainer(planned(step), step.fn, *step.args, **step.options)


def longer(price, seconds):
    """The price of a stage whose tasks take so much longer for a microbatch, in proportion."""
    whole = sum(price.seconds.values())
    times = {kind: one * (1 + seconds / whole) for kind, one in price.seconds.items()}
    return replace(price, seconds=times)


@pytest.mark.parametrize("stage", [0, 1])
def test_what_a_stage_adds_to_the_step(explainer, stage):
    staged, plan = explainer.staged, explainer.plan
    share, rounding = staged.share(stage), 2e-9 * plan.microbatches
    own = sum(staged.prices[stage].seconds.values())

    def added(more):
        prices = list(staged.prices)
        prices[stage] = longer(prices[stage], more)
        loops = (
            loop_seconds(staged.instance(of), plan.order, plan.mode, plan.dispatch_seconds)
            for of in (staged.prices, prices)
        )
        before, after = loops
        return after - before

    little = 0.01 * own
    assert added(little) == pytest.approx(share.added * plan.microbatches * little, abs=rounding)
    if math.isinf(share.room_seconds):
        most = (share.added + CLOSE) * plan.microbatches * own
        assert added(own) <= most + rounding
        return
    for more, close in ((share.room_seconds, True), (share.room_seconds + 2 * little, False)):
        most = (share.added + CLOSE) * plan.microbatches * more
        assert (added(more) <= most + rounding) == close


def test_where_others_set_the_pace_little_is_added(explainer):
    places = [explainer.place(stage) for stage in (0, 1)]
    idle, paced = sorted(places, key=lambda one: one.share.added)
    assert paced.share.added == pytest.approx(1.0, rel=1e-6)
    assert str(paced).endswith("100.0 % is added to the step: it sets the pace")
    assert idle.share.added == pytest.approx(1 / explainer.plan.microbatches)
    assert idle.share.room_seconds > 0
    assert " for each microbatch) 25.0 % is added to the step: others set the pace" in str(idle)
    said = next(one for one in explainer.explain("params.layers") if one.place == idle)
    compared = 0
    for one, told in zip(said.explanation.alternatives, said.steps, strict=True):
        worked = one.step_seconds - said.explanation.step_seconds
        if 0 < worked < idle.share.room_seconds * explainer.plan.microbatches:
            assert told.seconds - said.now.seconds < worked
            compared += 1
    assert compared


def test_an_order_is_looked_for_where_the_plans_has_no_room(explainer):
    """What a microbatch keeps is as much as there is room for: one at a time is on its way."""
    staged = explainer.staged
    limit = explainer.plan.memory_limit[0]
    own = staged.prices[0]
    kept = (limit - own.resident_bytes - own.workspace_bytes) * 0.6
    found = staged.with_stage(0, replace(own, kept_bytes=kept))
    assert found.fits
    assert found.seconds > staged.now.seconds
    assert found.peak_bytes[0] <= limit
    over = staged.with_stage(0, replace(own, kept_bytes=3 * kept))
    assert not over.fits
    assert "mesh 0 (h100-2) may use" in over.why
    assert over.seconds == pytest.approx(staged.now.seconds, rel=0.01)
