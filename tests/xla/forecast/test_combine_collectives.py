"""Collectives that run as one: which do, and that graphs can still run after it."""

from __future__ import annotations

import hypothesis
import hypothesis.strategies as st

from autoshard.cost.combined import GPU_BYTES
from autoshard.xla.forecast.combine_collectives import Flight, combine
from autoshard.xla.latency_hiding import Role, Task, in_post_order


def flight(size: float = 1.0, kin: object = "gather", seconds: float = 1.0) -> Flight:
    begin, end = Task("begin", Role.BEGIN, latency=seconds), Task("end", Role.END)
    end.reads(begin)
    return Flight(begin, end, size, seconds, seconds / 2, seconds / 2, kin)


def sizes(groups: list[list[Flight]]) -> list[int]:
    return sorted(len(group) for group in groups)


def test_those_of_one_kind_run_as_one_as_long_as_both_take() -> None:
    first, second, other = flight(), flight(), flight(kin="reduction")
    maker, reader = Task("maker", Role.KERNEL), Task("reader", Role.KERNEL)
    second.begin.reads(maker)
    reader.reads(second.end)
    groups = combine([first, second, other], [reader, first.end, other.end])
    assert sizes(groups) == [1, 2]
    left = next(group[0] for group in groups if len(group) == 2)
    assert left.begin.latency == 1.5  # of both, but what either takes at least is paid once
    assert left.begin.before == [maker]
    assert reader.before == [left.end]


def test_one_that_takes_no_time_alone_takes_that_of_the_other() -> None:
    (group,) = combine([free := flight(seconds=0.0), other := flight()], [free.end, other.end])
    assert group == [free, other]
    assert free.begin.latency == 1.0


def test_one_that_reads_another_runs_after_it() -> None:
    first, second = flight(), flight()
    second.begin.reads(first.end)
    assert sizes(combine([first, second], [second.end])) == [1, 1]


def test_large_ones_run_alone_and_small_ones_up_to_the_size() -> None:
    small = [flight(GPU_BYTES / 2) for _ in range(3)]
    large, strange = flight(GPU_BYTES + 1), flight(kin=None)
    flights = [*small, large, strange]
    assert sizes(combine(flights, [one.end for one in flights])) == [1, 1, 1, 2]


@st.composite
def flights(draw: st.DrawFn) -> list[Flight]:
    made: list[Flight] = []
    for _ in range(draw(st.integers(1, 8))):
        one = flight(draw(st.sampled_from([1.0, GPU_BYTES / 2])), draw(st.sampled_from("ab")))
        for other in draw(st.lists(st.sampled_from(made), max_size=2)) if made else []:
            one.begin.reads(other.end)
        made.append(one)
    return made


@hypothesis.given(flights())
def test_any_graph_can_still_run(made: list[Flight]) -> None:
    groups = combine(made, [one.end for one in made])
    assert sorted(id(one) for group in groups for one in group) == sorted(map(id, made))
    order = in_post_order([group[0].end for group in groups])
    place = {task: number for number, task in enumerate(order)}
    for task in order:
        assert all(place[one] < place[task] for one in task.before)
    for group in groups:
        assert len({one.kin for one in group}) == 1
        assert len(group) == 1 or sum(one.bytes for one in group) <= GPU_BYTES
