"""`autoshard explain` of a plan for several meshes: tables, texts, JSON and refusals."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from autoshard.cli.main import main
from autoshard.search.meshes.plan import PipelinePlan
from tests.cli.helpers import refused

PROGRAM = """
from tests.search.meshes.chains import chains
from tests.search.meshes.explain.cases import wide_step


def step():
    return wide_step()


def keeping():
    return chains(4, rows=2048, layers=4)
"""
OPTIONS = ["--stages", "2", "--no-baselines", "--gap", "0.5", "--time-limit", "30", "--quiet"]


def searched(program: str, *words: str) -> int:
    return main(["search", program, "--meshes", "2 x h100-2", *OPTIONS, *words])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    where = tmp_path_factory.mktemp("pipelines")
    (where / "mine.py").write_text(PROGRAM)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(where)
        assert searched("mine.py:step", "-o", "plan.json") == 0
        yield where


@pytest.fixture(autouse=True)
def _quiet(folder, capsys):
    capsys.readouterr()


def told(capsys, words: str) -> str:
    assert main(["explain", *words.split(), "--quiet"]) == 0
    return capsys.readouterr().out


def test_the_dearest_of_each_stage(capsys):
    text = told(capsys, "plan.json")
    assert [int(one) for one in re.findall(r"^stage (\d) on mesh \d", text, re.MULTILINE)] == [0, 1]
    assert text.count("dearest values as they lie") == 2
    assert re.search(r"  autoshard explain plan.json '.+' --stage 0$", text.rstrip())
    data = json.loads(told(capsys, "plan.json --json --stage 1"))
    (one,) = data["dearest"]
    assert one["stage"] == 1
    assert {"target", "type", "exposed_seconds"} <= set(one["dearest"][0])


def test_a_value_in_each_stage(capsys):
    text = told(capsys, "plan.json params.layers")
    assert text.count("the step priced with it:") == 2
    assert len(text.splitlines()) == len([one for one in text.splitlines() if len(one) <= 120])
    data = json.loads(told(capsys, "plan.json params.layers --json --stage 0"))
    assert [one["stage"] for one in data["answers"]] == [0]
    assert (data["more"], data["notes"]) == (0, [])
    line = told(capsys, "plan.json --line cases.py:62:tanh --stage 1")
    assert line.startswith("stage 1 on mesh 1")


def test_another_plan(capsys):
    Path("same.json").write_text(Path("plan.json").read_text())
    assert told(capsys, "plan.json --against same.json").endswith("the plans are alike\n")
    (one,) = json.loads(told(capsys, "plan.json --against same.json --json"))["answers"]
    assert one["form"] == one["stages"] == []


def test_what_is_kept(capsys):
    assert searched("mine.py:keeping", "--remat", "search", "-o", "kept.json") == 0
    capsys.readouterr()
    text = told(capsys, "kept.json --keep layers/dot_general#2 --stage 1")
    row = r"^1 +layers/dot_general#2 +f32\[2048,16\] x \d +saved +computed again +[+-]\S+ \S+ +[+-]"
    assert re.search(row, text, re.MULTILINE)
    assert " on the host " in text
    data = json.loads(told(capsys, "kept.json --keep layers/dot_general#2 --stage 1 --json"))
    assert [one["instead"] for one in data["answers"]] == ["computed again", "on the host"]
    assert {one["stage"] for one in data["answers"]} == {1}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "plan.json --machine h100-4",
            "'plan.json' is for several meshes, which name their machines: leave --machine out",
        ),
        ("plan.json --stage 2", "the plan has no stage 2: its stages are 0 to 1"),
        (
            "plan.json params.layers --keep",
            "--keep cannot be combined with VALUE, --line or --against: leave them out",
        ),
        (
            "plan.json --against one.json",
            "'plan.json' is for several meshes, and 'one.json' for one: give two plans for "
            "several meshes, or see both by `autoshard report`",
        ),
        (
            "one.json --against plan.json",
            "'one.json' is for one mesh, and 'plan.json' for several: give two plans for one, or "
            "see both by `autoshard report`",
        ),
        (
            "one.json --stage 0",
            "--stage is of plans for several meshes, and 'one.json' is for one: leave it out",
        ),
        (
            "old.json",
            "the plan of 'mine.py:step' was saved without the plans of its stages, from which "
            "values are explained: search again",
        ),
        (
            "plan.json params.layer",
            "'params.layer' names no value of stages 0, 1; did you mean params.layers?",
        ),
    ],
)
def test_refusals(capsys, words, message):
    data = PipelinePlan.load("plan.json").to_json()
    Path("old.json").write_text(json.dumps({**data, "plans": [], "plan_of": []}))
    Path("one.json").write_text(json.dumps(data["plans"][0]))
    assert refused(capsys, f"explain {words}") == message
