"""Answers of the compilers on disk, each under the hash of its question.

An answer is a folder of files. It is written beside its place and then renamed, so that a reader
finds a whole answer or none, however many processes write it. `$XDG_CACHE_HOME/autoshard/compiled`,
by default `~/.cache/autoshard/compiled`; it may be deleted at any time.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoshard.files import cache_folder

_TEXTS = ("final", "partitioned", "schedule", "memory_report")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a compiler wrote.

    Attributes:
      facts: memory, seconds, versions: plain data.
      final: the scheduled module, as HLO text.
      partitioned: the module right after partitioning; empty for one device.
      schedule: XLA:GPU's own timeline; empty where there is none.
      memory_report: what is alive at the peak, by name and shape; empty where there is none.
    """

    facts: dict[str, Any]
    final: str
    partitioned: str = ""
    schedule: str = ""
    memory_report: str = ""


def default_folder() -> Path:
    """Where answers are kept."""
    return cache_folder() / "compiled"


def read_answer(folder: Path) -> Answer:
    """Read an answer.

    Raises:
      OSError, ValueError: it is not there, or damaged.
    """
    facts = json.loads((folder / "facts.json").read_text(encoding="utf-8"))
    texts: dict[str, str] = {}
    for name in _TEXTS:
        path = folder / f"{name}.txt.gz"
        if path.is_file():
            with gzip.open(path, "rt", encoding="utf-8") as file:
                texts[name] = file.read()
    if not isinstance(facts, dict) or "final" not in texts:
        raise ValueError(
            f"the compiler's answer kept in {folder} is damaged: delete the folder, and compile "
            "again"
        )
    return Answer(facts, **texts)


def write_answer(folder: Path, answer: Answer) -> None:
    """Write an answer into a folder that is there."""
    for name in _TEXTS:
        text = getattr(answer, name)
        if text:
            with gzip.open(folder / f"{name}.txt.gz", "wt", encoding="utf-8") as file:
                file.write(text)
    (folder / "facts.json").write_text(json.dumps(answer.facts), encoding="utf-8")


def load(cache: Path, key: str) -> Answer | None:
    """The answer that is kept under `key`, or None; a damaged one is removed."""
    folder = cache / key
    try:
        return read_answer(folder)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, EOFError):
        shutil.rmtree(folder, ignore_errors=True)
        return None


def keep(cache: Path, key: str, answer: Answer) -> None:
    """Store an answer, or warn that it cannot be."""
    try:
        store(cache, key, answer)
    except OSError as error:
        warnings.warn(
            f"the compiler's answer is not kept: cannot write {str(cache)!r}: {error.strerror}; it "
            "is asked again next time",
            stacklevel=2,
        )


def store(cache: Path, key: str, answer: Answer) -> None:
    """Keep an answer; another process that keeps the same one is not a conflict."""
    cache.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=cache, prefix=".new-"))
    try:
        write_answer(temporary, answer)
        os.replace(temporary, cache / key)
    except OSError:
        # A folder cannot be renamed onto one that is not empty: somebody else was faster.
        if not (cache / key).is_dir():
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
