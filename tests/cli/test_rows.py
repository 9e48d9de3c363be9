"""Children that measure a row: their answers, and why there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoshard.cli.rows import Rows, line, measure


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("raise ValueError('no such plan')", "ValueError: no such plan"),
        ("sys.exit(3)", "exit code 3"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "ended by SIGKILL"),
        ("print('a warning', file=sys.stderr); os.kill(os.getpid(), 15)", "ended by SIGTERM"),
    ],
)
def test_why_a_child_has_no_answer(code: str, error: str, tmp_path: Path):
    script = tmp_path / "child.py"
    script.write_text(f"import os, signal, sys\n{code}\n")
    assert measure(str(script), {})["error"] == error


def test_the_answer_is_the_last_line(tmp_path: Path):
    script = tmp_path / "child.py"
    script.write_text("import sys\nprint('begun')\nprint(sys.argv[1])\n")
    answer = measure(str(script), {"size": 3})
    assert answer["size"] == 3
    assert answer["peak_gib"] > 0


def test_a_row_goes_on_where_the_terminal_ends(monkeypatch):
    monkeypatch.setattr("autoshard.cli.rows.is_terminal", lambda: True)
    monkeypatch.setattr("autoshard.cli.rows.page_width", lambda: 20)
    widths = (8, 6, 9, 4)
    assert line(("name", "a", "bb", "c"), widths) == "    name       a\n           bb     c"
    assert line(("one", "1", "", ""), widths) == "     one       1"
    assert line(("one", "1", "", "4"), widths) == "     one       1\n                  4"
    monkeypatch.setattr("autoshard.cli.rows.is_terminal", lambda: False)
    assert line(("name", "a", "bb", "c"), widths) == "    name       a         bb     c"


def test_what_is_kept_of_a_column_with_a_format_is_its_number(capsys, tmp_path):
    rows = Rows(("name", "gap"), (4, 7), {"gap": "{:.1%}".format})
    rows.add({"name": "a", "gap": 0.125})
    rows.add({"name": "b", "gap": ""})
    assert capsys.readouterr().out.split() == ["name", "gap", "a", "12.5%", "b"]
    rows.write(str(tmp_path / "rows.csv"), quiet=True)
    assert (tmp_path / "rows.csv").read_text().split() == ["name,gap", "a,0.125", "b,"]
