"""What is told to CP-SAT is true of every schedule, and what it makes of it."""

from __future__ import annotations

import itertools
import time

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from autoshard.solve.backends import apart
from autoshard.solve.backends.task import Verdict
from autoshard.solve.schedule.instance import Instance
from autoshard.solve.schedule.instance_json import instance_from_json
from autoshard.solve.schedule.named import NAMED, named_orders
from autoshard.solve.schedule.optimise.bounds import lower_bound
from autoshard.solve.schedule.optimise.cp_sat_order import TaskOrder
from autoshard.solve.schedule.optimise.cp_sat_work import share_time
from autoshard.solve.schedule.optimise.flat import Flat, flatten
from autoshard.solve.schedule.optimise.proof import ask_for_better
from autoshard.solve.schedule.timeline import Timeline, simulate
from tests.solve.schedule.random_instances import instances


class Told:
    """In place of a model: with the numbers of a schedule, what is stated is true or false."""

    def __init__(self) -> None:
        self.stated: list[bool] = []

    def Add(self, statement: bool) -> None:  # noqa: N802, as in CP-SAT
        self.stated.append(bool(statement))


def question_of(flat: Flat, most: int, **options: bool):
    return ask_for_better(
        flat,
        least=lower_bound(flat),
        most=most,
        deadline=time.monotonic() + 120,
        threads=1,
        seed=0,
        **options,
    )


def told_of(flat: Flat, timeline: Timeline, late: int = 0) -> list[bool]:
    """What is stated of the work of all meshes, of a schedule that begins so late."""
    instance = flat.instance
    value = int(timeline.value(flat.objective) * flat.ticks)
    question = question_of(flat, value)
    assert question is not None
    number = {letter: at for at, letter in enumerate(flat.letters)}
    starts = np.zeros(question.heads.shape, int)
    for (kind, stage, microbatch), start, _ in itertools.chain(*timeline.runs):
        starts[number[kind, stage], microbatch] = int(start * flat.ticks) + late
    rows, told = starts.tolist(), Told()
    for mesh in range(instance.meshes):
        mine = [at for at, (_, stage) in enumerate(flat.letters) if stage in instance.on(mesh)]
        order = TaskOrder(told, question, rows)
        for x, y in itertools.permutations(mine, 2):
            for k, n in np.ndindex(instance.microbatches, instance.microbatches):
                order.known[(y, n), (x, k)] = int(starts[y, n] + order.times[y] <= starts[x, k])
        share_time(told, question, mine, order, rows)
    return told.stated


@given(instances(limited=False), st.sampled_from(["makespan", "span"]))
def test_the_work_before_and_after_a_task_is_what_schedules_have(instance: Instance, objective):
    flat = flatten(instance, objective)
    for order in named_orders(instance).values():
        assert all(told_of(flat, simulate(instance, flat.order(flat.word(order)))))


def test_a_schedule_that_waits_longer_than_it_may_is_excluded():
    instance = instance_from_json({"p": 2, "m": 4, "F": 2, "B": 2, "W": 2})
    flat = flatten(instance, "span")
    timeline = simulate(instance, NAMED["zb-h2"](instance))
    assert timeline.span == 24  # nobody waits
    assert told_of(flat, timeline) == [True] * (2 * 2 * 3 * 4)  # twice for each task of both meshes
    late = told_of(flat, timeline, late=1)
    assert late == [True, False] * (2 * 3 * 4)


# Meshes wait for 0.31 % of the time in the best schedule: 28.3B on two stages a mesh, of the Zero
# Bubble paper's times (https://arxiv.org/abs/2401.10241).
TIGHT = {
    "p": 4, "m": 8, "S": 8, "F": [5210] * 8, "B": [5104] * 8, "W": [3858] * 8, "comm": 408,
    "placement": [0, 1, 2, 3] * 2,
}  # fmt: skip


def test_how_little_meshes_must_wait_is_soon_proven():
    flat = flatten(instance_from_json(TIGHT), "span")
    assert flat.time(lower_bound(flat)) == 226_752
    question = question_of(flat, int(227_461 * flat.ticks), quick=True)
    assert question is not None
    answer = apart.ask("schedule.optimise.cp_sat", question, lambda bound, values: None)
    assert answer.verdict is Verdict.INFEASIBLE
