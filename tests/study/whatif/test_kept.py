"""Kept rows: only the row that was asked for, as it was written, is an answer."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from autoshard.study.whatif import solver
from autoshard.study.whatif.kept import keep_row, read_row
from autoshard.study.whatif.row import Row
from autoshard.study.whatif.sweep import whatif
from tests.study.whatif.programs import step

KEY = "0123456789abcdef"
ROW = Row({"batch": 64}, "v5e", 8, "v5e-8", 16e9, "optimal", step_seconds=0.5, mesh="x=8", key=KEY)


def changed(folder: Path, key: str, change: Any) -> None:
    path = folder / f"{key}.json"
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def test_a_row_is_read_as_it_was_kept(tmp_path):
    assert read_row(tmp_path, KEY) is None
    keep_row(tmp_path / "new", ROW, None)
    assert read_row(tmp_path / "new", KEY) == (ROW, None)


def test_the_row_of_another_question_is_none(tmp_path):
    keep_row(tmp_path, ROW, None)
    os.replace(tmp_path / f"{KEY}.json", tmp_path / "another.json")
    assert read_row(tmp_path, "another") is None
    changed(tmp_path, "another", lambda data: data.update(key="another"))
    assert read_row(tmp_path, "another") is None


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data["row"].update(step_seconds=0.05),
        lambda data: data["row"].update(why="because"),
        lambda data: data["row"]["sizes"].update(batch=128),
        lambda data: data["row"].pop("mesh"),
        lambda data: data["row"].update(status="perfect"),
        lambda data: data.update(plan={}),
        lambda data: data.pop("sha256"),
        lambda data: data.update(sha256="0" * 64),
    ],
)
def test_a_damaged_row_is_none(tmp_path, change):
    keep_row(tmp_path, ROW, None)
    changed(tmp_path, KEY, change)
    assert read_row(tmp_path, KEY) is None


@pytest.mark.parametrize("text", [b"", b"[1]", b"\xff", b"[" * 100_000, b'{"key": NaN}'])
def test_what_is_no_row_is_none(tmp_path, text):
    (tmp_path / f"{KEY}.json").write_bytes(text)
    assert read_row(tmp_path, KEY) is None


def test_rows_that_cannot_be_kept_are_a_warning_and_no_more(tmp_path, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(solver, "keep_row", full)
    sweep = {"machine": ["v5e-4"], "batch": [64, 128]}
    with pytest.warns(UserWarning, match="rows are not kept for the next sweep") as warned:
        found = whatif(step, sweep, folder=tmp_path, time_limit=20.0)
    assert len(found.rows) == 2
    assert [str(one.message) for one in warned] == [
        f"rows are not kept for the next sweep: cannot write {str(tmp_path)!r}: "
        "No space left on device"
    ]


def test_damaged_rows_are_planned_anew(tmp_path):
    sweep = {"machine": ["v5e-4"], "batch": [64]}
    news: list[bool] = []
    words: dict[str, Any] = {
        "folder": tmp_path,
        "time_limit": 20.0,
        "progress": lambda one: news.append(one.known),
    }
    (first,) = whatif(step, sweep, **words).rows
    (path,) = tmp_path.iterdir()
    changed(tmp_path, path.stem, lambda data: data["row"].update(step_seconds=1e-9))
    (again,) = whatif(step, sweep, **words).rows
    (kept,) = whatif(step, sweep, **words).rows
    assert news == [False, False, True]
    assert again.step_seconds == first.step_seconds == kept.step_seconds
