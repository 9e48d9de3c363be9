"""The command line as a whole: its help, its lists, and nothing but messages on stderr."""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys

import pytest

from autoshard.cli.main import main, parser_of_commands
from autoshard.cli.parsers.arguments import AXES, mesh
from autoshard.cli.parsers.examples import EXAMPLES
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
    assert message.startswith("argument COMMAND: 'xyz' is not known; known: search, verify, ")


def test_an_interrupt_of_a_command_that_makes_no_plan(capsys, monkeypatch, plan_file):
    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("autoshard.cli.verify.verify_command", interrupted)
    assert main(["verify", str(plan_file)]) == 130
    assert (
        capsys.readouterr().err == "autoshard: interrupted before the end of `autoshard verify`\n"
    )


def test_a_search_writes_over_plans_alone(capsys, tmp_path):
    program = tmp_path / "model.py"
    program.write_text("def train(): ...\n")
    message = refused(capsys, f"search mlp:tiny --machine v5e-8 -o {program}")
    assert message == (
        f"'{program}' is there already, and is not a plan; name another file, or give --overwrite"
    )
    assert program.read_text() == "def train(): ...\n"


def every_parser(parser):
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for one in action.choices.values():
                yield from every_parser(one)


def test_every_command_has_examples_that_it_takes():
    known = {" ".join(one.prog.split()[1:]) for one in every_parser(parser_of_commands())}
    assert known == EXAMPLES.keys()
    for name, lines in EXAMPLES.items():
        assert any(line.startswith(f"autoshard {name}") for line in lines)
        for line in lines:
            parser_of_commands().parse_args(shlex.split(line)[1:])


def test_a_machine_in_detail(capsys):
    assert main(["machines", "h100-16"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("h100-16: 16 x H100 SXM, for xla:gpu\n  NVLink of 8")
    line = next(one for one in said.splitlines() if one.startswith("chip.memory_bandwidth"))
    assert line.split("  ")[-1] == "nvidia.com/en-us/data-center/h100"
    assert " 3.35 TB/s " in line


def test_meshes_without_names():
    from autoshard.search.mesh_axes import AXIS_NAMES

    assert AXES == AXIS_NAMES
    assert mesh("2x4") == {"x": 2, "y": 4}
    assert mesh("8") == {"x": 8}
    with pytest.raises(argparse.ArgumentTypeError, match="has more than 3 axes"):
        mesh("2x2x2x2")


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
