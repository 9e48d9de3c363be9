"""What commands refuse, `autoshard search` above all: every message whole, every exit code."""

from __future__ import annotations

import argparse
import importlib
import re

import pytest

from autoshard.cli.main import main, parser_of_commands
from autoshard.cli.parsers import arguments
from tests.cli.helpers import SEARCH, line_of, refused


def test_unknown_programs(folder, capsys):
    assert refused(capsys, SEARCH.format("lama3-8b")) == (
        "no built-in program is called 'lama3-8b'; "
        "did you mean llama3-8b or llama3-1b?\n"
        "  `autoshard programs` lists them; "
        "your own is module:function or path/to/file.py:function"
    )
    assert refused(capsys, SEARCH.format("steps.py")) == (
        "'steps.py' names no function; write steps.py:function"
    )
    assert refused(capsys, SEARCH.format("step.py:good")) == (
        "there is no file 'step.py'; did you mean steps.py?"
    )
    assert refused(capsys, SEARCH.format("steps.py:godo")) == (
        "steps.py has no function 'godo'; did you mean good?"
    )
    assert refused(capsys, SEARCH.format("steps.py:number")) == (
        "steps.py:number is not a function but a value of type 'int'"
    )
    assert refused(capsys, SEARCH.format("no.such.module:good")) == (
        "there is no module 'no.such.module'"
    )


def test_functions_that_do_not_give_a_step(folder, capsys):
    assert refused(capsys, SEARCH.format("steps.py:raising")) == (
        f"steps.py:raising fails at {line_of(folder, 'return {}')}: KeyError: 'a'"
    )
    assert refused(capsys, SEARCH.format("steps.py:nothing")) == (
        "steps.py:nothing returned a value of type 'int'; "
        "it must return (fn, args) or (fn, args, options)"
    )
    assert refused(capsys, SEARCH.format("steps.py:model")).endswith(
        "it must return (fn, args) or (fn, args, options): the function that trains or runs it, "
        "and the arguments of that"
    )
    assert refused(capsys, SEARCH.format("steps:one")) == (
        "steps:one returned 1 value; it must return (fn, args) or (fn, args, options)"
    )
    assert refused(capsys, SEARCH.format("steps.py:wrong")) == (
        "steps.py:wrong: it must return (fn, args) or (fn, args, options):\n"
        "  fn is of type 'int', not a function\n"
        "  args is of type 'int', not a tuple with one entry per argument\n"
        "  options has the key 'donate'; "
        "known: donate_argnums, trip_counts, user_rules, host, notes"
    )


def test_files_that_do_not_import(folder, capsys):
    (folder / "syntax.py").write_text("def f(:\n    pass\n")
    assert refused(capsys, SEARCH.format("syntax.py:f")) == (
        "syntax.py cannot be imported at syntax.py:1: SyntaxError: invalid syntax"
    )
    (folder / "needs.py").write_text("import json\nimport no_such_thing\n")
    for program in ("needs.py:f", "needs:f"):
        message = refused(capsys, SEARCH.format(program))
        assert message.endswith("needs.py:2: ModuleNotFoundError: No module named 'no_such_thing'")


def test_a_function_that_does_not_trace(folder, capsys):
    message = refused(capsys, SEARCH.format("steps.py:broken"))
    assert message.startswith("step does not trace at ")
    assert f"{line_of(folder, '        return x @ w')}: TypeError: dot_general requires" in message


def test_an_op_without_a_rule(folder, capsys):
    message = refused(capsys, SEARCH.format("steps.py:foreign"))
    assert message.startswith(
        "no sharding rule for 1 equation:\n"
        "  - ffi_call 'double': (float32[32,8]) -> (float32[32,8]) at "
    )
    assert 'user_rules={\n    "double": UserRule(' in message


def test_unknown_machines(capsys):
    message = refused(capsys, "search mlp:tiny --machine v5q-64")
    assert message.startswith("no machine 'v5q-64'\n  did you mean v5p or v5e?\n")
    assert refused(capsys, "search mlp:tiny --machine none.toml") == (
        "there is no machine file 'none.toml'; give the path of a TOML file, or a name"
    )


def test_meshes_that_do_not_fit(folder, capsys):
    assert refused(capsys, SEARCH.format("mlp:tiny") + " --mesh data=3,model=4") == (
        "mesh data=3, model=4 has 12 devices, but v5e-8 has 8 chips; "
        "give axes whose sizes multiply to 8"
    )
    assert refused(capsys, SEARCH.format("steps.py:odd") + " --mesh data=8") == (
        "mesh data=8 cannot be used by steps.py:odd:\n"
        "  axis data=8 divides no dimension of any value\n"
        "choose axis sizes that divide the batch or the model's dimensions"
    )


def test_infeasible_names_the_smallest_limit(capsys):
    words = SEARCH.format("mlp:tiny") + " --mesh x=8 --memory-limit 1KiB"
    message = refused(capsys, words, code=3)
    assert message.startswith("no plan fits the memory limit of 1.00 KiB per device on ")
    assert "found is 0 B" not in message
    assert re.search(r"try --memory-limit [1-9]\d*KiB$", message)


def test_conflicts_are_named(capsys):
    pins = "pin params.layers[0].up [x, None]", "pin params.layers[0].up [None, ?]"
    words = [*(SEARCH.format("mlp:tiny") + " --mesh x=8").split()]
    assert main([*words, *(word for pin in pins for word in ("--require", pin))]) == 3
    message = capsys.readouterr().err
    assert "these cannot be kept together:" in message
    assert all(f"  - {pin} (--require)\n" in message for pin in pins)


def test_time_limit_without_a_plan(folder, capsys, monkeypatch):
    search = importlib.import_module("autoshard.search.search")

    def nothing_found(*_: object, **options: float) -> None:
        raise search.NoPlanError(f"nothing in {options['time_limit']:g} s")

    monkeypatch.setattr(search, "search", nothing_found)
    words = SEARCH.format("steps.py:good") + " --time-limit 7s"
    assert refused(capsys, words, code=4) == "nothing in 7 s"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "the following arguments are required: PROGRAM\n"),
        ("mlp:tiny", "one of the arguments --machine --meshes is required\n"),
        (
            "mlp:tiny --machine v5e-8 --mesh data",
            "argument --mesh: 'data' is not a mesh axis; "
            "write names and sizes such as data=2,model=4, or 2x4\n",
        ),
        (
            "mlp:tiny --machine v5e-8 --mesh x=2,x=4",
            "argument --mesh: the mesh axis 'x' is given twice; name each once\n",
        ),
        (
            "mlp:tiny --machine v5e-8 --memory-limit lots",
            "argument --memory-limit: 'lots' is not a size; write 60GiB, 80GB or bytes\n",
        ),
        (
            "mlp:tiny --machine v5e-8 --memory-limit 0GiB",
            "argument --memory-limit: '0GiB' is not an amount of memory; write 60GiB\n",
        ),
        (
            "mlp:tiny --machine v5e-8 --gap wide",
            "argument --gap: 'wide' is not a share; write 1% or 0.01\n",
        ),
        (
            "mlp:tiny --machine v5e-8 --gap 100%",
            "argument --gap: '100%' is not from 0 % to 99 %; write 1% or 0.01\n",
        ),
        (
            "mlp:tiny --machine v5e-8 --time-limit soon",
            "argument --time-limit: 'soon' is not a number of seconds; write 60\n",
        ),
        (
            "mlp:tiny --machine v5e-8 --time-limit 0",
            "argument --time-limit: '0' must be more than 0 and less than 1e9 seconds; write 60\n",
        ),
    ],
)
def test_words_that_mean_nothing(capsys, words, message):
    assert refused(capsys, f"search {words}") == f"{message}  see autoshard search --help"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "search mlp:tiny --machne v5e-8",
            "autoshard search has no option --machne; did you mean --machine?\n"
            "  one of the arguments --machine --meshes is required\n"
            "  see autoshard search --help",
        ),
        (
            "search mlp:tiny --machine v5e-8 -oplan.json --time=3 --quite --zzz 1",
            "autoshard search has no option --quite; did you mean --quiet or --require?\n"
            "  autoshard search has no option --zzz\n"
            "  see autoshard search --help",
        ),
        (
            "bench habits --onyl x",
            "autoshard bench habits has no option --onyl; did you mean --only?\n"
            "  see autoshard bench habits --help",
        ),
        (
            "--versoin programs --zzz",
            "autoshard programs has no option --zzz\n  see autoshard programs --help",
        ),
        (
            "--versoin",
            "autoshard has no option --versoin; did you mean --version?\n  see autoshard --help",
        ),
        (
            "show a.json b.json -- --json",
            "autoshard show takes no further words 'b.json', '--json'\n  see autoshard show --help",
        ),
    ],
)
def test_words_that_a_command_does_not_know(capsys, words, message):
    assert refused(capsys, words) == message


@pytest.mark.parametrize(
    "words",
    [
        "explain plan.json VALUE --program mlp:tiny",
        "explain plan.json --program mlp:tiny VALUE",
        "explain --program mlp:tiny plan.json VALUE",
        "explain --json plan.json --line a.py:3 VALUE --time-limit 3",
        "verify plan.json --trust VALUE",
        "verify --json plan.json --explicit VALUE",
        "check plan.json --machine v5e-8 VALUE",
        "report plan.json -o plan.html VALUE --trust",
        "annotate --quiet plan.json --trust VALUE",
        "machines --json VALUE",
    ],
)
def test_words_that_may_be_missing_stand_before_or_behind_options(words):
    parsed = vars(parser_of_commands().parse_args(words.split()))
    assert "VALUE" in (parsed.get("program"), *(parsed.get("value") or ()), parsed.get("machine"))


def test_words_that_may_be_missing_are_missing(capsys):
    for words in ("explain plan.json --json", "verify --trust plan.json --json", "machines --json"):
        parsed = vars(parser_of_commands().parse_args(words.split()))
        assert not parsed.get("value")
        assert parsed.get("program") is None
    assert refused(capsys, "verify plan.json a --trust b") == (
        "autoshard verify takes no further word 'b'\n  see autoshard verify --help"
    )


@pytest.mark.parametrize(
    ("read", "text", "why"),
    [
        (arguments.seconds, "1e10", "must be more than 0 and less than 1e9 seconds; write 60"),
        (arguments.amount, "inf", "must be more than 0 and finite; write 15e12"),
        (arguments.count, "many", "is not a whole number; write 4"),
        (arguments.count, "0", "must be at least 1; write 4"),
        (arguments.whole, "-1", "must be at least 0; write 4"),
        (arguments.numbers, "0.5,nan", "must be finite numbers above 0, such as 0.5,1.5"),
        (arguments.numbers, "inf", "must be finite numbers above 0, such as 0.5,1.5"),
    ],
)
def test_numbers_that_are_none(read, text, why):
    with pytest.raises(argparse.ArgumentTypeError) as caught:
        read(text)
    assert str(caught.value) == f"{text!r} {why}"


def test_what_several_meshes_do_not_have(capsys):
    words = "search mlp:tiny --meshes h100-1+h100-1 "
    assert refused(capsys, words + "--accumulate 1,2") == (
        "a pipeline has 2 microbatches or more: give --accumulate with --meshes numbers from 2 on, "
        "such as 8,16"
    )
    assert refused(capsys, words + "--accumulate 2 --microbatches 4") == (
        "--accumulate and --microbatches both say the microbatches of a pipeline: leave "
        "--microbatches out where the step is not written in microbatches"
    )
    words = "search llama3-8b --meshes h100-8+h100-8 --accumulate 16,8"
    assert refused(capsys, words) == (
        "llama3-8b has a parameter `microbatches`: with --meshes, give --microbatches 8,16 in "
        "place of --accumulate"
    )
