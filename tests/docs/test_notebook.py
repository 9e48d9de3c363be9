"""The notebook of the documentation runs, and shows what it says that it shows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import pytest

from tests.docs.notebook import NOTEBOOK
from tests.docs.pages import ROOT


def shown(notebook: Path) -> list[list[Any]]:
    """By cell, what is printed, and the kinds of what is shown."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return [
        [output.get("text") or sorted(output["data"]) for output in cell["outputs"]]
        for cell in cells
        if cell["cell_type"] == "code"
    ]


def test_the_notebook_runs_and_shows_the_same(tmp_path):
    if jax.default_backend() != "cpu":
        pytest.skip("the last cell runs on eight devices of one CPU")
    done = subprocess.run(
        [sys.executable, "-m", "tests.docs.notebook", str(tmp_path / "run.ipynb")],
        env={**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = shown(tmp_path / "run.ipynb")
    assert found == shown(NOTEBOOK)
    assert sum(map(len, found)) == 4
