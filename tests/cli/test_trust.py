"""Files are data: a program that only a file names does not run."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path

import pytest

from autoshard.cli.main import main
from autoshard.models.trusted import remember
from tests.cli.helpers import refused

SEARCHED = "search steps.py:good --machine v5e-8 --mesh x=8 --quiet --no-baselines -o plan.json"
EVIL = """\
import pathlib
import sys

pathlib.Path("ran").touch()


def now():
    pathlib.Path("ran").touch()
    sys.exit(0)
"""
COMMANDS = ("verify {}", "check {}", "explain {} args[0]", "annotate {}")


@pytest.fixture
def plan(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A plan of the user's, in a folder of the user's, with nothing remembered but its program."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    (folder / "evil.py").write_text(EVIL)
    assert main(SEARCHED.split()) == 0
    return folder / "plan.json"


def naming(plan: Path, program: str) -> Path:
    other = plan.with_name("given.json")
    other.write_text(json.dumps({**json.loads(plan.read_text()), "program": program}))
    return other


def refused_now(capsys: pytest.CaptureFixture[str], words: str) -> str:
    capsys.readouterr()
    return refused(capsys, words)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("program", ["evil.py:now", "evil:now", "os:abort", "sys:exit"])
def test_what_only_a_file_names_does_not_run(plan, capsys, command, program):
    naming(plan, program)
    capsys.readouterr()
    assert refused(capsys, command.format("given.json")) == (
        f"'given.json' names the program {program!r}, which is not run for a file's word alone; "
        "give PROGRAM, or --trust"
    )
    assert not Path("ran").exists()


@pytest.mark.parametrize("program", ["evil.py:now", "os:abort", "sys:exit"])
def test_a_page_is_made_without_the_program(plan, capsys, program):
    naming(plan, program)
    assert main(["report", "given.json", "-o", "page.html"]) == 0
    assert "is not run for a file's word alone; give PROGRAM, or --trust" in capsys.readouterr().err
    assert Path("page.html").exists()
    assert not Path("ran").exists()
    assert main(["show", "given.json"]) == 0


def test_what_the_user_has_named_is_remembered_by_folder(plan, capsys, tmp_path_factory, folder):
    assert main(["check", "plan.json"]) == 0
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "steps.py").write_text((folder / "steps.py").read_text())
    naming(plan, str(elsewhere / "steps.py:good"))
    assert "is not run" in refused_now(capsys, "check given.json")
    assert main(["check", "given.json", "--trust"]) == 0
    assert main(["check", "given.json"]) == 0
    naming(plan, "steps.py:odd")
    assert "is not run" in refused_now(capsys, "check given.json")


def test_a_folder_that_others_write_is_not_remembered(plan, capsys, folder):
    naming(plan, "open/steps.py:good")
    (folder / "open").mkdir()
    (folder / "open").chmod(0o777)
    (folder / "open" / "steps.py").write_text((folder / "steps.py").read_text())
    assert main(["check", "given.json", "--trust"]) == 0
    assert "is not run" in refused_now(capsys, "check given.json")


@pytest.mark.parametrize("text", ["", "[1]", '{"a": 1}', '[["a"]]', "\udcff"])
def test_a_damaged_memory_remembers_nothing(plan, capsys, text, folder):
    (folder / "cache" / "autoshard" / "trusted.json").write_bytes(
        text.encode("utf-8", "surrogateescape")
    )
    assert "is not run" in refused_now(capsys, "check plan.json")
    assert main(["check", "plan.json", "--trust"]) == 0
    assert main(["check", "plan.json"]) == 0


def test_a_cache_that_cannot_be_written_asks_each_time(plan, capsys, folder, monkeypatch):
    (folder / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "file"))
    remember("steps.py:good")
    assert "is not run" in refused_now(capsys, "check plan.json")


def test_a_plan_without_a_program_asks_for_one(plan, capsys):
    naming(plan, "")
    assert refused_now(capsys, "check given.json") == "'given.json' names no program; give PROGRAM"


ENDING = """\
import sys
from steps import abstract


def at_once():
    sys.exit(0)


def traced():
    def step(x):
        sys.exit("enough")

    return step, (abstract(8, 8),)


def judged():
    def step(x):
        if sys.argv[0].endswith("numbers.py"):
            sys.exit(0)
        return x * 2

    return step, (abstract(8, 8),)
"""


def test_a_program_that_ends_python_is_an_error_with_its_line(folder, capsys):
    (folder / "ending.py").write_text(ENDING)
    (folder / "import_time.py").write_text("raise SystemExit(3)\n")
    words = "search {} --machine v5e-8 --mesh x=8 --quiet --no-baselines -o plan.json"
    assert refused(capsys, words.format("ending.py:at_once")) == (
        "ending.py:at_once fails at ending.py:6: SystemExit: 0"
    )
    assert refused(capsys, words.format("import_time.py:f")) == (
        "import_time.py cannot be imported at import_time.py:1: SystemExit: 3"
    )
    message = refused(capsys, words.format("ending.py:traced"))
    assert re.fullmatch(r"step does not trace at \S+ending.py:11: SystemExit: enough", message)
    assert main(words.format("ending.py:judged").split()) == 0
    assert main(["verify", "plan.json"]) == 5
    out = capsys.readouterr().out
    assert re.search(r"numbers +FAILED .* at \S+ending.py:19: SystemExit: 0", out)


def test_whatever_ends_python_in_a_command_is_an_error(folder, capsys, monkeypatch):
    def ending(*_: object, **__: object) -> None:
        raise SystemExit(0)

    monkeypatch.setattr(importlib.import_module("autoshard.search.search"), "search", ending)
    message = refused(capsys, "search steps.py:good --machine v5e-8 --quiet")
    assert re.fullmatch(r"the program ends Python at \S+test_trust.py:\d+: exit 0", message)
