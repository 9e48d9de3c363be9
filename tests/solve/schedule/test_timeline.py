"""The simulator: by hand, and beside the independent one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.solve.schedule.faults import ScheduleError
from autoshard.solve.schedule.instance import Instance
from autoshard.solve.schedule.instance_json import instance_from_json, instance_to_json
from autoshard.solve.schedule.task import Kind, Order, Task, order_from_json, order_to_json
from autoshard.solve.schedule.timeline import memory_over_time, simulate
from tests.solve.schedule.peer import peer_simulator
from tests.solve.schedule.random_instances import instances

TWO = instance_from_json(
    {"p": 2, "m": 1, "F": [2, 3], "B": [4, 5], "W": [1, 2], "comm": 10, "mem_F": 3, "mem_B": -1,
     "mem_W": -2}
)  # fmt: skip
SPLIT = order_from_json(
    {"0": [["F", 0, 0], ["B", 0, 0], ["W", 0, 0]], "1": [["F", 1, 0], ["B", 1, 0], ["W", 1, 0]]}, 2
)
FUSED = order_from_json({"0": [["F", 0, 0], ["BW", 0, 0]], "1": [["F", 1, 0], ["BW", 1, 0]]}, 2)


def test_by_hand():
    timeline = simulate(TWO, SPLIT)
    assert [run[1:] for run in timeline.runs[0]] == [(0, 2), (30, 34), (34, 35)]
    assert [run[1:] for run in timeline.runs[1]] == [(12, 15), (15, 20), (20, 22)]
    assert (timeline.makespan, timeline.spans, timeline.span) == (35, (35, 10), 35)
    assert timeline.busy == (7, 10)
    assert timeline.bubble == 1 - 17 / 70
    assert memory_over_time(TWO, timeline.runs[0]) == ((0, 3), (34, 2), (35, 0))
    assert simulate(TWO, FUSED).makespan == 12 + 3 + 7 + 10 + 5


@st.composite
def ordered(draw: st.DrawFn) -> tuple[Instance, Order]:
    """An instance and a random order, which may well be a deadlock or take too much memory."""
    instance = draw(instances())
    order = []
    for mesh in range(instance.meshes):
        tasks = []
        for stage in instance.on(mesh):
            for microbatch in range(instance.microbatches):
                kinds: tuple[Kind, ...] = draw(st.sampled_from([("F", "B", "W"), ("F", "BW")]))
                tasks += [Task(kind, stage, microbatch) for kind in kinds]
        by_depth = sorted(
            tasks, key=lambda t: (t.kind != "F", t.stage if t.kind == "F" else -t.stage)
        )
        order.append(tuple(by_depth if draw(st.booleans()) else draw(st.permutations(tasks))))
    return instance, tuple(order)


@given(ordered())
def test_the_independent_simulator_agrees(case):
    instance, order = case
    written = instance_to_json(instance)
    theirs = peer_simulator().simulate(written, order_to_json(order), timeline=True)
    if not theirs["ok"]:
        with pytest.raises(ScheduleError):
            simulate(instance, order)
        return
    ours = simulate(instance, order)
    assert ours.makespan == theirs["makespan"]
    assert ours.span == theirs["span_max"]
    assert list(ours.peak_memory) == theirs["peak_mem"]
    assert list(ours.busy) == theirs["busy"]
    ends = {(d, *run.task): (run.start, run.end) for d in range(instance.meshes)
            for run in ours.runs[d]}  # fmt: skip
    assert ends == {tuple(row[:4]): tuple(row[4:]) for row in theirs["timeline"]}


@given(instances())
def test_orders_go_through_json(instance):
    tasks = tuple(Task("F", stage, 0) for stage in range(instance.stages))
    order = (tasks, *[()] * (instance.meshes - 1))
    assert order_from_json(order_to_json(order), instance.meshes) == order


def test_damaged_orders_are_refused():
    with pytest.raises(ScheduleError) as caught:
        order_from_json({"2": [], "0": [["X", 0, 0], ["F", 0, 1.5], "F"], "1": 3}, 2)
    assert str(caught.value) == (
        "this order cannot be used:\n"
        "  '2' is none of the meshes 0 to 1\n"
        "  mesh 0: ['X', 0, 0] is not a task; write [kind, stage, microbatch], kind F, B, W or BW\n"
        "  mesh 0: ['F', 0, 1.5] has a stage or microbatch that is not whole\n"
        "  mesh 0: 'F' is not a task; write [kind, stage, microbatch], kind F, B, W or BW\n"
        "  mesh 1: 3 is not a list of tasks"
    )


def test_orders_that_do_not_fit_are_refused():
    with pytest.raises(ScheduleError) as caught:
        simulate(TWO, ((SPLIT[0][0], Task("F", 1, 0), Task("F", 2, 0)), SPLIT[1][:2]))
    assert str(caught.value) == (
        "this order cannot be used:\n"
        "  F0@1 is on mesh 0, but its stage is on mesh 1\n"
        "  F0@2 on mesh 0 is not a task of the instance\n"
        "  stage 0, microbatch 0 has the tasks F; it needs F, and B and W or BW, each once\n"
        "  stage 1, microbatch 0 has the tasks B, F, F; it needs F, and B and W or BW, each once"
    )


def test_deadlocks_and_too_much_memory_are_named():
    backwards = tuple(reversed(SPLIT[0]))
    with pytest.raises(ScheduleError) as caught:
        simulate(TWO, (backwards, SPLIT[1]))
    assert caught.value.faults == (
        "mesh 0 waits forever before W0@0",
        "mesh 1 waits forever before F0@1",
    )
    with pytest.raises(
        ScheduleError, match="mesh 1 takes 3 of memory at once, more than its limit"
    ):
        simulate(TWO.with_limit((3, 2)), SPLIT)
    assert simulate(TWO.with_limit(2), SPLIT, limited=False).peak_memory == (3, 3)
