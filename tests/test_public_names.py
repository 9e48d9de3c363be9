"""What is had from `autoshard` itself, and what had another name once."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import autoshard


@pytest.mark.parametrize("name", autoshard.__all__)
def test_every_public_name_is_there(name):
    assert getattr(autoshard, name) is not None


def test_a_name_that_is_none_is_said():
    with pytest.raises(AttributeError, match="module 'autoshard' has no attribute 'nonsense'"):
        _ = autoshard.nonsense  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        ("autoshard.rules", "autoshard.program.rules", "UserRule"),
        ("autoshard.cluster", "autoshard.machine.cluster", "load_cluster"),
        ("autoshard.placement.search", "autoshard.search.meshes.search", "search_meshes"),
        ("autoshard.placement.lower", "autoshard.search.meshes.lower", "lower_plan"),
        ("autoshard.calibrate.measure", "autoshard.study.calibrate.measure", "measured_rows"),
        ("autoshard.schedule", "autoshard.solve.schedule", "simulate"),
        ("autoshard.lower.shardy_mpmd", "autoshard.lower.mpmd.shardy", "export_mpmd"),
        ("autoshard.requirements", "autoshard.problem.requirements.records", "Requirement"),
    ],
)
def test_an_old_path_leads_to_the_same_and_warns(old, new, name):
    """In a process of its own, where nothing was imported by its old name yet."""
    code = f"import {old} as old, {new} as new; assert old.{name} is new.{name}"
    done = subprocess.run(
        [sys.executable, "-W", "always::DeprecationWarning", "-c", code],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"DeprecationWarning: {old} is now {new}" in done.stderr


def test_no_other_module_is_found():
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("autoshard.sharder")
