"""`autoshard bench iopddl`: a row for every file whatever becomes of it, and the mean ratio."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from autoshard.cli.bench import load_benchmark
from autoshard.cli.main import main
from tests.cli.helpers import refused

IOPDDL = load_benchmark("iopddl")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def contest(path: str, name: str, **changes: Any) -> None:
    """Write a small file whose best solution costs 266,421.5, half of the best known of B."""
    problem = {
        "name": name,
        "nodes": {
            "intervals": [[0, 2], [1, 2]],
            "costs": [[300_000, 266_419.5], [1, 2]],
            "usages": [[1, 2], [1, 1]],
        },
        "edges": {"nodes": [[0, 1]], "costs": [[0, 0, 10, 0]]},
        "usage_limit": 3,
    }
    Path(path).write_text(json.dumps({"problem": problem | changes}))


def test_every_file_has_its_row(capfd):
    contest("b.json", "asplos-2025-iopddl-B")
    contest("other.json", "")
    contest("tight.json", "tight", usage_limit=1)
    Path("cut.json").write_text(Path("b.json").read_text()[:99])
    words = ["bench", "iopddl", "b.json", "cut.json", "other.json", "tight.json", "--csv", "r.csv"]
    assert main([*words, "--time-limit", "60"]) == 2
    out, err = capfd.readouterr()
    lines = out.rstrip().split("\n")
    assert lines[0].split() == [heading for _, heading, _, _ in IOPDDL.COLUMNS]
    cells = lines[1].replace(" %", "%").split()
    assert cells[:2] + cells[4:8] == ["B", "2", "optimal", "266,421", "266,421", "0.000%"]
    assert cells[-3:] == ["532,843", "2.00000", "2.00000"]
    assert lines[2].split()[:2] == ["cut", "error"]
    assert lines[3] == (
        "    'cut.json' is truncated: its JSON breaks off after 99 bytes; copy or download it again"
    )
    assert lines[4].split()[::4][:2] == ["other", "optimal"]
    assert lines[5].split()[::4][:2] == ["tight", "infeasible"]
    assert " ".join(lines[6:]) == (
        "4 instances, 2 with a plan, 2 proven optimal; mean ratio 2.00000 to the contest's best, "
        "2.00000 to the best known (of 1; without a plan a ratio is 0)"
    )
    assert err == "autoshard: wrote r.csv\n"
    with Path("r.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["status"] for row in rows] == ["optimal", "error", "optimal", "infeasible"]
    assert [row["objective"] for row in rows] == ["266421.5", "", "266421.5", ""]
    assert float(rows[0]["first"]) <= float(rows[0]["seconds"])
    assert (rows[0]["time_limit"], rows[0]["ratio"]) == ("60.0", "2.0")
    assert all(float(row["peak_gib"]) > 0 for row in rows)


def test_folders_stand_for_their_files(capsys, monkeypatch):
    Path("in").mkdir()
    for name in ("b.json.gz", "a.json", "notes.txt", ".hidden.json"):
        Path("in", name).write_text("{}")
    Path("bare").mkdir()
    seen: list[Any] = []
    monkeypatch.setattr("autoshard.cli.bench.load_benchmark", lambda name: Fake(seen))
    assert main(["bench", "iopddl", "in/b.json.gz", "in", "--time-limit", "contest"]) == 0
    assert seen == [(["in/b.json.gz", "in/a.json", "in/b.json.gz"], None)]
    assert refused(capsys, "bench iopddl none.json bare in") == (
        "there is no file 'none.json'\n  the folder 'bare' holds no .json or .json.gz file"
    )
    assert refused(capsys, "bench iopddl in --time-limit soon") == (
        "argument --time-limit: 'soon' is not a number of seconds; write 60, or contest\n"
        "  see autoshard bench iopddl --help"
    )


class Fake:
    def __init__(self, seen: list[Any]) -> None:
        self.seen = seen

    def run(self, options: Any) -> int:
        self.seen.append((options.paths, options.time_limit))
        return 0


def test_the_contest_gave_each_instance_its_time():
    given = [IOPDDL.contest_seconds(f"asplos-2025-iopddl-{letter}") for letter in "AEFJKOPTUY"]
    assert given == [60, 60, 120, 120, 180, 180, 240, 240, 300, 300]
    assert IOPDDL.contest_seconds("A") is None
    assert IOPDDL.contest_seconds("") is None


def test_an_unknown_instance_has_no_contest_time():
    contest("mine.json", "mine")
    assert IOPDDL.measure_row({"path": "mine.json", "time_limit": None}) == {
        "status": "error",
        "error": "'mine.json' is called 'mine', which is not an instance of the contest; give "
        "its time limit in seconds",
    }
    contest("mine.json", "asplos-2025-iopddl-B")
    assert IOPDDL.measure_row({"path": "mine.json", "time_limit": None})["time_limit"] == 60


def test_a_refuted_answer_is_no_result(monkeypatch):
    contest("b.json", "asplos-2025-iopddl-B")
    monkeypatch.setattr(
        "autoshard.solve.iopddl.Instance.refute", lambda self, choices, objective: "too good"
    )
    row = IOPDDL.judged(
        {"path": "b.json", **IOPDDL.measure_row({"path": "b.json", "time_limit": 9.0})}
    )
    assert (row["status"], row["error"]) == (
        "refuted",
        "the file's own numbers disagree: too good",
    )
    assert "objective" not in row
    assert "mean ratio 0.00000" in IOPDDL.summary([row])


def test_a_process_that_dies_is_a_row(capsys, monkeypatch):
    contest("b.json", "asplos-2025-iopddl-B")
    dead = {"peak_gib": 0.5, "error": "exit code -9"}
    monkeypatch.setattr("autoshard.cli.rows.measure", lambda script, row: dict(dead))
    assert main(["bench", "iopddl", "b.json", "--time-limit", "60"]) == 2
    lines = capsys.readouterr().out.split("\n")
    assert lines[1].split() == ["b", "error", "0.50"]
    assert lines[2] == "    exit code -9"
    assert lines[3] == "1 instance, 0 with a plan, 0 proven optimal"


def test_an_interrupt_keeps_the_rows_so_far(capsys, monkeypatch):
    contest("b.json", "asplos-2025-iopddl-B")
    done: list[int] = []

    def once(script: str, row: dict[str, Any]) -> dict[str, Any]:
        if done:
            raise KeyboardInterrupt
        done.append(1)
        return {"instance": "asplos-2025-iopddl-B", "status": "feasible", "objective": 532_843.0}

    monkeypatch.setattr("autoshard.cli.rows.measure", once)
    assert main(["bench", "iopddl", "b.json", "b.json", "--csv", "r.csv"]) == 130
    out, err = capsys.readouterr()
    assert "1 instance, 1 with a plan, 0 proven optimal; mean ratio 1.00000" in out
    assert err == "autoshard: wrote r.csv\nautoshard: interrupted after 1 of 2\n"
    assert len(Path("r.csv").read_text().strip().split("\n")) == 2
