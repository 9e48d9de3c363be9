"""How commands look: at 80 and at 200 columns of a terminal, and piped.

`python -m tests.cli.snapshots` writes `tests/cli/snapshots/*.txt` anew; what differs is to be read.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from autoshard.cli.main import main
from tests.kept import write_kinds

FOLDER = Path(__file__).parent / "snapshots"
COMMANDS = (
    "show plan.json",
    "show pipeline.json",
    "show schedule.json",
    "show sweep.json",
    "show serving.json",
    "show robust.json",
    "show frontier.json",
    "show verdicts.json",
    "show solution.json",
    "explain plan.json mlp:tiny",
    "check plan.json mlp:tiny",
    "programs",
    "machines",
    "machines v5p-64",
)
MODES = {"a terminal of 80 columns": 80, "a terminal of 200 columns": 200, "a pipe": None}


class Terminal(io.StringIO):
    """Takes what is printed, and says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def printed(command: str, columns: int | None) -> str:
    """What a command prints to a terminal of so many columns, or to a pipe.

    The working directory holds the files that it names.
    """
    stream = io.StringIO() if columns is None else Terminal()
    words = command.split()
    if words[0] == "explain":
        words = [*words[:2], "--program", words[2]]
    with (
        mock.patch.dict(os.environ, {"COLUMNS": str(columns or 80), "TERM": "xterm"}),
        contextlib.redirect_stdout(stream),
    ):
        code = main(words)
    assert code == 0, command
    return stream.getvalue()


def plain(text: str) -> str:
    """The text without emphasis."""
    return re.sub(r"\x1b\[\d*m", "", text)


def snapshot(command: str) -> str:
    """All that is kept of a command."""
    parts = [f"==== {mode}\n{plain(printed(command, MODES[mode]))}" for mode in MODES]
    return "\n".join(parts)


def path_of(command: str) -> Path:
    """Where the snapshot of a command is kept."""
    name = re.sub(r"\W+", "-", command.replace(".json", "").replace(" mlp:tiny", ""))
    return FOLDER / f"{name}.txt"


@contextlib.contextmanager
def in_a_folder_of_files() -> Iterator[None]:
    """Have a file of every kind in the working directory."""
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        write_kinds(Path(folder))
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    chosen = [one for one in COMMANDS if not sys.argv[1:] or one in sys.argv[1:]]
    with in_a_folder_of_files():
        for one in chosen:
            path_of(one).write_text(snapshot(one))
