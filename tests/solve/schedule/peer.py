"""The independent simulator and the public instances, where they are there."""

from __future__ import annotations

import importlib.util
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

SHARED = Path(__file__).parents[4] / "shared"


@cache
def peer_simulator() -> Any:
    """The module `simulate`; skips the test where it is not there."""
    file = SHARED / "tools" / "simulate.py"
    if not file.is_file():
        pytest.skip(f"the independent simulator, {file}, is not here")
    spec = importlib.util.spec_from_file_location("independent_simulate", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def public_instances() -> dict[str, dict[str, Any]]:
    """The public instances by name; skips the test where they are not there."""
    file = SHARED / "data" / "pipeline" / "instances.json"
    if not file.is_file():
        pytest.skip(f"the public schedule problems, {file}, are not here")
    return {written["name"]: written for written in json.loads(file.read_text())}
