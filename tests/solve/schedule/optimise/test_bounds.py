"""Bounds of schedules: exact where they can be, and never above what brute force finds."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from autoshard.solve.schedule.instance_json import instance_from_json
from autoshard.solve.schedule.named import NAMED
from autoshard.solve.schedule.optimise.bounds import (
    first_starts,
    lower_bound,
    offsets,
    one_machine,
    windows,
)
from autoshard.solve.schedule.optimise.flat import flatten
from autoshard.solve.schedule.timeline import simulate

tasks = st.lists(st.tuples(*[st.integers(0, 9)] * 3), min_size=1, max_size=5)


@given(tasks)
def test_one_machine_lies_between_subsets_and_orders(chosen):
    heads, times, tails = (np.array(column) for column in zip(*chosen, strict=True))
    bound = one_machine(heads, times, tails)
    for size in range(1, len(chosen) + 1):
        for some in itertools.combinations(chosen, size):
            assert bound >= (
                min(h for h, _, _ in some) + sum(t for _, t, _ in some) + min(q for *_, q in some)
            )
    best = min(value_in_order(order) for order in itertools.permutations(chosen))
    assert bound <= best


def value_in_order(order: tuple[tuple[int, int, int], ...]) -> int:
    now = value = 0
    for head, time, tail in order:
        now = max(now, head) + time
        value = max(value, now + tail)
    return value


def test_zero_bubble_is_proven_optimal_where_all_take_the_same():
    written = {"p": 4, "m": 8, "F": 1, "B": 1, "W": 1, "mem_F": 2, "mem_B": -1, "mem_W": -1}
    line = instance_from_json(written).with_limit(8)
    assert lower_bound(flatten(line, "makespan")) == 27
    assert simulate(line, NAMED["zb-h1"](line)).makespan == 27
    vee = instance_from_json(written | {"S": 8, "placement": [0, 1, 2, 3, 3, 2, 1, 0]})
    assert lower_bound(flatten(vee, "span")) == simulate(vee, NAMED["zb-v"](vee)).span == 48


def test_memory_for_one_microbatch_takes_one_after_the_other():
    instance = instance_from_json(
        {"p": 2, "m": 3, "F": [2, 3], "B": [4, 5], "W": [1, 2], "comm": 10, "mem_F": 3,
         "mem_B": -1, "mem_W": -2, "mem_limit": 3}
    )  # fmt: skip
    one_way = 2 + 10 + 3 + 5 + 10 + 4 + 1
    assert lower_bound(flatten(instance, "makespan")) == 3 * one_way


def test_memory_before_the_first_gradient():
    # Two forwards fit, then the mesh waits from 2 to 12 for the way there and back.
    instance = instance_from_json(
        {"p": 2, "m": 8, "F": 1, "B": 1, "W": 0, "comm": 4, "mem_limit": 2}
    )
    assert lower_bound(flatten(instance, "makespan")) >= 10 + 16 - 2


def test_windows_hold_every_schedule():
    instance = instance_from_json({"p": 3, "m": 4, "F": 2, "B": 3, "W": 1, "comm": 1})
    flat = flatten(instance, "span")
    offset = offsets(flat)
    assert offset is not None
    assert offset.tolist() == [0, 3, 6]
    known = windows(flat, offset)
    number = {letter: at for at, letter in enumerate(flat.letters)}
    for name in ("zb-h1", "zb-h2"):
        timeline = simulate(instance, NAMED[name](instance))
        for runs in timeline.runs:
            for (kind, stage, microbatch), start, end in runs:
                place = number[kind, stage], microbatch
                assert known.heads[place] <= start
                assert end + known.tails[place] <= timeline.span


def test_what_starts_a_mesh():
    def starts(placement, edges=None, meshes=3):
        written = {"p": meshes, "m": 2, "S": len(placement), "F": 1, "B": 1, "W": 1}
        return first_starts(instance_from_json(written | {"placement": placement, "edges": edges}))

    assert starts([0, 1, 2]) == [0, 1, 2]
    assert starts([0, 1, 2, 2, 1, 0]) == [0, 1, 2]
    # What stage 3 waits for may run before it on mesh 0, or later.
    assert starts([0, 1, 0, 2]) is None
    # Either of two stages may be the first of mesh 0.
    assert starts([0, 0, 1], [[0, 2], [1, 2]], 2) is None
    assert starts([0, 0], None, 2) == [0, -1]
