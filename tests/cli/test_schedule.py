"""`autoshard schedule`: what it prints and writes, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autoshard.cli.main import main
from autoshard.solve.schedule.instance_json import instance_from_json
from autoshard.solve.schedule.task import order_from_json
from autoshard.solve.schedule.timeline import simulate
from tests.helpers import LONG

PROBLEM = {
    "name": "small", "p": 2, "m": 3, "F": 2, "B": 2, "W": 1, "comm": 1, "mem_F": 2, "mem_B": -1,
    "mem_W": -1, "mem_limits": {"1f1b": 4, "2x": 8, "none": None},
}  # fmt: skip


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("small.json").write_text(json.dumps(PROBLEM))
    return "small.json"


def refused(capsys: pytest.CaptureFixture[str], *words: str, code: int = 2) -> str:
    assert main(["schedule", *words]) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    return printed.err


def test_it_prints_and_writes(file, capsys):
    files = ["-o", "out.json", "--svg", "out.svg", "--trace", "out.trace"]
    assert main(["schedule", file, "--memory-limit", "1f1b", "--objective", "span", *files]) == 0
    printed = capsys.readouterr()
    answer = json.loads(Path("out.json").read_text())
    order = order_from_json(answer["schedule"], 2)
    timeline = simulate(instance_from_json(PROBLEM).with_limit(4), order)
    assert answer["status"] == "optimal"
    assert (answer["makespan"], answer["span"]) == (timeline.makespan, timeline.span)
    assert answer["bound"] == answer["span"]
    assert answer["gap"] == 0
    assert answer["memory_limit"] == [4, 4]
    assert printed.out.startswith(f"small: optimal: span {timeline.span}, bound {timeline.span}, ")
    assert "mesh 1   " in printed.out
    assert "wrote out.json" in printed.err
    assert Path("out.svg").read_text().startswith("<svg ")
    assert json.loads(Path("out.trace").read_text())["traceEvents"]


@pytest.mark.parametrize(("limit", "expected"), [("none", None), ("2x", [8, 8]), ("6", [6, 6])])
def test_memory_limits(file, capsys, limit, expected):
    assert main(["schedule", file, "--memory-limit", limit, "-o", "out.json", "--quiet"]) == 0
    assert json.loads(Path("out.json").read_text())["memory_limit"] == expected
    assert capsys.readouterr().err == ""


@LONG
def test_several_placements(file, capsys):
    half = {"F": 1, "B": 1, "W": 0.5, "mem_F": 1, "mem_B": -0.5, "mem_W": -0.5}
    for name, places in (("loop", [0, 1, 0, 1]), ("vee", [0, 1, 1, 0])):
        Path(f"{name}.json").write_text(
            json.dumps(PROBLEM | half | {"name": name, "S": 4, "placement": places})
        )
    names = ["small.json", "loop.json", "vee.json"]
    assert main(["schedule", *names, "--memory-limit", "1f1b", "-o", "out.json"]) == 0
    out = capsys.readouterr().out
    assert " is the best of 3\n" in out
    assert all(f"  {name}: makespan " in out for name in names)
    lines = [line for line in out.split("\n") if line.startswith("  ") and ": makespan " in line]
    values = [float(line.split(": makespan ")[1].split(",")[0]) for line in lines]
    assert len(values) == 3
    assert values == sorted(values)
    assert json.loads(Path("out.json").read_text())["makespan"] == values[0]


def test_a_limit_that_no_schedule_keeps(file, capsys):
    message = refused(capsys, file, "--memory-limit", "1.5", "--quiet", code=3)
    assert message == (
        "autoshard: error: the memory limit cannot be used:\n"
        "  mesh 0 has a limit of 1.5, and one microbatch takes 2 there; "
        "the smallest limit that works is 2\n"
        "  mesh 1 has a limit of 1.5, and one microbatch takes 2 there; "
        "the smallest limit that works is 2\n"
    )


def test_refusals(file, capsys):
    assert "'many' cannot be used" in refused(capsys, file, "--memory-limit", "many")
    assert "give a number of more than 0" in refused(capsys, file, "--memory-limit=-4")
    assert "cannot read the problem 'gone.json'" in refused(capsys, "gone.json")
    Path("list.json").write_text(json.dumps([PROBLEM]))
    assert "holds a list of 1; give a file with one" in refused(capsys, "list.json")
    Path("text.json").write_text("no json")
    assert (
        "'text.json' holds a text that begins with 'no json', and no schedule problem; give"
        in refused(capsys, "text.json")
    )
    Path("odd.json").write_text(json.dumps(PROBLEM | {"speed": 3, "F": [1]}))
    message = refused(capsys, "odd.json")
    assert "'speed' is not a field" in message
    assert "cannot write 'nowhere/out.json'" in refused(capsys, file, "-o", "nowhere/out.json")
