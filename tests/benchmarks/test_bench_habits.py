"""`autoshard bench habits`: habits held to the installed compilers."""

from __future__ import annotations

import csv

import pytest

from autoshard.cli.bench import load_benchmark
from autoshard.cli.main import main
from autoshard.compiler.target import why_missing
from autoshard.study.worth import TOGETHER, Effect
from autoshard.xla.habits.records import Habit, Reason
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


def test_what_habits_buy_is_a_page_with_the_dearest_first():
    """What no plan asks about is told apart from what buys nothing."""
    found = [
        Effect("gpu.b", "mlp", 2, asked=True, changed=2, step=0.001, peak=-0.02),
        Effect("gpu.c", "mlp", 2),
        Effect("gpu.a", "mlp", 2, asked=True, changed=1, step=0.02, peak=0.04),
        Effect("gpu.a", "gnn", 2, asked=True, changed=2, step=0.3, peak=0.0),
        Effect("gpu.d", "gnn", 2, asked=True, moved=1, step=0.1),
        Effect(TOGETHER, "gnn", 2, asked=True, changed=2, moved=1, step=0.4),
    ]
    bound = Reason("bound", "gpu.a ends there.")
    habits = [Habit(f"gpu.{name}", "xla:gpu", "", "") for name in "abd"]
    habits.append(Habit("gpu.c", "xla:gpu", "", "", kept_for=bound))
    page = load_benchmark("habits").page(habits, found)
    assert "Plans: 2 of mlp, 2 of gnn." in page
    rows = [line for line in page.splitlines() if line.startswith(("| gpu.", "| all "))]
    assert rows == [
        "| gpu.a | 4 | 3 | +16.00 % | +2.00 % | +0.00 % | 30.00 % | gnn | yes |",
        "| gpu.d | 2 | 0 | +10.00 % | +0.00 % | +0.00 % | 10.00 % | gnn | collectives |",
        "| gpu.b | 2 | 2 | +0.10 % | -2.00 % | +0.00 % | 0.10 % | mlp | no |",
        "| gpu.c | 2 | 0 | +0.00 % | +0.00 % | +0.00 % | 0.00 % |  | not exercised |",
        f"| {TOGETHER} | 2 | 2 | +40.00 % | +0.00 % | +0.00 % | 40.00 % | gnn | collectives |",
        "| gpu.c | bound | gpu.a ends there. |",
    ]
