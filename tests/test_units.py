"""Text as people read it."""

from __future__ import annotations

import ast
import re
from itertools import pairwise
from pathlib import Path

import pytest

import autoshard
from autoshard.units import (
    counted,
    format_number,
    format_percent,
    listed,
    seconds_like,
    visible,
    with_article,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (133594.2, "133,594"), (0.05, "0.05"), (0.003, "3 m"), (2e-8, "20 n")],
)
def test_numbers_without_a_unit_have_a_prefix_where_they_are_small(value, text):
    assert format_number(value) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("params.w1 → ü\n\t-", "params.w1 → ü\n\t-"),
        ("\x1b[31m", "\\x1b[31m"),
        ("a\x00b\x7f\r", "a\\x00b\\x7f\\r"),
        ("\ud800", "\\ud800"),
        ("\u2028\uffff", "\\u2028\\uffff"),
    ],
)
def test_what_no_reader_sees_is_written_out(text, shown):
    assert visible(text) == shown
    assert visible(shown) == shown
    shown.encode()


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        (1, "axis", "1 axis"),
        (2, "axis", "2 axes"),
        (0, "fake device", "0 fake devices"),
        (3, "mesh", "3 meshes"),
        (2, "entry", "2 entries"),
        (2, "way", "2 ways"),
        (1, "process", "1 process"),
        (2, "process", "2 processes"),
    ],
)
def test_nouns_agree_with_their_numbers(number, noun, text):
    assert counted(number, noun) == text


def test_counted_numbers_take_a_form():
    assert counted(12345, "row", ",") == "12,345 rows"


COUNTS = ("count", "counts", "chips", "devices", "rows", "stages", "size", "rank", "ndim", "needed")
"""Last parts of names of numbers that may be 1."""
SEVERAL = {
    "microbatches", "parts", "merges", "layouts",  # of which there is one in no message
    "is", "was", "has", "as", "this", "its", "does", "holds", "times", "others", "us", "ms",
    "needs",
}  # fmt: skip
AT_LEAST_TWO = {
    "autoshard/cli/parsers/arguments.py": "has more than {len(AXES)} axes: three",
    "autoshard/compiler/hlo/groups.py": "an odd number of devices, which is told of pairs",
    "autoshard/machine/load.py": "dimensions of a torus",
    "autoshard/models/maxtext/own_file.py": "one of {len(mine)} inputs",
    "autoshard/models/maxtext/serve.py": "constraints of a model: hundreds",
    "autoshard/models/maxtext/step.py": "constraints of a model: hundreds",
    "autoshard/plan/types/op_types.py": "elements that an axis does not divide",
    "autoshard/problem/requirements/demands.py": "arrays of a program that is completed",
    "autoshard/problem/requirements/records.py": "count {self.count} and bytes",
    "autoshard/program/rules/record.py": "one of {len(names)} factors",
    "autoshard/lower/mpmd/cut/stages.py": "a number that was asked for, and is more than there is",
    "autoshard/lower/numbers/numeric.py": "elements that differ, of many",
    "autoshard/search/meshes/choices.py": "meshes that do not share layers",
    "autoshard/search/prepare.py": "an axis size that divides nothing",
    "autoshard/solve/problem.py": "choices of an edge, rows by columns",
    "autoshard/show/sweep/verdict.py": "so many of {len(sweep.rows)} rows",
    "autoshard/study/measured/page.py": "so many of many runs",
    "autoshard/study/measured/question.py": "devices of published runs",
    "autoshard/study/refine.py": "none of the compiled plans",
}


def is_plural(text):
    """Whether a noun in the plural comes first, or after one other word."""
    first, second = (*re.findall(r"[a-z-]+", text.split("\n")[0][:40]), "", "")[:2]
    if not text.startswith(f" {first}") or first in SEVERAL:
        return False
    return first.endswith("s") or (second.endswith("s") and second not in SEVERAL)


def unagreed():
    """Numbers in texts before a noun in the plural, though they may be 1."""
    root = Path(autoshard.__file__).parents[1]
    for file in sorted((root / "autoshard").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.JoinedStr):
                continue
            for number, text in pairwise(node.values):
                if isinstance(number, ast.FormattedValue) and isinstance(text, ast.Constant):
                    said = ast.unparse(number.value)
                    plain = isinstance(number.value, ast.Name | ast.Attribute)
                    named = plain and re.split(r"[._]", said)[-1] in COUNTS
                    may = said.startswith("len(") or named
                    if may and is_plural(str(text.value)):
                        yield str(file.relative_to(root)), f"{{{said}}}{text.value}"


def test_nouns_agree_with_numbers_that_may_be_one():
    found = list(unagreed())
    assert [one for one in found if one[0] not in AT_LEAST_TWO] == []
    assert {file for file, _ in found} == set(AT_LEAST_TWO)


@pytest.mark.parametrize(
    ("share", "form", "text"),
    [(0.3689, ".1f", "36.9 %"), (0.02, "+.2f", "+2.00 %"), (-0.5, ".0f", "-50 %")],
)
def test_shares_are_percentages_with_a_space(share, form, text):
    assert format_percent(share, form) == text


TYPED = {"autoshard/cli/parsers/arguments.py": "`1%`, as it is written behind an option"}
"""Files with percentages as people write them where a space would need quotes."""


def other_percentages():
    """Percentages that are not written by `format_percent`, but for lengths of style sheets."""
    root = Path(autoshard.__file__).parents[1]
    for file in sorted(
        one for f in ("autoshard", "benchmarks") for one in (root / f).rglob("*.py")
    ):
        name = str(file.relative_to(root))
        tree = ast.parse(file.read_text())
        inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)
                  for part in node.values}  # fmt: skip
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                said = "".join(
                    part.value if isinstance(part, ast.Constant) else
                    "0%" if "%" in ast.unparse(part.format_spec or ast.Constant("")) else "0"
                    for part in node.values if isinstance(part, ast.Constant | ast.FormattedValue)
                )  # fmt: skip
                spaced = any(
                    isinstance(number, ast.FormattedValue) and re.match(" %(?!%)", str(text.value))
                    for number, text in pairwise(node.values) if isinstance(text, ast.Constant)
                )  # fmt: skip
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                said, spaced = "" if id(node) in inside else node.value, False
            else:
                continue
            tight = re.search(r"\d%(?!d|s)|:[^{}]*%\}", re.sub(r"[a-z-]+:-?\d+%", "", said))
            if (tight or spaced) and name != "autoshard/units.py":
                yield name, said


def test_percentages_are_spelled_in_one_way():
    found = list(other_percentages())
    assert [one for one in found if one[0] not in TYPED] == []
    assert {file for file, _ in found} == set(TYPED)


def test_names_in_a_sentence_and_nouns_with_their_articles():
    assert [listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c"])] == [
        "a", "a and b", "a, b and c",
    ]  # fmt: skip
    assert [with_article("plan"), with_article("answer")] == ["a plan", "an answer"]


def test_seconds_are_written_in_the_unit_of_others():
    assert [seconds_like(0.5, 2.675), seconds_like(0.0, 0.012), seconds_like(2e-3, 0.012)] == [
        "0.5 s", "0 ms", "2 ms",
    ]  # fmt: skip
