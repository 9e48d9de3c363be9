"""Searches at the share of collectives that a compiler's schedule waits for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoshard.cost.corrections import Corrections
from autoshard.machine.load import load
from autoshard.plan.plan import Plan
from autoshard.program.trace import Program, trace
from autoshard.search.assemble import priced_anew, prices_of
from autoshard.search.options import SearchOptions
from autoshard.search.scheduled.near import WORTH
from autoshard.search.scheduled.overlap import FAR, at_its_share, bound_at, waited_share
from autoshard.search.search import candidates, search
from autoshard.solve.limit_hit import LimitHit
from tests.helpers import hiding
from tests.random_programs import random_program
from tests.search.test_flags import array, planned, train

LIMIT = 3.2 * 2**30


@pytest.fixture(scope="module")
def cheapest() -> tuple[Program, Plan]:
    return planned("h100-8", memory_limit=LIMIT, by_schedule=False)


@pytest.fixture(scope="module")
def scheduled() -> Plan:
    return planned("h100-8", memory_limit=LIMIT)[1]


def seconds(plan: Plan) -> float:
    return plan.estimate.expected_seconds


def test_a_plan_that_waits_for_more_than_is_priced_gives_way(cheapest, scheduled) -> None:
    program, before = cheapest
    assert seconds(before) > (1 + FAR) * before.estimate.step_seconds
    assert seconds(scheduled) < (1 - WORTH) * seconds(before)
    share = waited_share(before)
    assert scheduled.corrections == Corrections(hidden=share)
    assert any("collectives waited for" in note for note in scheduled.notes)
    again = Plan.from_json(scheduled.to_json())
    anew = priced_anew(again, prices_of(again, program, load("h100-8")))
    assert anew.estimate.step_seconds == pytest.approx(scheduled.proof.objective)
    assert scheduled.proof.bound <= scheduled.proof.objective


def test_flags_that_would_make_the_other_plan_faster_are_named(cheapest, scheduled) -> None:
    program, before = cheapest
    machine = load("h100-8@recipe")
    other = priced_anew(before, prices_of(before, program, machine))
    assert seconds(other) < 0.97 * seconds(scheduled)
    (note,) = (one for one in scheduled.notes if "flags" in one)
    assert note.startswith("with the compiler's recipe flags another plan takes")


def test_at_its_share_the_prices_of_a_plan_are_its_schedule(cheapest) -> None:
    program, plan = cheapest
    told = replace(plan, corrections=Corrections(hidden=waited_share(plan)))
    anew = priced_anew(told, prices_of(told, program, load("h100-8")))
    assert anew.estimate.step_seconds == pytest.approx(seconds(plan), rel=1e-6)
    assert waited_share(anew) is None


def test_what_compiled_plans_have_taught_stays(cheapest) -> None:
    _, plan = cheapest
    asked = SearchOptions(corrections=Corrections(hidden=0.4))
    assert at_its_share(plan, load("h100-8"), asked) is None
    assert at_its_share(plan, load("v5p-8"), SearchOptions()) is None
    assert at_its_share(plan, load("h100-8"), SearchOptions(by_schedule=False)) is None
    assert at_its_share(plan, load("h100-8"), SearchOptions(time_limit=0.0)) is None
    stopped = replace(plan, proof=replace(plan.proof, limit_hit=LimitHit.INTERRUPTED))
    assert at_its_share(stopped, load("h100-8"), SearchOptions()) is None
    found = at_its_share(plan, load("h100-8"), SearchOptions(known_bound=1.0))
    assert found is not None
    assert found.corrections.hidden == waited_share(plan)
    assert found.known_bound == 0.0


@pytest.mark.parametrize(
    ("machine", "layers", "width", "batch", "room", "better"),
    [
        ("h100-16", 16, 4096, 8192, 1.0, True),
        ("h100-16@recipe", 16, 4096, 8192, 1.0, True),
        ("h100-16@recipe", 8, 2048, 8192, 2.0, False),
        ("h100-8", 4, 1024, 4096, 100.0, False),
    ],
)
def test_no_plan_is_scheduled_slower_than_the_cheapest(
    machine: str, layers: int, width: int, batch: int, room: float, better: bool
) -> None:
    program = trace(train, array(layers, width, width), array(batch, width))
    stack, kept = 2 * layers * width * width, 2 * layers * batch * width
    asked = SearchOptions(
        time_limit=20.0,
        baselines=False,
        memory_limit=room * stack + kept,
    )
    before, now = (
        candidates(program, load(machine), replace(asked, by_schedule=by))[0]
        for by in (False, True)
    )
    assert seconds(now) <= seconds(before) * (1 + 1e-6)
    if now.proof.objective > before.proof.objective * (1 + 1e-6):
        assert seconds(now) < (1 - WORTH) * seconds(before)
    assert (seconds(now) < (1 - WORTH) * seconds(before)) == better


@pytest.mark.parametrize("share", [0.1, 0.3, 0.6, 1.0])
def test_bounds_at_another_share_hold(cheapest, share: float) -> None:
    program, plan = cheapest
    now = replace(plan, corrections=Corrections(hidden=share))
    told = priced_anew(now, prices_of(now, program, load("h100-8"))).estimate.step_seconds
    bound = bound_at(share, plan.proof.bound, plan.estimate.compute_seconds, load("h100-8"))
    assert plan.estimate.compute_seconds <= bound <= told * (1 + 1e-9)
    assert bound_at(None, 2.0, 1.0, load("h100-8")) == 2.0


def test_choices_of_what_is_saved_are_searched_at_the_share_of_their_best_plan() -> None:
    program, plan = planned("h100-8", memory_limit=LIMIT, by_schedule=False, remat="search")
    _, now = planned("h100-8", memory_limit=LIMIT, remat="search")
    assert seconds(now) <= seconds(plan) * (1 + 1e-6)
    assert now.proof.bound <= now.proof.objective
    assert program.name == now.program


def test_a_given_mesh_is_kept() -> None:
    step, args, options = random_program(3)[:3]
    plan = search(trace(step, *args, **options), hiding(4), mesh={"x": 2, "y": 2})
    assert plan.mesh.sizes == (2, 2)
