"""Our own pipelines of published runs: what is chosen, and that it fits."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from autoshard.study.measured import Run, our_pipeline, question
from autoshard.study.measured.answer import answer
from autoshard.study.measured.our_pipeline import our_pipeline as searched
from autoshard.study.measured.stages import Piped, piped

GPT3 = Run(
    id="gpt3", model="gpt3-175B", chip="A100-80GB", chips=64, framework="Megatron-LM",
    batch=64, sequence=2048, microbatch=1, tp=8, pp=8, vpp=3, schedule="interleaved 1F1B",
    precision="bf16", remat="full",
)  # fmt: skip
LIMIT = 80.0 * 2**30


def test_the_runs_own_pipeline_is_among_those_that_are_tried():
    asked = question(GPT3)
    own = piped(asked, 60.0)
    found = searched(asked, limit=max(own.needed_bytes, LIMIT), time_limit=5.0)
    assert found is not None
    assert found.seconds <= own.seconds
    assert found.piped.needed_bytes <= max(own.needed_bytes, LIMIT)


def test_nothing_is_taken_that_does_not_fit():
    assert searched(question(GPT3), limit=2.0**30, time_limit=3.0) is None


@pytest.fixture
def priced(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, str, int, object]]:
    """What is priced: meshes, ranks, schedule, stages a mesh, what is kept.

    Two meshes of four ranks are best.
    """
    seen: list[tuple[int, int, str, int, object]] = []

    def price(asked, pipeline, parts, remat):
        ranks = asked.rules.mesh.get("tensor", 1)
        seen.append((pipeline.meshes, ranks, pipeline.schedule, pipeline.chunks, remat))
        assert asked.machine.chips * pipeline.meshes == 64
        assert asked.batch % asked.microbatches == 0
        far = abs(pipeline.meshes - 2) + abs(ranks - 4)
        zero = pipeline.schedule != "zb-h1"
        return Piped(1.0 + far + 0.1 * zero + 0.01 * (remat == "full"), 1.0, 0.0, remat)

    monkeypatch.setattr(our_pipeline, "parts_of", lambda *given: None)
    monkeypatch.setattr(our_pipeline, "piped_of", price)
    return seen


def test_the_search_goes_to_where_it_is_faster(priced):
    found = searched(question(GPT3), limit=1.0, time_limit=60.0)
    assert found is not None
    assert found.mesh == "pipeline=2,replica=8,tensor=4"
    assert found.choices() == "zb-h1"
    assert found.seconds == pytest.approx(1.0)
    assert len(set(priced)) == len(priced)
    assert {schedule for _, _, schedule, *_ in priced} >= {"1f1b", "zb-v", "interleaved-zb"}


def test_stages_have_a_layer_each(priced):
    searched(
        question(replace(GPT3, model="mpt-125m", pp=4, tp=1, vpp=1)), limit=1.0, time_limit=9.0
    )
    assert max(meshes for meshes, *_ in priced) <= 12


def test_a_row_says_which_pipeline_is_ours(monkeypatch: pytest.MonkeyPatch):
    module = sys.modules["autoshard.study.measured.answer"]
    monkeypatch.setattr(module, "our_plan", lambda *given, **options: "no plan")
    found = answer(GPT3, ours=2.0, compiles=1.0)
    assert found.ours_seconds is not None
    assert found.own_seconds is not None
    assert found.ours_mesh.startswith("pipeline=")
    assert found.status.endswith("not compiled: our own plan is a pipeline")
