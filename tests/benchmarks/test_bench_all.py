"""`autoshard bench all`: figures from the rows of every benchmark, kept, compared and shown."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from autoshard.cli.bench import load_benchmark
from autoshard.cli.main import main
from autoshard.show.figures import figures_markdown, figures_page
from autoshard.study.figures import Figure, figures_csv, read_figures, regressions
from tests.show.reading import read

EVERYTHING = load_benchmark("everything")


def test_figures_of_search():
    rows = [
        {"model": "8b", "layers": "32", "form": "scan", "mesh": "8x8", "total": "5.5",
         "gap": "0.0005", "AutoParallel": "134.8 s"},
        {"model": "8b", "layers": "32", "form": "scan", "mesh": "4x4x4", "error": "killed",
         "AutoParallel": "no answer"},
    ]  # fmt: skip
    seconds, gap, none, _ = EVERYTHING.search_figures(rows)
    assert (seconds.value, seconds.peer_value, seconds.met) == (5.5, 134.8, True)
    assert (gap.value, gap.met) == (pytest.approx(0.0005), True)
    assert (none.value, none.peer, none.peer_value, none.note) == (
        None, "AutoParallel", None, "killed"
    )  # fmt: skip


def test_figures_of_contest_plans_and_schedules():
    contest = {"instance": "B", "contest": "10", "ratio": "1.0", "gap": "0.0", "path": "b"}
    ratio, gap = EVERYTHING.iopddl_figures([contest])
    assert (ratio.value, ratio.better, ratio.met, gap.value) == (1.0, "more", True, 0.0)
    plan = {"program": "p", "machine": "m", "fits": "yes", "note": ""}
    (ours,) = EVERYTHING.plans_figures(
        [
            {**plan, "plan": "FSDP", "step": "2.0"},
            {**plan, "plan": "TP", "step": "1.0", "fits": "no"},
            {**plan, "plan": "of another", "step": "0.1", "machine": "n"},
            {**plan, "plan": "autoshard", "step": "2.5"},
        ]
    )
    assert (ours.value, ours.peer, ours.peer_value, ours.met) == (2.5, "FSDP", 2.0, False)
    order = {"instance": "i", "limit": "1f1b", "objective": "makespan", "status": "optimal"}
    schedule, _ = EVERYTHING.schedules_figures(
        [{**order, "ours": "9", "gap": "0", "peer": "9", "peer_name": "zb"}]
    )
    assert (schedule.value, schedule.peer, schedule.met) == (9.0, "zb", True)


def test_figures_of_fidelity():
    rows = [
        {"program": "p", "machine": "m", "mesh": "8", "plan": str(k), "step": str(k),
         "compiled": str(1.1 * k), "peak_gib": "1", "compiled_gib": "1.05", "wire_gb": "1",
         "final_gb": "1", "unplanned": "0"}
        for k in range(1, 5)
    ]  # fmt: skip
    found = {one.figure: one for one in EVERYTHING.fidelity_figures(rows)}
    assert found["spearman"].value == pytest.approx(1.0)
    assert found["step_error"].value == pytest.approx(1 - 1 / 1.1)
    assert found["step_error"].met
    (none,) = EVERYTHING.fidelity_figures([{**rows[0], "compiled": "", "error": "refused"}])
    assert (none.value, none.note) == (None, "refused")


SECONDS = Figure("search", "8b", "seconds", 10.0, "s", "less", "AutoParallel", 134.8, 134.8)
RATIO = Figure("iopddl", "B", "best entry / ours", 1.0, "", "more", "the best", 1.0, 1.0)


def test_what_got_worse_is_told():
    old = [SECONDS, RATIO]
    assert regressions(old, [replace(SECONDS, value=12.0), replace(RATIO, value=1.2)]) == []
    assert regressions(old, [replace(SECONDS, value=13.0), replace(RATIO, value=0.9)]) == [
        "search / 8b / seconds: 10 -> 13 (less is better)",
        "iopddl / B / best entry / ours: 1 -> 0.9 (more is better)",
    ]
    assert regressions(old, [replace(SECONDS, value=None, note="killed")]) == [
        "search / 8b / seconds: 10 before, nothing now: killed"
    ]
    assert regressions(old, [SECONDS, replace(RATIO, row="G")]) == [
        "iopddl / B / best entry / ours: 1.0 before, not measured now"
    ]


def test_the_files(tmp_path: Path):
    figures = [SECONDS, replace(RATIO, value=0.9, note="a|b"), replace(RATIO, row="G", value=None)]
    place = tmp_path / "old.csv"
    place.write_text(figures_csv(figures))
    assert read_figures(str(place)) == figures
    found = read(figures_page(figures, {"quick": True}, ["it got worse"]))
    text = found.all_text()
    for said in ("1 of 3 met", "in a quick run", "it got worse", "jaxlib", "processor"):
        assert said in text
    assert found.tables[1][1][:8] == [
        "B", "best entry / ours", "0.9", "more", "the best", "1", "≥ 1", "missed"
    ]  # fmt: skip
    written = figures_markdown(figures, {"quick": True})
    assert "| 8b | seconds | 10 s | less | 134.8 (AutoParallel) | ≤ 134.8 |  |" in written
    assert "This is a quick run" in written
    assert "This is a quick run" not in figures_markdown(figures, {"quick": False})


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd):
    monkeypatch.chdir(tmp_path)
    words = ["bench", "all", "--quick", "--parts", "iopddl,schedules", "--data", "nowhere"]
    assert main([*words, "--csv", "a.csv"]) == 2
    out = capfd.readouterr().out
    assert "iopddl / all / run: - (there is no iopddl/*.json.gz in 'nowhere'; name the" in out
    with Path("a.csv").open() as file:
        assert [row["part"] for row in csv.DictReader(file)] == ["iopddl", "schedules"]
    Path("b.csv").write_text("a,b\n1,2\n")
    assert main([*words, "--compare", "b.csv"]) == 2
    assert (
        "'b.csv' holds a table, which `autoshard bench --csv` writes, and no table of figures"
        in (capfd.readouterr().err)
    )


def test_a_part_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd):
    from tests.cli.test_bench import contest

    monkeypatch.chdir(tmp_path)
    (tmp_path / "iopddl").mkdir()
    contest("iopddl/B.json", "asplos-2025-iopddl-B")
    words = ["bench", "all", "--quick", "--parts", "iopddl", "--data", str(tmp_path)]
    assert main([*words, "--csv", "a.csv", "-o", "a.html"]) == 0
    assert "best entry / ours: 2, the contest's best 1, target met" in capfd.readouterr().out
    assert main([*words, "--compare", "a.csv"]) == 0
    assert "nothing got worse" in capfd.readouterr().out
    before = replace(read_figures("a.csv")[0], value=3.0)
    Path("better.csv").write_text(figures_csv([before]))
    assert main([*words, "--compare", "better.csv"]) == 5
    assert ": 3 -> 2 (more is better)" in capfd.readouterr().out
