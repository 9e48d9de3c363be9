"""Habits of XLA:TPU: what the compiler says of a sample."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoshard.compiler.probes import run_probe
from autoshard.compiler.target import why_missing
from autoshard.xla.habits import HABITS as EVERY
from autoshard.xla.habits.records import Habit

HABITS = [habit for habit in EVERY if habit.compiler == "xla:tpu"]

SAMPLE = {
    "tpu.elementwise-into-products",
    "tpu.tiles-waste-least",
    "tpu.lookups-gather-narrow-tables",
    "tpu.no-scatter-over-whole-square",
}


def test_the_sample_is_there() -> None:
    assert {habit.name for habit in HABITS} >= SAMPLE


@pytest.mark.skipif(bool(why_missing("tpu")), reason=why_missing("tpu") or "installed")
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
