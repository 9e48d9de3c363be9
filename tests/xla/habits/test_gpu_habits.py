"""Habits of XLA:GPU: all of them as data, and what the compiler says of a sample."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoshard.compiler.probes import run_probe
from autoshard.compiler.target import why_missing
from autoshard.xla.habits import HABITS as EVERY
from autoshard.xla.habits.records import Habit

HABITS = [habit for habit in EVERY if habit.compiler == "xla:gpu"]

SAMPLE = {
    "gpu.products-start-from-products",
    "gpu.softmax-in-one-kernel",
    "gpu.gathers-along-first-dimension",
    "gpu.gathers-combined",
}


def test_names_are_unique() -> None:
    names = [habit.name for habit in HABITS]
    assert len(set(names)) == len(names)
    assert all(name.startswith("gpu.") for name in names)
    assert set(names) >= SAMPLE


@pytest.mark.parametrize("habit", HABITS, ids=lambda habit: habit.name)
def test_a_habit_says_where_it_comes_from(habit: Habit) -> None:
    assert habit.compiler == "xla:gpu"
    assert habit.claim.endswith(".")
    assert habit.source
    assert bool(habit.seen) == (habit.probe is not None)


@pytest.mark.skipif(bool(why_missing("gpu")), reason=why_missing("gpu") or "installed")
@pytest.mark.parametrize(
    "habit",
    [
        pytest.param(habit, marks=() if habit.name in SAMPLE else pytest.mark.long)
        for habit in HABITS
        if habit.probe is not None
    ],
    ids=lambda habit: habit.name,
)
def test_the_compiler_has_the_habit(habit: Habit, tmp_path: Path) -> None:
    outcome = run_probe(habit, cache=tmp_path)
    assert outcome.status == "holds", outcome.detail
