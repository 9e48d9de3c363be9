"""Every command on every page is one that the command line takes."""

from __future__ import annotations

import argparse
import importlib.util
import re
import shlex
import tomllib
from collections.abc import Iterator

import pytest

from autoshard.cli import common
from autoshard.cli.main import parser_of_commands
from tests.docs.pages import DOCS, PAGES, ROOT, all_blocks, name_of, sentences_of

TOOLS = {"ruff", "pyright", "pytest", "mkdocs"}
"""Of the extras `checks` and `docs`."""


def lines() -> Iterator[tuple[str, str]]:
    """Where commands stand, and the commands: continued lines are one, `a && b` are two."""
    for one in all_blocks():
        if one.kind == "sh":
            for number, line in enumerate(one.text.replace("\\\n", " ").splitlines(), one.line):
                for part in line.split(" && "):
                    yield f"{one.page}:{number}", part.partition(" > ")[0].strip()


COMMANDS = sorted({(line, place) for place, line in lines() if line})
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@pytest.mark.parametrize(("line", "place"), COMMANDS, ids=[line for line, _ in COMMANDS])
def test_a_command_is_one(line, place):
    words = shlex.split(line, comments=True)
    while words and "=" in words[0]:  # a variable of the environment
        words.pop(0)
    match words:
        case ["autoshard", *rest]:
            parser_of_commands().parse_args(rest)
        case ["pip", "install", *rest]:
            for extra in re.findall(r"\[(.*?)\]", " ".join(rest)):
                assert set(extra.split(",")) <= EXTRAS.keys()
        case ["python", "-m", module, *_]:
            assert importlib.util.find_spec(module) is not None
        case ["python", file, *_]:
            assert (ROOT / file).is_file()
        case [tool, *_]:
            assert tool in TOOLS, place


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for one in action.choices.values():
                yield from parsers(one)


def options_of_script(code: str) -> set[str]:
    """The options that the script of `python FILE ...` adds to its parser; none of other code."""
    named = re.match(r"python ([\w/]+\.py)\b", code)
    if named is None:
        return set()
    return set(re.findall(r'add_argument\(\s*"(--[a-z-]+)"', (ROOT / named[1]).read_text()))


def test_commands_and_options_in_sentences_exist():
    every = list(parsers(parser_of_commands()))
    known = {option for parser in every for option in parser._option_string_actions}
    names = {parser.prog.split()[1] for parser in every if " " in parser.prog}
    wrong = []
    for page in PAGES:
        for code in re.findall(r"`([^`\n]+)`", sentences_of(page)):
            if code.startswith(("--xla", "XLA_FLAGS", "mkdocs", "pytest")):
                continue
            used = re.match(r"autoshard ([a-z]+)(?= |$)", code)
            wrong += [f"{name_of(page)}: {code}"] * bool(used and used[1] not in names)
            taken = options_of_script(code) or known
            wrong += [
                f"{name_of(page)}: {option}"
                for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", code)
                if option not in taken
            ]
    assert wrong == []


def test_exit_codes_are_those_of_the_command_line():
    page = (DOCS / "guide/command-line.md").read_text()
    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", page, flags=re.MULTILINE)}
    codes = {common.USAGE, common.INFEASIBLE, common.TIME_LIMIT, common.FAILED}
    assert listed == codes | {common.INTERRUPTED, 0}
