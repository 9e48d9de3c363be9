"""A folder with programs to search, and a plan that was found and written."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from autoshard.cli.main import main
from tests.cli.helpers import STEPS


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "steps.py").write_text(STEPS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "steps", raising=False)
    return tmp_path


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    words = "search mlp:tiny --machine v5e-8 --mesh data=2,model=4 --memory-limit 65KiB --gap 0.1"
    assert main([*words.split(), "--no-baselines", "--quiet", "-o", str(path)]) == 0
    return path
