"""Every command looks as it is kept, on a narrow and a wide terminal and piped; none overflows."""

from __future__ import annotations

import argparse
import functools
import json

import pytest

from autoshard.cli import search
from autoshard.cli.kinds.files import kind_of_file
from autoshard.cli.kinds.text import PRINTERS
from autoshard.cli.main import main, parser_of_commands
from autoshard.cli.parsers.completion import SCRIPTS
from autoshard.plan.plan import Plan
from autoshard.program.fingerprint import is_of
from autoshard.search.meshes.plan import KIND as PIPELINE
from autoshard.solve.schedule.optimise.outcome_json import KIND as SCHEDULE
from tests.cli.snapshots import COMMANDS, FOLDER, in_a_folder_of_files, path_of, plain, printed
from tests.kept import write_kinds


@pytest.fixture(scope="module", autouse=True)
def files():
    """Files of every kind in the working directory, and commands that answer at once."""
    with in_a_folder_of_files():
        yield


VERSIONED = {
    "explain plan.json --program mlp:tiny",
    "check plan.json mlp:tiny",
    "calibrate times.csv --machine h100-8",
    "machines v5p-64",
}
"""Of which other versions of JAX, or other compilers, have other numbers."""
WHOLE = ("annotate", "completion")
"""Commands that print code, which is copied: no line of it is cut."""


@functools.cache
def as_kept():
    """Whether this JAX traces the program of the kept plan as the one that planned it."""
    return is_of(Plan.load("plan.json").fingerprint, search.find_program("mlp:tiny")[1])


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_looks_so(command):
    if command in VERSIONED and not as_kept():
        pytest.skip("this JAX traces mlp:tiny otherwise, and its compilers have other numbers")
    narrow, wide, piped = (printed(command, columns) for columns in (80, 200, None))
    shown = {"a terminal of 80 columns": narrow, "a terminal of 200 columns": wide, "a pipe": piped}
    parts = [f"==== {mode}\n{plain(text)}" for mode, text in shown.items()]
    assert "\n".join(parts) == path_of(command).read_text()
    assert "\x1b" not in piped
    for text, columns in ((narrow, 80), (wide, 200)):
        if command.startswith(WHOLE):
            continue
        text = text.partition("---- messages")[0]
        whole = [line for line in plain(text).splitlines() if not line.startswith("  autoshard ")]
        assert max(map(len, whole), default=0) <= columns
    assert "\u2026" not in piped


def test_no_snapshot_is_left_over():
    assert {file.name for file in FOLDER.iterdir()} == {path_of(one).name for one in COMMANDS}


def test_headings_are_bold_unless_that_is_not_wanted(monkeypatch):
    assert printed("show plan.json", 80).startswith("\x1b[1mmlp:tiny on v5e-8, mesh")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in printed("show plan.json", 80)


def test_every_kind_of_file_is_known_and_prints_as_json(tmp_path, capsys):
    write_kinds(tmp_path)
    names = set()
    for file in tmp_path.iterdir():
        data = json.loads(file.read_text())
        kind = kind_of_file(str(file))
        assert kind is not None, file.name
        names.add(kind.what)
        assert main(["show", str(file), "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == data
    assert names == PRINTERS.keys()
    for kind, what in ((PIPELINE, "a plan for several meshes"), (SCHEDULE, "a schedule")):
        (tmp_path / "kind.json").write_text(json.dumps({"kind": kind}))
        found = kind_of_file(str(tmp_path / "kind.json"))
        assert found is not None
        assert found.what == what


def test_a_plan_is_asked_for_and_another_file_is_named(capsys):
    assert main(["verify", "sweep.json"]) == 2
    said = "'sweep.json' holds a sweep, which `autoshard whatif` writes, and no plan"
    assert capsys.readouterr().err == f"autoshard: error: {said}; `autoshard show` prints it\n"


def test_what_a_terminal_would_obey_is_written_out(tmp_path, capsys):
    with open("plan.json") as file:
        data = json.load(file)
    data["program"] = "evil\x1b[2J"
    (tmp_path / "evil.json").write_text(json.dumps(data))
    assert main(["show", str(tmp_path / "evil.json")]) == 0
    assert capsys.readouterr().out.startswith("evil\\x1b[2J on v5e-8")


def commands(parser=None, words=()):
    """Every command and every benchmark, by its words, with its parser."""
    parser = parser or parser_of_commands()
    below = [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
    if not below:
        yield " ".join(words), parser
    for name, inner in below[0].choices.items() if below else ():
        yield from commands(inner, (*words, name))


def test_every_command_has_a_snapshot():
    missing = {
        words
        for words, _ in commands()
        if not any(f"{one} ".startswith(f"{words} ") for one in COMMANDS)
    }
    assert missing == set()


def test_every_command_answers_in_json():
    without = {
        words for words, parser in commands() if "--json" not in parser._option_string_actions
    }
    assert without == set()


FILES = ("show", "search", "whatif", "frontier", "serving", "robust", "solve", "schedule")
"""Commands that print what a file of theirs holds; `docs/reference/files.md` has the schemas."""
WITHOUT_UNIT = {
    "after", "before", "checks", "chips", "count", "of", "percentile90_error_after",
    "percentile90_error_before", "median_error_after", "median_error_before", "gap", "more",
    "others", "products", "range", "rows", "share", "turns",
    "value",  # whose `unit` stands beside it
}  # fmt: skip
"""Names of counts, of shares, and of numbers whose unit is another entry."""


def numbers_of(data):
    """Every number in JSON, with the name that it has."""
    for name, value in data.items() if isinstance(data, dict) else ():
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, dict) and name != "plan":
                yield from numbers_of(one)
            elif isinstance(one, int | float) and not isinstance(one, bool):
                yield name, one
    for one in data if isinstance(data, list) else ():
        yield from numbers_of(one)


def refused(word):
    """What Python writes for infinities and what is not a number, which JSON does not have."""
    raise AssertionError(word)


@pytest.mark.parametrize("command", COMMANDS)
def test_an_answer_in_json_is_json_whose_numbers_have_units(command, capsys):
    main([*command.split(), "--json"])
    data = json.loads(capsys.readouterr().out, parse_constant=refused)
    if command.startswith((*FILES, "bench")):
        return
    ends = ("seconds", "bytes", "_per_second")
    bare = {name for name, _ in numbers_of(data) if not name.endswith(ends)}
    assert bare <= WITHOUT_UNIT


def test_numbers_of_presets_are_in_units(capsys):
    main(["machines", "--json"])
    found = {one["machine"]: one for one in json.loads(capsys.readouterr().out)}
    assert found["h100-64"]["memory_bytes_per_second"] == 3.35e12
    assert found["v5p-64"]["network"]


@pytest.mark.parametrize("command", [one for one in COMMANDS if one.startswith("bench")])
def test_rows_of_a_benchmark_are_json_and_its_table_a_message(command, capsys):
    table = plain(printed(command, None)).partition("---- messages")[0]
    main([*command.split(), "--json"])
    out, err = capsys.readouterr()
    assert json.loads(out)["rows"]
    assert table in err


def test_scripts_of_shells_are_json(capsys):
    assert main(["completion", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["scripts"] == SCRIPTS
    assert main(["completion"]) == 2
    assert capsys.readouterr().err == (
        "autoshard: error: no SHELL is named; give one of bash, zsh, fish\n"
    )


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["sea"], ["search"]),
        (["search", "vit"], ["vit-l16"]),
        (["search", "mlp", "--machine", "v5p"], ["v5p-64", "v5p-8"]),
        (["search", "mlp", "--rem"], ["--remat"]),
        (["search", "mlp", "--remat", ""], ["offload", "respect", "search"]),
        (["frontier", "mlp", "--machine", "v5p-64", "--po"], ["--points"]),
        (["bench", "ha"], ["habits"]),
        (["machines", "gb200"], ["gb200-nvl72-72"]),
        (["show", ""], []),
    ],
)
def test_completion_offers_what_may_stand_there(words, offered, capsys):
    assert main(["completion", "--of", *words]) == 0
    assert capsys.readouterr().out.split() == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_asks_the_command_itself(shell, capsys):
    assert main(["completion", shell]) == 0
    assert "autoshard completion --of" in capsys.readouterr().out
