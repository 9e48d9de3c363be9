"""Kept plans cost what they cost, and the sample is still the best that is found."""

from __future__ import annotations

from dataclasses import replace

import jax
import pytest

from autoshard.plan.consistency import InconsistentPlanError
from autoshard.plan.same_program import renumbered
from autoshard.program.fingerprint import is_of
from tests.corpus.cases import CASES, Case
from tests.corpus.kept import (
    FOLDER,
    SAME,
    Kept,
    changes,
    kept,
    message,
    path_of,
    priced,
    read,
    solve,
)
from tests.helpers import LONG
from tests.newer_jax import traced_otherwise

ALL = [pytest.param(case, id=case.name) for case in CASES]
SAMPLE = [
    pytest.param(case, id=case.name, marks=LONG if case.program.startswith(("gnn", "vit")) else ())
    for case in CASES
    if case.solved
]


def same_program(case: Case) -> Kept:
    """The kept plan, if the program is still the one for which it was found."""
    before = read(case)
    program, _ = case.build()
    if not is_of(before.fingerprint, program):
        if found := traced_otherwise(case.program, before.jax, jax.__version__):
            pytest.skip(f"from JAX {found.since} on, {found.what}")
        pytest.fail(message(case, "the traced program is another one", []))
    return before


@pytest.mark.parametrize("case", ALL)
def test_a_kept_plan_costs_what_it_cost(case: Case):
    before = same_program(case)
    try:
        program, _ = case.build()
        now = kept(case, priced(case, renumbered(before.decoded(), program)))
    except InconsistentPlanError as error:
        pytest.fail(message(case, "the plan is none any more", str(error).splitlines()[:5]))
    if lines := changes(before, now):
        pytest.fail(message(case, "the same plan has another price", lines))


@pytest.mark.parametrize("case", SAMPLE)
def test_the_search_finds_what_it_found(case: Case):
    before = same_program(case)
    now = kept(case, solve(case, time_limit=120.0))
    if lines := changes(before, now, SAME):
        pytest.fail(message(case, "the search finds another plan", lines))


def test_every_case_has_its_file_and_no_other_is_there():
    assert {file.name for file in FOLDER.glob("*.json")} == {path_of(case).name for case in CASES}
    assert len({case.name for case in CASES}) == len(CASES)


def test_a_change_is_told_and_how_to_accept_it():
    (case,) = (one for one in CASES if one.name == "mlp-tiny-on-toy-8-2x4")
    now = read(case)
    name, text = next(iter(now.layouts.items()))
    before = replace(
        now,
        step_seconds=now.step_seconds / 2,
        peak_bytes=now.peak_bytes + 1,
        layouts={**now.layouts, name: "f32[1]"},
        collectives={**now.collectives, "all_to_all over z": "1 times, 4 bytes"},
    )
    step = now.step_seconds
    assert message(case, "dearer", changes(before, now)).splitlines() == [
        "mlp-tiny-on-toy-8-2x4: dearer",
        f"  step_seconds: {step / 2!r} -> {step!r} (+100.000%)",
        f"  peak_bytes: {now.peak_bytes + 1} -> {now.peak_bytes} "
        f"({-1 / (now.peak_bytes + 1):+.3%})",
        f"  {name}: f32[1] -> {text}",
        "  all_to_all over z: 1 times, 4 bytes -> not there",
        "  if this is what the change is meant to do: run "
        "`python -m tests.corpus.make mlp-tiny-on-toy-8-2x4`, look at the diff, and commit it",
    ]
    assert changes(now, now) == []
    assert changes(now, replace(now, layouts={})) == []
    assert changes(now, replace(now, step_seconds=step * (1 + 1e-8)))
