"""Whether a plan fits: one answer, whoever is asked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from autoshard.cli.replan import faults_of
from autoshard.cli.verify import _price
from autoshard.machine.load import load
from autoshard.machine.machine import Machine
from autoshard.plan.evaluate import tidy
from autoshard.plan.fits import fits, limit_for, needed_bytes, refusal, within
from autoshard.plan.plan import Estimate, Plan
from autoshard.plan.text.page import format_plan
from autoshard.search.all_shapes import Explored, InfeasibleError
from autoshard.search.finish import finish
from autoshard.search.options import SearchOptions
from autoshard.search.replan import reprice
from autoshard.search.search import prepare
from autoshard.show.verdict import verdict
from autoshard.units import parse_size
from tests.helpers import Case, case, hiding, random_plan
from tests.random_programs import random_program

LIMITS = 10
"""Of each plan."""


def of(peak: int, scheduled: int | None) -> Estimate:
    return Estimate(1.0, 1.0, 1.0, 1.0, 0.0, peak, scheduled_bytes=scheduled)


def test_a_plan_needs_what_it_takes_in_the_larger_order():
    assert needed_bytes(of(7, None)) == 7
    assert needed_bytes(of(7, 5)) == 7
    assert needed_bytes(of(7, 9)) == 9
    assert fits(of(7, 9), 9)
    assert not fits(of(7, 9), 8)
    assert not fits(of(9, 7), 8)


def test_sums_of_floats_may_be_rounded():
    assert within(2**40, 2**40 * (1 - 5e-10))
    assert not within(2**40, 2**40 * (1 - 5e-9))


@pytest.mark.parametrize("size", [1, 1023, 2**24 - 1, 2**24, 2**24 + 1, 37_421_056, 3 * 2**33 + 7])
def test_the_limit_that_is_named_is_enough_and_hardly_more(size):
    limit = parse_size(limit_for(size))
    assert size <= limit < size + (2**20 if size >= 2**24 else 2**10)


def test_what_does_not_fit_says_in_which_order():
    assert refusal(of(4 * 2**20, 36 * 2**20), 8 * 2**20) == (
        "it needs 36.0 MiB of 8.00 MiB per device, in the compiler's order (4.00 MiB in the "
        "solver's): --memory-limit 36MiB is enough"
    )
    assert refusal(of(2**30, None), 2**20) == (
        "it needs 1.00 GiB of 1.00 MiB per device: --memory-limit 1024MiB is enough"
    )


def answers(given: Case, machine: Machine, plan: Plan, limit: float) -> dict[str, bool]:
    """What everyone says who is asked whether a plan fits a limit."""
    limited = replace(plan, memory_limit=limit)
    sizes = dict(zip(plan.mesh.names, plan.mesh.sizes, strict=True))
    asked = SearchOptions(mesh=sizes, memory_limit=limit, baselines=False, constraints=False)
    searcher, (shape,) = prepare(given.program, machine, asked)
    found = Explored(shape, plan.decisions, None, ((str(shape), 0.0, None),))
    refused = None
    try:
        with pytest.MonkeyPatch.context() as patch:  # the question is of this plan, not of a scheme
            patch.setattr("autoshard.search.finish.baseline_rows", lambda *_, **__: [])
            finish(searcher, found, asked)
    except InfeasibleError as error:
        refused = error
    if refused is not None:
        assert refused.plan is not None
        assert limit_for(needed_bytes(refused.plan.estimate)) in str(refused)
    anew = reprice(
        limited,
        given.program,
        machine,
        memory_limit=limit,
        requirements=[f"limit memory {limit!r}"],
        constraints=False,
    )
    (requirement,) = anew.requirements
    told = verdict(limited, None, (), None).answers
    (page,) = (bool(one.good) for one in told if one.question == "Does it fit?")
    return {
        "search": refused is None,
        "verify": bool(_judged(limited, given, machine)),
        "check": not faults_of(anew),
        "requirement": requirement["kept"],
        "page": page,
        "report": "too much" not in format_plan(limited),
    }


def _judged(plan: Plan, given: Case, machine: Machine) -> bool | None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("autoshard.cli.verify.find_machine", lambda name: machine)
        return _price(plan, given.program, None)[0].agrees


def drawn() -> Iterator[tuple[Case, Machine]]:
    for number, machine in enumerate((hiding(4), load("h100-4"), load("v5e-4"), load("a100-4"))):
        step, args = random_program(number)[:2]
        yield case(step, *args, mesh={"x": 2, "y": 2}, machine=machine), machine


@pytest.mark.parametrize("plans", [6, pytest.param(25, marks=pytest.mark.long)])
def test_everyone_says_the_same_of_plans_and_limits(plans: int) -> None:
    """Of four programs and `plans` plans of each."""
    dice = np.random.default_rng(0)
    seen = {True: 0, False: 0}
    for given, machine in drawn():
        for seed in range(plans):
            plan = random_plan(given, seed)
            plan = replace(plan, decisions=tidy(given.built.prices, plan.decisions))
            size = needed_bytes(plan.estimate)
            exact = [size, size - 1, plan.estimate.peak_bytes, plan.estimate.expected_bytes]
            around = (size * np.exp(dice.normal(0.0, 0.5, LIMITS - len(exact)))).round()
            for limit in (*map(float, exact), *around.tolist()):
                wanted = fits(plan.estimate, limit)
                said = answers(given, machine, plan, max(limit, 1.0))
                assert set(said.values()) == {wanted}, (machine.name, seed, limit, said)
                seen[wanted] += 1
    assert sum(seen.values()) == 4 * plans * LIMITS
    assert min(seen.values()) > 0.3 * 4 * plans * LIMITS
