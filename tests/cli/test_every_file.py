"""Every command reads every kind of file that another writes, or says what it is and is for."""

from __future__ import annotations

import contextlib
import io
import os
import re

import pytest

from autoshard.cli.common import CommandError
from autoshard.cli.kinds import files as kinds
from autoshard.cli.kinds.reads import HERE, reads
from autoshard.cli.main import parser_of_commands
from tests.cli.every_file import KINDS, write_every_file
from tests.cli.snapshots import in_a_folder_of_files
from tests.cli.test_outputs import WRITES
from tests.cli.test_snapshots import commands

LINES = (
    "search {} --machine v5e-8 --quiet",
    "search mlp:tiny --machine {} --quiet",
    "search mlp:tiny --meshes {} --quiet",
    "search mlp:tiny --machine v5e-8 --quiet --require {}",
    "search mlp:tiny --machine v5e-8 --quiet --from {}",
    "verify {} mlp:tiny",
    "verify plan.json {}",
    "verify plan.json mlp:tiny --machine {}",
    "check {} mlp:tiny",
    "check plan.json {}",
    "check plan.json mlp:tiny --machine {}",
    "check plan.json mlp:tiny --require {}",
    "explain {} --program mlp:tiny",
    "explain plan.json --program {}",
    "explain plan.json --program mlp:tiny --machine {}",
    "explain plan.json --program mlp:tiny --against {}",
    "annotate {} mlp:tiny --quiet",
    "annotate plan.json {} --quiet",
    "annotate plan.json mlp:tiny --quiet --machine {}",
    "whatif {} --sweep chips=4 --quiet",
    "whatif mlp:tiny --sweep machine={} --quiet",
    "whatif mlp:tiny --sweep chips=4 --prices {} --quiet",
    "frontier {} --machine v5e-8 --quiet",
    "frontier mlp:tiny --machine {} --quiet",
    "serving {} --sweep chips=4 --quiet",
    "serving llama3-1b-decode:tiny --sweep chips=4 --quiet --prefill {}",
    "serving llama3-1b-decode:tiny --sweep machine={} --quiet",
    "serving llama3-1b-decode:tiny --sweep chips=4 --quiet --prices {}",
    "robust {} --machine v5e-8 --range overlap=0..1 --quiet",
    "robust mlp:tiny --machine {} --range overlap=0..1 --quiet",
    "robust mlp:tiny --machine v5e-8 --range overlap=0..1 --quiet --require {}",
    "calibrate {} --machine h100-8",
    "calibrate times.csv --machine {}",
    "show {}",
    "report {} -o out.html",
    "report plan.json {} -o out.html",
    "report plan.json mlp:tiny --machine {} --shardings out.json",
    "report plan.json mlp:tiny --verification {} -o out.html",
    "report plan.json mlp:tiny --robust {} -o out.html",
    "solve {} --quiet",
    "schedule {} --quiet",
    "bench iopddl {}",
    "bench solvers {} --solvers autoshard,HiGHS --forms given",
    "bench resolve {}",
    "bench habits --compile gpu --only gpu.products-* --known {}",
    "bench measured {}",
    "bench served {}",
    "bench schedules {}",
    "bench schedules instances.json --peers {}",
    "bench schedules instances.json --peers-by-problem {}",
    "bench all --parts iopddl --compare {}",
    "machines {}",
)
"""Every command with every place for a file that it reads."""
PARSERS = re.compile(r"Traceback|Expect(ed|ing) |Extra data|codec|Error tokenizing|delimiter")
"""Words of those who read JSON, CSV and text for us."""
READ_ELSEWHERE = {
    "report {} -o out.html": ("plan.json",),
    "report plan.json {} -o out.html": ("plan.json",),
    "report plan.json mlp:tiny --verification {} -o out.html": ("verdicts.json",),
    "report plan.json mlp:tiny --robust {} -o out.html": ("robust.json",),
}
"""What takes seconds, and is read in tests of its own."""
ALL_BUT = {
    ("schedule {} --quiet", "instances.json"): "holds a list of 1; give a file with one problem",
    ("explain {} --program mlp:tiny", "pipeline.json"): "without the plans of its stages",
    ("explain plan.json --program mlp:tiny --against {}", "pipeline.json"): "is for one mesh, and",
    ("search mlp:tiny --machine v5e-8 --quiet --require {}", "logical.toml"): "weights.up",
}
"""What fits the place and is still refused, and why."""


@pytest.fixture(scope="module", autouse=True)
def files():
    """A file of every kind in the working directory, and commands that answer at once."""
    with in_a_folder_of_files():
        write_every_file()
        yield


def place_of(line):
    """The command of a line, and the name of the option whose file is `{}`."""
    words = line.format("PLACE").split()
    parsed = vars(parser_of_commands().parse_args(words))
    command = " ".join(words[:2]) if words[0] == "bench" else words[0]
    (name,) = (n for n, v in parsed.items() if "PLACE" in str(v) and n not in ("run", "command"))
    return command, name


def answer(line, name):
    """The exit code of a line with a file, or the message that ends it."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            options = parser_of_commands().parse_args(line.format(name).split())
            return options.run(options)
        except CommandError as error:
            return str(error)


def test_every_kind_is_told_and_has_a_file():
    known = [kind.what for kind in kinds.KINDS]
    assert len(set(known)) == len(known)
    for what, names in KINDS.items():
        for name in names:
            kind = kinds.kind_of_file(name)
            assert (kind.what if kind else "") == what, name
    assert set(known) == KINDS.keys() - {""}
    left = set(os.listdir(".")) - {name for names in KINDS.values() for name in names}
    assert left == set()


def test_every_place_for_a_file_is_here():
    metavars = {"PLAN", "FILE", "TABLE", "OTHER", "MACHINE", "MESHES", "WORDS", "PROGRAM", "PATH"}
    metavars |= {"PROBLEM", "OLD.csv"}
    found = set()
    for words, parser in commands(parser_of_commands()):
        for action in parser._actions:
            writes = any(WRITES.get(option) == action.dest for option in action.option_strings)
            if action.metavar in metavars and not writes and action.dest != "tokens":
                found.add((words, action.dest))
    here = {place_of(line) for line in LINES if "--sweep machine={}" not in line}
    assert here == found
    assert all(name in reads(command) for command, name in here)
    assert {(command, name) for command in HERE for name in HERE[command]} <= here


@pytest.mark.parametrize("line", LINES)
def test_it_is_read_or_named(line):
    command, option = place_of(line)
    wanted = reads(command)[option]
    for what, names in KINDS.items():
        for name in names:
            if name in READ_ELSEWHERE.get(line, ()):
                continue
            said = answer(line, name)
            if what in wanted.kinds and what not in ("a table", "Python"):
                assert said == 0 or ALL_BUT.get((line, name), "never") in str(said), said
            elif what and what not in wanted.kinds:
                kind = next(kind for kind in kinds.KINDS if kind.what == what)
                made = f", which `{kind.made}` writes" if kind.made else ""
                assert said == f"{name!r} holds {what}{made}, and {wanted.noun}; {kind.use}"
            elif isinstance(said, str):
                assert name in said
                assert not PARSERS.search(said), said
