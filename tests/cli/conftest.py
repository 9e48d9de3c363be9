"""A folder with programs to search."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.cli.helpers import STEPS


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "steps.py").write_text(STEPS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "steps", raising=False)
    return tmp_path
