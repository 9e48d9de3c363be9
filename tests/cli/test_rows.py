"""Children that measure a row: their answers, and why there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoshard.cli.rows import measure


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("raise ValueError('no such plan')", "ValueError: no such plan"),
        ("sys.exit(3)", "exit code 3"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "ended by SIGKILL"),
        ("print('a warning', file=sys.stderr); os.kill(os.getpid(), 15)", "ended by SIGTERM"),
    ],
)
def test_why_a_child_has_no_answer(line: str, error: str, tmp_path: Path):
    script = tmp_path / "child.py"
    script.write_text(f"import os, signal, sys\n{line}\n")
    assert measure(str(script), {})["error"] == error


def test_the_answer_is_the_last_line(tmp_path: Path):
    script = tmp_path / "child.py"
    script.write_text("import sys\nprint('begun')\nprint(sys.argv[1])\n")
    answer = measure(str(script), {"size": 3})
    assert answer["size"] == 3
    assert answer["peak_gib"] > 0
