"""The command line as a whole: its help, its lists, and nothing but messages on stderr."""

from __future__ import annotations

import subprocess
import sys

import pytest

from autoshard.cli.main import main
from tests.cli.helpers import refused


@pytest.mark.parametrize(
    "words", ["", "search", "verify", "show", "solve", "bench", "bench layers", "programs"]
)
def test_help(capsys, words):
    assert main([*words.split(), "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"usage: autoshard {words}".strip())


def test_no_command_prints_help(capsys):
    assert main([]) == 0
    assert "exit codes: 0 fine" in " ".join(capsys.readouterr().out.split())


def test_unknown_command(capsys):
    message = refused(capsys, "serach")
    assert message.startswith("argument COMMAND: 'serach' is not known; did you mean search?\n")
    message = refused(capsys, "bench layer")
    assert message.startswith("argument BENCHMARK: 'layer' is not known; did you mean layers?\n")
    message = refused(capsys, "xyz")
    assert message.startswith("argument COMMAND: 'xyz' is not known; there is search, verify, ")


def test_lists(capsys):
    from autoshard.machine.load import presets
    from autoshard.models import names

    assert main(["programs"]) == 0
    listed = [line.split() for line in capsys.readouterr().out.split("\n")]
    assert all(any(row[:1] == [name] and len(row) > 1 for row in listed) for name in names())
    assert main(["machines"]) == 0
    listed = [line.split() for line in capsys.readouterr().out.split("\n")]
    families = {row[0].rpartition("-")[0] for row in listed if row}
    assert set(presets()) <= families


def test_nothing_but_messages_on_stderr():
    """Not even of plugins for devices that are not there."""
    words = ["search", "mlp:tiny", "--machine", "h100-8", "--mesh", "x=8", "--quiet"]
    done = subprocess.run(
        [sys.executable, "-m", "autoshard", *words], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    assert "mesh x=8" in done.stdout
