"""Compilers by release: habits that later ones have lost."""

from __future__ import annotations

from importlib import metadata, resources

import pytest

from autoshard.machine.compiler import DEFAULTS, LOST, installed_release, lost, of_release
from autoshard.machine.load import load, parse
from autoshard.xla import HABITS


def test_what_was_lost_is_a_habit_of_the_compiler_that_lost_it():
    known = {habit.name: habit for habit in HABITS}
    assert set(LOST) <= set(known)
    for name in LOST:
        assert known[name].probe is not None
        assert known[name].seen  # with the releases before


@pytest.mark.parametrize(
    ("release", "has"),
    [("0.10.2", True), ("0.10", True), ("0.11.0", False), ("0.11.2", False), ("0.12.0.1", False)],
)
def test_a_habit_is_lost_from_a_release_on(release, has):
    habit = "gpu.slices-written-for-products"
    assert of_release(DEFAULTS["xla:gpu"], release).has(habit) == has
    assert lost(habit, release) != has
    assert of_release(DEFAULTS["xla:gpu"], release).has("gpu.slices-read-in-place")


def test_nothing_of_another_compiler_is_lost():
    later = of_release(DEFAULTS["xla:tpu"], "0.12.0")
    assert later.without
    assert all(name.startswith("tpu.") for name in later.without)


def test_machines_are_of_the_installed_release():
    assert installed_release() == metadata.version("jaxlib")
    assert load("h100-8").chip.compiler.release == installed_release()


def test_a_machine_file_may_name_the_release():
    preset = resources.files("autoshard") / "machine" / "presets" / "h100.toml"
    text = preset.read_text(encoding="utf-8")
    named = 'name = "xla:gpu"\n'
    assert named in text
    older, newer = (
        parse(text.replace(named, f'{named}release = "{release}"\n'), where="h100", chips=8)
        for release in ("0.10.2", "0.12.0")
    )
    older, newer = older.chip.compiler, newer.chip.compiler
    assert older.has("gpu.loop-edges-as-numbered")
    assert not newer.has("gpu.loop-edges-as-numbered")
    assert (older.release, newer.release) == ("0.10.2", "0.12.0")
