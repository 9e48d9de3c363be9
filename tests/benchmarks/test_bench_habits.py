"""`autoshard bench habits`: habits held to the installed compilers."""

from __future__ import annotations

import csv

import pytest

from autoshard.cli.main import main
from autoshard.compiler.target import why_missing
from tests.cli.helpers import refused


@pytest.mark.skipif(bool(why_missing("gpu")), reason=why_missing("gpu") or "installed")
def test_a_habit_is_asked_and_kept_as_a_row(tmp_path, capsys):
    path = tmp_path / "habits.csv"
    words = ["bench", "habits", "--compile", "gpu", "--only", "gpu.softmax-in-one-kernel"]
    assert main([*words, "--csv", str(path)]) == 0
    assert capsys.readouterr().out.endswith("\n1 holds\n")
    (row,) = csv.DictReader(path.read_text().splitlines())
    assert row["habit"] == "gpu.softmax-in-one-kernel"
    assert row["status"] == "holds"
    assert row["version"].startswith("jax-cuda1")
    assert row["claim"].endswith(".")


def test_what_a_habit_buys_needs_names_and_plans(tmp_path, capsys):
    words = "bench habits --without"
    assert "there is no habit 'gpu.nothing'" in refused(capsys, f"{words} gpu.nothing")
    assert "--without needs --kept FOLDER" in refused(capsys, f"{words} gpu.gathers-hidden")
    text = refused(capsys, f"{words} gpu.gathers-hidden --kept {tmp_path}")
    assert "has no compiled plans" in text
