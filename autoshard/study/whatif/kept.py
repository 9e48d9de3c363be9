"""Rows that are done, one file each, so that a sweep that was stopped goes on where it was.

A row's file is named by the hash of everything that it depends on: the traced program, the
machine's numbers, the limit, what the search was asked, and autoshard itself. A question that
changed has another name, so nothing old is ever taken for it. Files appear whole or not at all
(`autoshard.files`), so a sweep may be killed at any time, and several may share a folder. A file
holds its key and the hash of what stands in it: one that was renamed or damaged is no answer, and
its row is planned anew.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import autoshard
from autoshard.files import FileError, cache_folder, read_json, typed, write_whole
from autoshard.machine.machine import Machine
from autoshard.plan.plan import Plan, PlanError
from autoshard.study.whatif.row import SCHEMA_VERSION, Row


def default_folder() -> Path:
    """`$XDG_CACHE_HOME/autoshard/whatif`, by default in `~/.cache`; it may be deleted any time."""
    return cache_folder() / "whatif"


def key_of(
    code: str, fingerprint: str, machine: Machine, limit: float, asked: dict[str, Any]
) -> str:
    """The name of a row's file; `code` is the `own_digest` of the process that sweeps."""
    chip = {one.name: getattr(machine.chip, one.name) for one in fields(machine.chip)}
    chip["peak_flops"] = dict(machine.chip.peak_flops)
    levels = [(type(level).__name__, asdict(level)) for level in machine.network]
    numbers = [machine.name, chip, levels, machine.overlap]
    question = [SCHEMA_VERSION, code, fingerprint, numbers, limit, asked]
    text = json.dumps(question, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def own_digest() -> str:
    """A hash of autoshard's own files as they are: another version may price otherwise.

    A sweep asks for it once, so that all of its rows are answers of one version.
    """
    root = Path(autoshard.__file__).resolve().parent
    digest = hashlib.sha256()
    for file in sorted((*root.rglob("*.py"), *root.rglob("*.toml"))):
        digest.update(file.relative_to(root).as_posix().encode() + file.read_bytes())
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class WrittenRow:
    """The content of a row's file; `sha256` is that of `row` and `plan` (`_digest`)."""

    key: str
    sha256: str
    row: Row
    plan: dict[str, Any] | None


def read_row(folder: Path, key: str) -> tuple[Row, Plan | None] | None:
    """The row under a key, with its plan; None where there is none, or not the one asked for."""
    try:
        data = read_json(folder / f"{key}.json", "the row")
        written = typed(data, WrittenRow)
        if not written.key == written.row.key == key:
            return None
        if written.sha256 != _digest(data["row"], data["plan"]):
            return None
        return written.row, None if written.plan is None else Plan.from_json(written.plan)
    except (FileError, PlanError):
        return None


def keep_row(folder: Path, row: Row, plan: Plan | None) -> None:
    """Put a row into its file.

    Raises:
      OSError: the folder cannot be made or written, or is full.
    """
    folder.mkdir(parents=True, exist_ok=True)
    content = row.to_json(), None if plan is None else plan.to_json()
    content = json.loads(json.dumps(content))  # as it is read: tuples are lists, keys are texts
    data = {"key": row.key, "sha256": _digest(*content), "row": content[0], "plan": content[1]}
    write_whole(folder / f"{row.key}.json", json.dumps(data).encode())


def _digest(row: Any, plan: Any) -> str:
    text = json.dumps([row, plan], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
