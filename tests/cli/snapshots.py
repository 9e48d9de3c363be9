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

import jax

from autoshard.cli.main import main
from tests.cli.known import known_answers, write_files
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
    "search mlp:tiny --machine v5e-8 --quiet",
    "search mlp:tiny --meshes 2xv5e-4 --quiet",
    "verify plan.json mlp:tiny",
    "check plan.json mlp:tiny",
    "explain plan.json --program mlp:tiny",
    "explain plan.json params.layers[0].up --program mlp:tiny",
    "explain plan.json --line mlp.py:43 --program mlp:tiny",
    "explain plan.json --against plan.json --program mlp:tiny",
    "explain plan.json --keep --program mlp:tiny --quiet",
    "annotate plan.json mlp:tiny --quiet",
    "whatif mlp:tiny --sweep chips=4,8 --quiet",
    "frontier mlp:tiny --machine v5e-8 --quiet",
    "serving llama3-1b-decode:tiny --sweep chips=4 --quiet",
    "robust mlp:tiny --machine v5e-8 --range chip.memory_bandwidth=4e11..1e12 --quiet",
    "calibrate times.csv --machine h100-8",
    "report sweep.json -o sweep.html",
    "report plan.json --rules rules.yml",
    "report pipeline.json -o stages.html",
    "report serving.json -o serving.html",
    "report schedule.json -o schedule.html",
    "report plan.json plan.json -o two.html",
    "solve problem.json --quiet",
    "schedule instance.json --quiet",
    "bench layers --model 8b --layers 32 --axes 2 --forms scan",
    "bench iopddl problem.json",
    "bench solvers problem.json --solvers autoshard,HiGHS --forms given",
    "bench resolve problem.json",
    "bench fidelity --programs mlp --machines h100-8",
    "bench habits --compile gpu --only gpu.products-*",
    "bench kernels --count 3",
    "bench plans --rows llama3-8b:8x4096@h100-8@4",
    "bench measured runs.csv",
    "bench served points.csv",
    "bench schedules instances.json",
    "bench all --parts iopddl",
    "completion bash",
    "completion zsh",
    "completion fish",
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
    kind = io.StringIO if columns is None else Terminal
    out, err = kind(), kind()
    with (
        mock.patch.dict(os.environ, {"COLUMNS": str(columns or 80), "TERM": "xterm"}),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = main(command.split())
    said = f"---- messages, exit code {code}\n{err.getvalue()}" if err.getvalue() or code else ""
    return out.getvalue() + said


def plain(text: str) -> str:
    """The text without emphasis."""
    return re.sub(r"\x1b\[[\d;]*m", "", text)


def snapshot(command: str) -> str:
    """All that is kept of a command."""
    parts = [f"==== {mode}\n{plain(printed(command, MODES[mode]))}" for mode in MODES]
    return "\n".join(parts)


def path_of(command: str) -> Path:
    """Where the snapshot of a command is kept."""
    said = re.sub(r"\.json| mlp:tiny| --quiet| --program\b| --machine \S+", "", command)
    words = said.split(" --")[0] if command.startswith(("bench", "robust", "serving")) else said
    return FOLDER / f"{re.sub(r'[^a-z0-9]+', '-', words)}.txt"


@contextlib.contextmanager
def in_a_folder_of_files() -> Iterator[None]:
    """Have a file of every kind in the working directory, and commands that answer at once."""
    jax.devices("cpu")  # says what it does not find once, before anything is printed here
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        write_kinds(Path(folder))
        os.chdir(folder)
        write_files()
        try:
            with known_answers():
                yield
        finally:
            os.chdir(before)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    chosen = [one for one in COMMANDS if not sys.argv[1:] or one in sys.argv[1:]]
    with in_a_folder_of_files():
        for one in chosen:
            path_of(one).write_text(snapshot(one))
