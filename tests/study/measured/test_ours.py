"""Our own plans of runs: what is asked for them, and which of the answers is ours."""

from __future__ import annotations

import itertools
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from autoshard.machine.load import load
from autoshard.plan.records import MeshShape
from autoshard.search.all_shapes import NoPlanError
from autoshard.study.measured import Run, ours, question
from autoshard.study.measured.ours import FACTORS, our_plan
from autoshard.study.measured.question import Question

RUN = Run(
    id="one", model="mpt-125m", chip="v5p", chips=8, framework="MaxText", batch=64,
    microbatch=4, accumulate=2, fsdp=8, sequence=2048, precision="bf16", remat="full",
)  # fmt: skip
LIMIT = 2.0**36


def plan(seconds: float, mesh: str = "fsdp=8", **options: Any) -> Any:
    """As much of a plan as is looked at."""
    name, size = mesh.split("=")
    estimate = SimpleNamespace(expected_seconds=seconds)
    shape = MeshShape((name,), (int(size),))
    return SimpleNamespace(estimate=estimate, mesh=shape, options=options)


def asks(monkeypatch: pytest.MonkeyPatch, answers: list[Any]) -> list[dict[str, Any]]:
    """What searches are asked for; they answer so, one after another."""
    seen: list[dict[str, Any]] = []
    given = iter(answers)

    def search(program: Any, machine: Any, **more: Any) -> Any:
        seen.append(more)
        answer = next(given)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(ours, "search", search)
    return seen


def searched(own: Any, machine: str = "v5p-8", asked: Question | None = None) -> Any:
    asked = asked or question(RUN)
    return our_plan(
        asked, load(machine), "full", own, memory_limit=LIMIT, time_limit=100.0
    )  # fmt: skip


def test_one_choice_after_another_is_freed(monkeypatch: pytest.MonkeyPatch):
    seen = asks(monkeypatch, [plan(1.0), plan(0.9), plan(0.8, "x=8"), plan(0.7), plan(0.95)])
    found = searched(plan(1.1))
    kept = ["respect", *["offload"] * 4]
    assert [one["remat"] for one in seen] == kept
    own, free = {"fsdp": 8}, {"x": (8,)}
    # Other numbers of microbatches are tried on the best mesh.
    assert [one["mesh"] for one in seen] == [own, own, None, free, free]
    assert all(one["memory_limit"] == LIMIT and not one["constraints"] for one in seen)
    assert (found.seconds, found.microbatches) == (0.7, 1)
    assert found.choices(question(RUN)) == "1 microbatch"


def test_numbers_of_microbatches_go_on_while_that_is_better(monkeypatch: pytest.MonkeyPatch):
    seconds = [1.0, 0.9, 0.9, 1.0, 0.8, 0.7, 0.75]
    seen = asks(monkeypatch, [plan(one) for one in seconds])
    found = searched(plan(1.1))
    assert len(seen) == 7  # 1, 4, 8 and 16 of the run's 2
    assert (found.seconds, found.microbatches) == (0.7, 8)


def test_the_parts_share_the_time(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ours.time, "monotonic", lambda: 0.0)
    seen = asks(monkeypatch, [plan(1.0)] * 5)
    searched(plan(1.1))
    until = [10.0, 45.0, 75.0, 50.0, 100.0]
    assert [one["time_limit"] for one in seen] == pytest.approx(until)


def test_a_part_has_some_time_when_others_took_it(monkeypatch: pytest.MonkeyPatch):
    clock = itertools.chain([0.0], itertools.repeat(99.0))
    monkeypatch.setattr(ours.time, "monotonic", lambda: next(clock))
    seen = asks(monkeypatch, [plan(1.0)] * 5)
    searched(plan(1.1))
    assert [one["time_limit"] for one in seen] == [10.0] * 5


def test_the_run_is_ours_where_nothing_is_better(monkeypatch: pytest.MonkeyPatch):
    asks(monkeypatch, [plan(1.2), NoPlanError("late"), plan(1.3), plan(1.1), plan(1.4)])
    own = plan(1.1)
    found = searched(own)
    assert found.plan is own
    assert found.choices(question(RUN)) == ""


def test_in_place_of_a_pipeline_one_mesh_has_the_fewest_microbatches(
    monkeypatch: pytest.MonkeyPatch,
):
    asked = replace(question(RUN), microbatches=16)
    hosted = plan(0.9, "x=8", offloaded=("a", "b"))
    seen = asks(monkeypatch, [NoPlanError("large"), hosted, plan(1.0), plan(1.0)])
    found = searched(None, asked=asked)
    assert [one["mesh"] for one in seen] == [None, None, {"x": (8,)}, {"x": (8,)}]
    assert found.microbatches == 4
    assert found.choices(asked) == "4 microbatches, 2 stacks on the host"


def test_what_stands_against_a_plan_is_said(monkeypatch: pytest.MonkeyPatch):
    asks(monkeypatch, [NoPlanError("no plan\n  was found")])
    assert searched(None) == "no plan was found"


def test_nothing_waits_on_a_host_that_is_not_known(monkeypatch: pytest.MonkeyPatch):
    seen = asks(monkeypatch, [plan(1.0)] * 5)
    machine = replace(load("v5p-8"), host=None)
    our_plan(question(RUN), machine, "full", None, memory_limit=LIMIT, time_limit=1.0)
    assert {one["remat"] for one in seen} == {"search"}


def test_batches_are_cut_into_whole_sequences(monkeypatch: pytest.MonkeyPatch):
    asked = question(replace(RUN, accumulate=None))
    assert (asked.microbatches, FACTORS) == (1, (0.5, 2.0))
    seen = asks(monkeypatch, [plan(1.0)] * 4)
    searched(plan(1.1), asked=asked)
    assert len(seen) == 4
