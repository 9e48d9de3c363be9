"""`autoshard bench fidelity`: kept plans are priced anew, and compiled once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autoshard.cli.bench import load_benchmark
from tests.compiler.test_compiled import needs
from tests.helpers import LONG

QUESTION = {
    "program": "mlp",
    "arguments": {"batch": 256, "width": 256, "hidden": 512, "layers": 1},
    "machine": "h100-8",
    "mesh": [8],
    "time_limit": 10.0,
    "distortions": [],
}


@pytest.fixture(scope="module")
def group() -> Any:
    return load_benchmark("fidelity_group")


def rows(group: Any, folder: Path, name: str) -> list[dict[str, Any]]:
    answers = folder / name
    group.measure_group({**QUESTION, "answers": str(answers), "plans": str(folder / "plans")})
    return [json.loads(line) for line in answers.read_text().splitlines()]


@needs("gpu")
def test_kept_plans_are_priced_anew_and_not_compiled_again(
    group: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = rows(group, tmp_path, "first")
    assert first[0]["plan"] == "best"
    assert len(first) > 1
    assert all(row["unplanned"] == 0 and row["compiled"] > 0 for row in first)

    def refuse(*_: Any) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr(group, "_compiled", refuse)
    assert rows(group, tmp_path, "again") == first
    # Another price of the same plans: the compiled side stays.
    from autoshard.cost import step_prices as step

    real = step.StepPrices.compute_seconds
    monkeypatch.setattr(step.StepPrices, "compute_seconds", lambda *a: 2.0 * real(*a))
    dearer = rows(group, tmp_path, "dearer")
    assert [row["compiled"] for row in dearer] == [row["compiled"] for row in first]
    for row, before in zip(dearer, first, strict=True):
        assert row["compute"] == pytest.approx(2 * before["compute"])


@LONG
@needs("gpu")
def test_an_answer_that_was_deleted_is_asked_again(
    group: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "one"))
    first = rows(group, tmp_path, "first")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    again = rows(group, tmp_path, "again")
    assert [row["compiled"] for row in again] == [row["compiled"] for row in first]
    assert any((tmp_path / "other").iterdir())
