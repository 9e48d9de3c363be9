"""Every command that writes files replaces those of its own kind alone, unless it is told to."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from autoshard.cli.main import main, parser_of_commands
from tests.cli.snapshots import COMMANDS, in_a_folder_of_files
from tests.cli.test_snapshots import commands

WRITES = {
    "-o": "output",
    "--csv": "csv",
    "--svg": "svg",
    "--trace": "trace",
    "--record": "record",
    "--markdown": "markdown",
    "--table": "times",
    "--model-explorer": "model_explorer",
    "--node-data": "node_data",
    "--rules": "rules",
    "--shardings": "shardings",
}
"""Options that name a file to be written, and what they are called in the parsed line."""
ALIKE = {
    "verify plan.json mlp:tiny --trace": "goes with a plan for several meshes",
    "calibrate times.csv --machine h100-8 --table": "needs devices or a compiler",
    "search mlp:tiny --machine v5e-8 --quiet --svg": "goes with --meshes",
    "search mlp:tiny --machine v5e-8 --quiet --trace": "goes with --meshes",
    "bench habits --compile gpu --only gpu.products-* --markdown": "goes with --without",
    "bench measured runs.csv --markdown": "draws a plot beside it",
    "bench measured runs.csv --svg": "needs more runs than one",
    "bench fidelity --programs mlp --machines h100-8 --svg": "is drawn by matplotlib",
}
"""Which outputs are not written by these commands, and why; all refuse another file."""


@pytest.fixture(scope="module", autouse=True)
def files():
    """Files of every kind in the working directory, and commands that answer at once."""
    with in_a_folder_of_files():
        yield


def outputs():
    """Every command of the snapshots with every option that names a file to be written."""
    parsers = dict(commands())
    for line in COMMANDS:
        words = line.split()
        name = " ".join(words[:2]) if words[0] == "bench" else words[0]
        known = parsers[name]._option_string_actions
        for option, dest in WRITES.items():
            taken = option in words or line.startswith("report")
            if option in known and known[option].dest == dest and not taken:
                yield f"{line} {option}"


WITH_PLAN = [
    f"report plan.json {option}"
    for option in WRITES
    if option in ("-o", "--trace", "--model-explorer", "--node-data", "--rules", "--shardings")
]
ALL = [*outputs(), *WITH_PLAN]


def test_every_command_that_writes_is_here():
    writing = {
        words
        for words, parser in commands(parser_of_commands())
        if {action.dest for action in parser._actions} & set(WRITES.values())
    }
    here = {" ".join(line.split()[: 2 if line.startswith("bench") else 1]) for line in ALL}
    assert here == writing


@pytest.mark.parametrize("line", ALL)
def test_another_file_is_not_replaced(line, tmp_path, capsys):
    mine = tmp_path / "mine.txt"
    mine.write_text("what I have written in ten years")
    words = [*line.split(), str(mine)]
    assert main(words) == 2
    said = capsys.readouterr().err
    if line in ALIKE and "is there already" not in said:
        assert said.startswith("autoshard: error: ")
        return
    assert f"{str(mine)!r} is there already, and is not a" in said
    assert said.endswith("; name another file, or give --overwrite\n")
    assert mine.read_text() == "what I have written in ten years"


@pytest.mark.parametrize("line", [line for line in ALL if line not in ALIKE])
def test_what_it_has_written_is_replaced(line, tmp_path, capsys):
    mine = tmp_path / "mine.txt"
    mine.write_text("what nobody needs any more")
    words = [*line.split(), str(mine)]
    assert main([*words, "--overwrite"]) == 0
    first = mine.read_text()
    assert "nobody" not in first
    assert main(words) == 0, capsys.readouterr().err
    assert mine.read_text().count("\n") == first.count("\n")


def test_two_outputs_are_two_files(capsys):
    words = "whatif mlp:tiny --sweep chips=4,8 --quiet --csv one.txt -o ./one.txt"
    assert main(words.split()) == 2
    assert capsys.readouterr().err == (
        "autoshard: error: --csv and -o name one file, './one.txt'; give each its own\n"
    )


@pytest.mark.parametrize(
    "line",
    [
        "search mlp:tiny --machine v5e-8 --quiet --json -o",
        "search mlp:tiny --meshes 2xv5e-4 --quiet --json -o",
        "solve problem.json --quiet --json -o",
        "schedule instance.json --quiet --json -o",
        "whatif mlp:tiny --sweep chips=4,8 --quiet --json -o",
        "frontier mlp:tiny --machine v5e-8 --quiet --json -o",
        "serving llama3-1b-decode:tiny --sweep chips=4 --quiet --json -o",
    ],
)
def test_an_answer_outlives_a_disk_that_is_full(line, tmp_path, capsys, monkeypatch):
    def full(path, data):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr("autoshard.files.write_whole", full)
    place = tmp_path / "answer.json"
    assert main([*line.split(), str(place)]) == 2
    out, err = capsys.readouterr()
    assert json.loads(out)
    assert err == f"autoshard: error: cannot write {str(place)!r}: No space left on device\n"
    assert not Path(place).exists()


def test_a_report_says_what_it_does_unless_it_is_to_be_quiet(tmp_path, capsys):
    words = ["report", "plan.json", "-o", str(tmp_path / "plan.html")]
    assert main(words) == 0
    said = capsys.readouterr().err
    assert said.startswith("tracing mlp:tiny\n")
    assert said.endswith(f"autoshard: wrote {words[-1]}\n")
    assert main([*words, "--quiet"]) == 0
    said = capsys.readouterr().err
    assert "tracing" not in said
    assert "wrote" not in said
