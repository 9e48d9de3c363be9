"""Merges by rule, merges that pay, and what a merged program delays."""

from __future__ import annotations

import pytest

from autoshard.solve.schedule.faults import ScheduleError
from autoshard.solve.schedule.instance import Instance
from autoshard.solve.schedule.merging import (
    enqueued,
    forward_with_backward,
    merges_by,
    paying_merges,
)
from autoshard.solve.schedule.named import NAMED
from autoshard.solve.schedule.task import Task
from autoshard.solve.schedule.timeline import simulate


def instance(meshes: int = 2, microbatches: int = 3, **changed) -> Instance:
    fields = {
        "forward": (2,) * meshes,
        "backward": (2,) * meshes,
        "weight": (2,) * meshes,
        "placement": tuple(range(meshes)),
        "transfer": ((0,) * meshes,) * meshes,
        "time_scale": (1,) * meshes,
        "memory_forward": (2,) * meshes,
        "memory_backward": (-1,) * meshes,
        "memory_weight": (-1,) * meshes,
    }
    return Instance(meshes=meshes, microbatches=microbatches, **{**fields, **changed})


def pairs(kinds: str, stage: int, microbatches: range) -> tuple:
    first, second = kinds.split("+")
    return tuple((Task(first, stage, k), Task(second, stage, k)) for k in microbatches)  # pyright: ignore[reportArgumentType]


def test_the_rule_of_the_last_stage():
    order = NAMED["1f1b"](instance())
    assert merges_by(forward_with_backward(1), order) == pairs("F+BW", 1, range(3))
    assert merges_by(lambda left, right: False, order) == ()


def test_a_predicate_merges_chains():
    order = NAMED["zb-h1"](instance())
    rule = lambda left, right: left.mesh == right.mesh == 1 and left.microbatch == right.microbatch  # noqa: E731
    for merge in merges_by(rule, order):
        assert len(merge) > 1
        assert len({task.microbatch for task in merge}) == 1
        assert all(task.stage == 1 for task in merge)


def test_all_that_is_wrong_with_merges_is_named():
    order = ((Task("F", 0, 0), Task("F", 0, 1), Task("BW", 0, 0), Task("BW", 0, 1)),)
    merges = [
        (Task("F", 0, 0), Task("BW", 0, 0)),
        (Task("F", 0, 1), Task("F", 0, 0)),
        (Task("W", 0, 0), Task("F", 0, 1)),
    ]
    with pytest.raises(ScheduleError) as caught:
        merges_by(merges, order)
    assert str(caught.value) == (
        "these merges cannot be used:\n"
        "  between F0@0 and BW0@0 mesh 0 runs F1@0\n"
        "  F1@0 runs after F0@0 on mesh 0\n"
        "  W0@0 is not a task of the order\n"
        "  F0@0 is in 2 merges\n"
        "  F1@0 is in 2 merges"
    )


def test_a_merged_program_starts_and_ends_as_one():
    order = (
        (Task("F", 0, 0), Task("B", 0, 0), Task("W", 0, 0)),
        (Task("F", 1, 0), Task("B", 1, 0), Task("W", 1, 0)),
    )
    one = instance(microbatches=1)
    assert simulate(one, order).makespan == 10
    merges = [(Task("B", 1, 0), Task("W", 1, 0))]
    timeline = simulate(one, order, merges=merges)
    assert timeline.makespan == 12  # mesh 0 waits for W, too
    assert [run.start for run in timeline.runs[1]] == [2, 4, 6]
    with pytest.raises(ScheduleError, match="deadlock"):
        simulate(one, order, merges=[(Task("F", 0, 0), Task("B", 0, 0))])


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1", "zb-h2"])
def test_what_nobody_waits_for_is_merged_and_the_step_gets_no_longer(schedule):
    problem = instance(4, 8)
    order = NAMED[schedule](problem)
    merges = paying_merges(problem, order)
    before = simulate(problem, order).makespan
    assert simulate(problem, order, merges=merges).makespan == before
    backward = "BW" if schedule == "1f1b" else "B"
    last = [
        (left, right)
        for left, right in zip(order[3], order[3][1:], strict=False)
        if (left.kind, right.kind) == ("F", backward) and left.microbatch == right.microbatch
    ]
    assert last
    joined = {task: merge for merge in merges for task in merge}
    assert all(right in joined.get(left, ()) for left, right in last)


def test_a_delay_pays_where_dispatches_are_dear():
    order = (
        (Task("F", 0, 0), Task("B", 0, 0), Task("W", 0, 0)),
        (Task("F", 1, 0), Task("B", 1, 0), Task("W", 1, 0)),
    )
    one = instance(microbatches=1)
    last = (Task("F", 1, 0), Task("B", 1, 0))
    first = (Task("B", 0, 0), Task("W", 0, 0))
    assert paying_merges(one, order) == (first, last)
    assert paying_merges(one, order, dispatch=(1.5, 1.5)) == (
        first,
        last,
    )  # 9 for 6 dispatches, of 10
    dear = paying_merges(one, order, dispatch=(100, 100))
    assert dear == (first, (*last, Task("W", 1, 0)))
    assert simulate(one, order, merges=dear).makespan == 12
    assert paying_merges(one, order, dispatch=(5, 0)) == (first, last)  # 10 for mesh 0, of 10
    assert enqueued(order, (), (5, 1)) == 18
    assert enqueued(order, dear, (5, 1)) == 11
    assert enqueued(order, dear, ()) == 0
