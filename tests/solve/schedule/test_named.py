"""Named schedules: valid, as long as their papers say, and the same as comparators."""

from __future__ import annotations

import functools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.solve.schedule.comparators import Fragment, comparator, comparator_of
from autoshard.solve.schedule.faults import ScheduleError
from autoshard.solve.schedule.instance import Instance
from autoshard.solve.schedule.instance_json import instance_from_json
from autoshard.solve.schedule.keyed import (
    circular_key,
    gpipe_key,
    interleaved_key,
    one_f_one_b_key,
    zb_h1_key,
    zb_h2_key,
)
from autoshard.solve.schedule.named import NAMED, named_orders
from autoshard.solve.schedule.task import order_to_json
from autoshard.solve.schedule.timeline import simulate
from tests.solve.schedule.peer import peer_simulator
from tests.solve.schedule.random_instances import instances


def homogeneous(p: int, m: int, f: int, b: int, w: int, shape: str = "line") -> Instance:
    """Meshes with the same work; in "loop" and "vee" each has two stages of half the memory."""
    places = {
        "line": [*range(p)],
        "loop": [*range(p), *range(p)],
        "vee": [*range(p), *reversed(range(p))],
    }
    return instance_from_json(
        {"p": p, "m": m, "S": len(places[shape]), "F": f, "B": b, "W": w, "mem_F": 2, "mem_B": -1,
         "mem_W": -1, "placement": places[shape]}
    )  # fmt: skip


costs = st.integers(1, 9)


@given(st.integers(1, 6), st.integers(1, 12), costs, costs, costs)
def test_closed_forms_in_a_line(p, extra, f, b, w):
    m = p + extra - 1
    instance = homogeneous(p, m, f, b, w)
    gpipe = simulate(instance, NAMED["gpipe"](instance))
    assert gpipe.makespan == (m + p - 1) * (f + b + w)
    assert gpipe.peak_memory == (2 * m,) * p
    plain = simulate(instance, NAMED["1f1b"](instance))
    assert plain.makespan == (m + p - 1) * (f + b + w)
    assert plain.peak_memory == tuple(2 * (p - d) for d in range(p))


@given(st.integers(1, 6), st.integers(1, 9))
def test_closed_forms_of_zero_bubble(p, extra):
    m = 2 * p + extra
    instance = homogeneous(p, m, 5, 6, 4)
    first = simulate(instance, NAMED["zb-h1"](instance))
    assert first.makespan == 15 * m + (p - 1) * (5 + 6 - 4)
    assert max(first.peak_memory) == 2 * p
    second = simulate(instance, NAMED["zb-h2"](instance))
    assert second.span == 15 * m + (p - 1) * (5 + 6 - 2 * 4)
    assert max(second.peak_memory) == 2 * (2 * p - 1)


@given(st.integers(1, 6), st.integers(0, 9))
def test_zb_v_has_no_bubble_in_the_memory_of_1f1b(p, extra):
    instance = homogeneous(p, 2 * p + extra, 1, 1, 1, "vee")
    timeline = simulate(instance, NAMED["zb-v"](instance))
    assert timeline.span == 6 * instance.microbatches
    assert max(timeline.peak_memory) <= 2 * 2 * p


@pytest.mark.parametrize(("p", "extra"), [(2, 0), (3, 4), (4, 9), (6, 1), (9, 3)])
def test_blocks_that_repeat_keep_half_and_a_third_of_1f1b(p, extra):
    instance = homogeneous(p, 2 * p + extra, 1, 1, 1, "vee")
    for name, steps in (("v-half", 6), ("v-min", 4)):
        timeline = simulate(instance, NAMED[name](instance))
        # steps p / 6 stages of a mesh, and those that begin while W waits for its slot
        assert max(timeline.peak_memory) <= 2 * (math.ceil(steps * p / 6) + 3)
        assert timeline.makespan <= 6 * instance.microbatches + 6 * p


def test_order_and_memory_of_published_schedules():
    """AMD-AGI/Primus, docs/tech_blogs/primus_pipeline: Llama-2-7B in 8 stages, one machine.

    Tokens/s of a device, and GiB: 1F1B 10,057, 16.3; interleaved 10,974, 21.4; ZB 11,411, 16.6;
    ZB-V 11,347, 18.1; V-Half 10,894, 14.1; V-Min 8,897, 11.9. Microbatches are not published.
    """
    times, memory = {}, {}
    for name, turns, shape in (
        ("1f1b", 1, "line"), ("interleaved", 2, "loop"), ("zb-h1", 1, "line"),
        ("zb-v", 2, "vee"), ("v-half", 2, "vee"), ("v-min", 2, "vee"),
    ):  # fmt: skip
        # B of a layer with attention takes more than F, W less: it is products with weights alone
        instance = homogeneous(8, 32, 20 // turns, 26 // turns, 16 // turns, shape)
        timeline = simulate(instance, NAMED[name](instance))
        times[name], memory[name] = timeline.makespan, max(timeline.peak_memory) / turns
    fastest = sorted(times, key=times.__getitem__)
    assert set(fastest[:2]) == {"zb-h1", "zb-v"}
    assert fastest[2:] == ["interleaved", "v-half", "1f1b", "v-min"]
    least = sorted(memory, key=memory.__getitem__)
    assert least[:2] == ["v-min", "v-half"]
    assert least[-1] == "interleaved"


@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 4))
def test_interleaving_divides_the_bubble(p, groups, v):
    instance = instance_from_json({"p": p, "m": p * groups, "S": p * v, "F": 1, "B": 1, "W": 1})
    timeline = simulate(instance, NAMED["interleaved"](instance))
    assert timeline.makespan == 3 * v * p * groups + 3 * (p - 1)
    apart = simulate(instance, NAMED["interleaved-zb"](instance))
    assert apart.makespan <= timeline.makespan - (p - 1)


@pytest.mark.parametrize("shape", ["line", "loop", "vee"])
def test_the_independent_simulator_accepts_all(shape):
    instance = homogeneous(4, 8, 3, 4, 2, shape)
    written = {"p": 4, "m": 8, "S": instance.stages, "F": 3, "B": 4, "W": 2, "mem_F": 2,
               "mem_B": -1, "mem_W": -1, "placement": list(instance.placement)}  # fmt: skip
    made = named_orders(instance)
    expected = {
        "line": {"1f1b", "interleaved", "interleaved-zb", "zb-h1", "zb-h2"},
        "loop": {"interleaved", "interleaved-zb"},
        "vee": {"zb-v", "v-half", "v-min", "dualpipe-v"},
    }
    assert set(made) == {"gpipe", "circular"} | expected[shape]
    for order in made.values():
        theirs = peer_simulator().simulate(written, order_to_json(order))
        assert theirs["errors"] == []
        assert theirs["makespan"] == simulate(instance, order).makespan


@given(instances(most_microbatches=5))
def test_every_named_order_runs(instance):
    made = named_orders(instance)
    assert {"gpipe", "circular"} <= set(made)
    for order in made.values():
        simulate(instance, order, limited=False)


def test_zb_v_of_few_microbatches_keeps_its_order():
    many, few = homogeneous(4, 7, 1, 1, 1, "vee"), homogeneous(4, 3, 1, 1, 1, "vee")
    expected = tuple(
        tuple(task for task in tasks if task.microbatch < 3) for tasks in NAMED["zb-v"](many)
    )
    assert NAMED["zb-v"](few) == expected
    simulate(few, expected)


@pytest.mark.parametrize(
    ("name", "key", "shape"),
    [
        ("gpipe", gpipe_key, "vee"),
        ("circular", circular_key, "loop"),
        ("1f1b", one_f_one_b_key, "line"),
        ("interleaved", interleaved_key, "loop"),
        ("interleaved-zb", interleaved_key, "loop"),
        ("zb-h1", zb_h1_key, "line"),
        ("zb-h2", zb_h2_key, "line"),
    ],
)
def test_comparators_tell_the_order(name, key, shape):
    instance = homogeneous(3, 6, 1, 1, 1, shape)
    order = NAMED[name](instance)
    for before in (comparator(instance, key(instance)), comparator_of(order)):
        for mesh, tasks in enumerate(order):
            fragments = [Fragment.of(task, mesh) for task in tasks]
            for at, left in enumerate(fragments):
                assert left.task == tasks[at]
                assert all(before(left, right) for right in fragments[at + 1 :])
                assert not any(before(left, right) for right in fragments[: at + 1])
        other = Fragment.of(order[1][0], 1)
        assert not before(Fragment.of(order[0][0], 0), other)


def test_1f1b_is_the_comparator_of_the_rfc():
    instance = homogeneous(3, 6, 1, 1, 1)

    def rfc_key(fragment: Fragment) -> tuple[int, int]:
        return fragment.microbatch + (3 - fragment.mesh) * fragment.transpose, -fragment.transpose

    for mesh, tasks in enumerate(NAMED["1f1b"](instance)):
        fragments = [Fragment.of(task, mesh) for task in tasks]
        assert fragments == sorted(fragments, key=rfc_key)


def test_what_a_schedule_is_not_made_for():
    vee, line = homogeneous(3, 4, 1, 1, 1, "vee"), homogeneous(3, 4, 1, 1, 1)
    with pytest.raises(ScheduleError, match=r"stage s must be on mesh s, not \[0, 1, 2, 2, 1, 0\]"):
        NAMED["1f1b"](vee)
    with pytest.raises(ScheduleError, match=r"must be \[0, 1, 2, 2, 1, 0\], not"):
        NAMED["zb-v"](line)
    with pytest.raises(ScheduleError, match="4 microbatches are less than twice the 3 meshes"):
        NAMED["dualpipe-v"](vee)
    with pytest.raises(ScheduleError, match="4 microbatches are not a multiple of the 3 meshes"):
        NAMED["interleaved"](line)
    branched = instance_from_json(
        {"p": 3, "m": 3, "F": 1, "B": 1, "W": 1, "edges": [[0, 1], [0, 2]]}
    )
    for name in set(NAMED) - {"gpipe", "circular", "dualpipe-v"}:
        with pytest.raises(ScheduleError, match="the edges must be those of a chain"):
            NAMED[name](branched)


def test_sorting_by_a_comparator_gives_the_schedule():
    instance = homogeneous(4, 8, 1, 1, 1)
    order = NAMED["zb-h2"](instance)
    before = comparator(instance, zb_h2_key(instance))

    def compared(left: Fragment, right: Fragment) -> int:
        return before(right, left) - before(left, right)

    by_comparator = functools.cmp_to_key(compared)
    mixed = [Fragment.of(task, 1) for task in sorted(order[1])]
    assert [f.task for f in sorted(mixed, key=by_comparator)] == list(order[1])
