"""Every kind of fault that programs of users showed has tests that hold it, three at least."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
CASES = TESTS.parents[1] / "shared" / "data" / "cases"
KINDS = tomllib.loads((TESTS / "kinds.toml").read_text())["kind"]


def functions_of(file: str) -> set[str]:
    tree = ast.parse((TESTS / file).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind["what"].replace(" ", "-"))
def test_its_tests_are_there(kind):
    named = {
        (file, f"test_{name}")
        for file, names in kind.items()
        if file.endswith(".py")
        for name in names
    }
    assert len(named) >= 3
    assert not [(file, name) for file, name in named if name not in functions_of(file)]


def test_every_case_is_of_a_kind():
    if not CASES.exists():
        pytest.skip("there is no ../shared/data/cases here")
    named = {case for kind in KINDS for case in kind.get("cases", ())}
    assert named == {file.stem for file in CASES.glob("*.py")}
