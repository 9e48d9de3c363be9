"""The optimiser: as good as brute force, never worse than a named schedule, and honest."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoshard.solve.problem import Status
from autoshard.solve.schedule.faults import ScheduleError
from autoshard.solve.schedule.instance import Instance
from autoshard.solve.schedule.instance_json import instance_from_json, instance_to_json
from autoshard.solve.schedule.named import named_orders
from autoshard.solve.schedule.optimise import solve
from autoshard.solve.schedule.optimise import solve as solve_module
from autoshard.solve.schedule.optimise.bounds import lower_bound
from autoshard.solve.schedule.optimise.flat import flatten
from autoshard.solve.schedule.optimise.search import Search
from autoshard.solve.schedule.optimise.solve import InfeasibleLimitError, smallest_limit
from autoshard.solve.schedule.task import order_to_json
from autoshard.solve.schedule.timeline import simulate
from tests.solve.schedule.optimise.brute_force import best_value
from tests.solve.schedule.peer import peer_simulator
from tests.solve.schedule.random_instances import instances

objectives = st.sampled_from(["makespan", "span"])


def searched(instance: Instance, objective: str, rounds: int = 2) -> Search:
    """A search without CP-SAT, which would need a process each time."""
    flat = flatten(instance, objective)
    search = Search([flat], lower_bound(flat), 0.0, 1e12, 0.0, 0, None)
    search.begin(named_orders(instance).values())
    search.anneal(rounds)
    return search


@st.composite
def tiny(draw: st.DrawFn) -> Instance:
    """Instances that brute force can do: one stage a mesh and two microbatches, or the like."""
    instance = draw(instances(most_meshes=3, most_stages=3, most_microbatches=2))
    if instance.stages > instance.meshes or len(set(instance.placement)) < instance.stages:
        places = range(instance.stages)
        transfer = draw(st.integers(0, 4))
        instance = replace(
            instance,
            meshes=instance.stages,
            placement=tuple(places),
            time_scale=(1,) * instance.stages,
            transfer=tuple(tuple(transfer * (a != b) for b in places) for a in places),
            memory_limit=None,
        )
    return instance


@settings(max_examples=40)
@given(tiny(), objectives)
def test_brute_force_lies_between_bound_and_value(instance, objective):
    if instance.is_chain or instance.memory_limit is None:
        search = searched(instance, objective)
        best = best_value(instance, objective)
        assert search.flat.exact
        assert best is not None
        assert search.flat.time(search.bound) <= best
        assert search.flat.time(search.value) == best


@settings(max_examples=60)
@given(instances(), objectives)
def test_random_instances_give_valid_orders(instance, objective):
    search = searched(instance, objective, rounds=1)
    if search.word is None:  # only where stages branch may the smallest limit be less
        assert not instance.is_chain
        return
    order = search.flat.order(search.word)
    timeline = simulate(instance, order)
    assert timeline.value(objective) == search.flat.time(search.value)
    assert search.bound <= search.value
    for named in named_orders(instance).values():
        try:
            assert simulate(instance, named).value(objective) >= timeline.value(objective)
        except ScheduleError:
            continue
    theirs = peer_simulator().simulate(instance_to_json(instance), order_to_json(order))
    assert theirs["errors"] == []
    key = {"makespan": "makespan", "span": "span_max"}[objective]
    assert theirs[key] == timeline.value(objective)


@settings(max_examples=60)
@given(instances(longest=5), objectives)
def test_bounds_are_at_least_those_of_work(instance, objective):
    flat = flatten(instance, objective)
    work = max(
        sum(instance.time(k, s) for s in instance.on(d) for k in "FBW")
        for d in range(instance.meshes)
    )
    assert flat.time(lower_bound(flat)) >= work * instance.microbatches


HARD = instance_from_json(
    {"p": 3, "m": 4, "S": 6, "F": [5, 3, 3, 3, 3, 4], "B": [4, 3, 4, 3, 4, 4],
     "W": [2, 2, 3, 2, 3, 2], "comm": 1, "placement": [0, 1, 2, 2, 1, 0], "mem_F": 2, "mem_B": -1,
     "mem_W": -1, "mem_limit": 12}
)  # fmt: skip


@pytest.mark.parametrize("threads", [1, 2])
def test_small_problems_are_proven(threads):
    told = []
    outcome = solve(HARD, time_limit=120, threads=threads, progress=told.append)
    assert outcome.status is Status.OPTIMAL
    assert outcome.limit_hit is None
    assert outcome.gap == 0
    assert outcome.value == outcome.bound == 90
    assert outcome.order is not None
    assert simulate(HARD, outcome.order) == outcome.timeline
    assert all(news.bound <= 90 and (news.value or 90) >= 90 for news in told)
    assert str(outcome).startswith("optimal: makespan 90, bound 90, gap 0 %, ")


# Optima that CP-SAT proved without an order among the W of a mesh.
@pytest.mark.parametrize(
    ("placement", "limit", "objective", "best"),
    [
        ((0, 1, 2, 2, 1, 0), 8, "makespan", 108),
        ((0, 1, 2, 0, 1, 2), 12, "span", 92),
        ((0, 0, 1, 1, 2, 2), 10, "makespan", 111),
    ],
)
def test_alike_weight_gradients_may_run_in_the_order_of_their_gradients(
    placement, limit, objective, best
):
    instance = replace(HARD.with_limit(limit), placement=placement)
    if placement[3] == 0:
        times = {"forward": (4, 3, 3) * 2, "backward": (4, 4, 4, 3, 4, 4), "weight": (2, 3, 2) * 2}
        instance = replace(instance, **times)
    elif placement[3] == 1:
        instance = replace(instance, weight=(2, 2, 3, 3, 2, 2))
    outcome = solve(instance, objective=objective, time_limit=120, threads=1)
    assert outcome.status is Status.OPTIMAL
    assert outcome.value == best


def test_one_thread_is_deterministic():
    orders = {
        solve(HARD, objective="span", time_limit=120, threads=1, seed=3).order for _ in range(2)
    }
    assert len(orders) == 1


def test_an_unknown_objective_is_refused():
    with pytest.raises(ScheduleError, match="none of"):
        solve(HARD, objective="speed")


def test_a_limit_that_no_schedule_keeps():
    assert smallest_limit(HARD) == (4, 4, 4)
    with pytest.raises(InfeasibleLimitError) as caught:
        solve(HARD.with_limit((4, 3.5, 2)))
    assert caught.value.smallest == (4, 4, 4)
    assert str(caught.value) == (
        "the memory limit cannot be used:\n"
        "  mesh 1 has a limit of 3.5, and one microbatch takes 4 there; "
        "the smallest limit that works is 4\n"
        "  mesh 2 has a limit of 2, and one microbatch takes 4 there; "
        "the smallest limit that works is 4"
    )
    tight = solve(HARD.with_limit(4), time_limit=30, gap=0.5, threads=1)
    assert tight.timeline is not None
    assert tight.timeline.peak_memory == (4, 4, 4)


def test_an_interrupt_leaves_the_best(monkeypatch):
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setitem(solve_module.__globals__, "prove", interrupt)
    outcome = solve(HARD, time_limit=60, threads=1)
    assert outcome.limit_hit == "interrupted"
    assert outcome.status is Status.FEASIBLE
    assert outcome.order is not None
    assert outcome.value is not None
    assert outcome.bound <= outcome.value


def test_a_gap_is_enough():
    outcome = solve(HARD, gap=0.9, time_limit=60)
    assert outcome.status is Status.FEASIBLE
    assert outcome.limit_hit == "gap"
    assert 0 < outcome.gap <= 0.9


def test_what_the_caller_knows_is_used():
    best = solve(HARD, time_limit=120, threads=1)
    assert best.order is not None
    again = solve(HARD, time_limit=60, gap=0.5, warm_starts=[best.order])
    assert again.value == best.value


def test_a_fused_backward_that_is_quicker_is_chosen_stage_by_stage():
    instance = instance_from_json(
        {"p": 2, "m": 3, "F": [8, 4], "B": 4, "W": 4, "BW": [5, 8], "mem_F": 0, "mem_W": 0}
    )
    outcome = solve(instance, time_limit=5, threads=1)
    assert outcome.order is not None
    kinds = [{task.kind for task in tasks} for tasks in outcome.order]
    assert kinds[0] == {"F", "BW"}
    apart = solve(replace(instance, fused=None), time_limit=60, threads=1)
    assert outcome.value is not None
    assert apart.value is not None
    assert outcome.value < apart.value


def test_times_in_seconds_are_as_exact_as_they_are_written():
    instance = instance_from_json({"p": 2, "m": 4, "F": 0.1, "B": 0.2, "W": 0.15, "comm": 0.01})
    outcome = solve(instance, time_limit=60)
    assert outcome.status is Status.OPTIMAL
    assert outcome.value == pytest.approx(float(outcome.bound))


def test_times_with_too_many_digits_keep_an_honest_bound():
    third = 1 / 3
    instance = instance_from_json(
        {"p": 2, "m": 4, "F": third, "B": third * 1.1, "W": 2.0**-30 / 7, "comm": 1e-9}
    )
    outcome = solve(instance, time_limit=120, gap=1e-6, threads=1)
    assert not flatten(instance, "makespan").exact
    assert outcome.status is Status.FEASIBLE
    assert outcome.value is not None
    assert outcome.bound <= outcome.value
    assert outcome.limit_hit == "gap"
    assert outcome.gap <= 1e-6
