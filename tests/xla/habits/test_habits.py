"""The catalogue of habits: every record says what is claimed, of whom and where from."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from autoshard.machine.load import load
from autoshard.xla.habits import HABITS
from autoshard.xla.habits.reasons import REASONS
from autoshard.xla.habits.records import REASONS_TO_KEEP, Habit

EACH = pytest.mark.parametrize("habit", HABITS, ids=lambda habit: habit.name)


def test_names_are_unique() -> None:
    assert not [name for name, times in Counter(h.name for h in HABITS).items() if times > 1]


def test_claims_are_unique() -> None:
    claims = Counter((habit.compiler, habit.claim) for habit in HABITS)
    assert not [claim for claim, times in claims.items() if times > 1]


def test_most_habits_can_be_asked_for() -> None:
    asked = Counter(habit.compiler for habit in HABITS if habit.probe is not None)
    assert asked.total() >= 60
    assert min(asked["xla:gpu"], asked["xla:tpu"]) >= 30


@EACH
def test_a_name_tells_the_compiler(habit: Habit) -> None:
    prefix = habit.compiler.removeprefix("xla:")
    assert prefix in ("gpu", "tpu")
    assert re.fullmatch(rf"{prefix}\.[a-z0-9]+(-[a-z0-9]+)*", habit.name)


@EACH
def test_a_claim_is_one_sentence(habit: Habit) -> None:
    assert re.fullmatch(r"[A-Z][^\n]*[^.\s]\.", habit.claim)
    assert not re.search(r"[.!?] [A-Z]", habit.claim)


def test_reasons_are_of_habits_and_of_known_kinds() -> None:
    kept = {habit.name: habit.kept_for for habit in HABITS if habit.kept_for is not None}
    assert kept == dict(REASONS)
    for name, reason in kept.items():
        assert reason.kind in REASONS_TO_KEEP
        assert reason.why.endswith(".")
        assert not reason.why.startswith(name)


def test_every_habit_buys_something_or_says_why_it_stays() -> None:
    page = Path(__file__).resolve().parents[3] / "benchmarks" / "HABITS.md"
    rows = [line.strip("| ").split(" | ") for line in page.read_text().splitlines()]
    worth = {row[0]: row[-1] for row in rows if len(row) > 4}
    bare = [
        habit.name
        for habit in HABITS
        if worth.get(habit.name) not in ("yes", "collectives", "memory") and not habit.kept_for
    ]
    assert bare == []
    assert {name for name in worth if "." in name} <= {habit.name for habit in HABITS}


@EACH
def test_a_habit_has_a_source(habit: Habit) -> None:
    assert re.match(r"observed\b|https://\S|xla/\S+\.\w+", habit.source)


@EACH
def test_what_was_seen_was_asked_for(habit: Habit) -> None:
    assert bool(habit.seen) == (habit.probe is not None)
    assert all(re.fullmatch(r"[a-z0-9-]+ \d+(\.\d+)+", version) for version in habit.seen)


@EACH
def test_a_probe_fits_its_machine(habit: Habit) -> None:
    if habit.probe is None:
        return
    machine, chips = load(habit.probe.machine), 1
    for size in habit.probe.mesh.values():
        chips *= size
    assert machine.chips == chips
    family = "tpu" if "TPU" in machine.chip.name else "gpu"
    assert habit.compiler == f"xla:{family}"
