"""Ctrl-C and SIGTERM in every phase: the best plan is kept, and nothing else stays behind."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest

from autoshard.cli import entry
from autoshard.cli.main import main
from autoshard.plan.plan import Plan

SEARCH = "search steps.py:good --machine v5e-8 --mesh data=2,model=4 --quiet -o plan.json"
AFTER_A_PLAN = [
    ("autoshard.search.memory_loop", "forecasted"),
    ("autoshard.search.schemes_solved", "solve"),
    ("autoshard.search.schemes_priced", "evaluate"),
    ("autoshard.search.finish", "forecasted"),
    ("autoshard.search.finish", "assemble"),
    ("autoshard.files", "write_whole"),
]
BEFORE_ANY = [
    ("autoshard.program.rewritten", "Flattener"),
    ("autoshard.search.prepare", "analyse"),
    ("autoshard.search.one_shape", "build"),
]


def interrupted(monkeypatch: pytest.MonkeyPatch, module: str, name: str, number: int) -> list[int]:
    """Let the first call of a function send a signal, whose exception is swallowed once."""
    place: Any = importlib.import_module(module)
    real = getattr(place, name)
    calls: list[int] = []

    def careless(*args: Any, **options: Any) -> Any:
        calls.append(number)
        if len(calls) == 1:
            with contextlib.suppress(BaseException):
                os.kill(os.getpid(), number)
                time.sleep(0.01)
            for _ in range(2000):
                time.sleep(0.01)
        return real(*args, **options)

    monkeypatch.setattr(place, name, careless)
    return calls


@pytest.fixture
def temporary(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(("module", "name"), AFTER_A_PLAN)
def test_the_plan_that_was_found_is_kept(folder, temporary, monkeypatch, module, name, number):
    calls = interrupted(monkeypatch, module, name, number)
    assert main(SEARCH.split()) == 0
    assert calls
    assert Plan.load("plan.json").estimate.step_seconds > 0
    assert not any(name.startswith(".plan") for name in os.listdir())
    assert os.listdir(temporary) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(("module", "name"), BEFORE_ANY)
def test_without_a_plan_it_ends(folder, temporary, capsys, monkeypatch, module, name, number):
    assert interrupted(monkeypatch, module, name, number) == []
    assert main(SEARCH.split()) == 130
    assert capsys.readouterr().err == "autoshard: interrupted before any plan was found\n"
    assert not Path("plan.json").exists()
    assert os.listdir(temporary) == []


class Interrupting:
    """A finder of modules that is interrupted where the commands are imported."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name == "autoshard.cli.main":
            raise KeyboardInterrupt


def test_while_it_is_imported_it_ends_cleanly(capsys, monkeypatch):
    monkeypatch.delitem(sys.modules, "autoshard.cli.main")
    monkeypatch.setattr(sys, "meta_path", [Interrupting(), *sys.meta_path])
    assert entry.main() == 130
    assert capsys.readouterr().err == "autoshard: interrupted before it had begun\n"


def test_that_is_how_it_is_begun():
    root = Path(entry.__file__).parents[2]
    written = tomllib.loads((root / "pyproject.toml").read_text())
    assert written["project"]["scripts"] == {"autoshard": "autoshard.cli.entry:main"}
    assert "from autoshard.cli.entry import main" in (root / "autoshard/__main__.py").read_text()
