"""What a notebook shows of a plan."""

from __future__ import annotations

import importlib
from types import SimpleNamespace

from IPython.core.formatters import DisplayFormatter

from autoshard.machine.load import load
from autoshard.show.notebook import SHOWN, register
from autoshard.study.whatif.table import WhatIf
from tests.problem.requirements.programs import train_program
from tests.show.reading import read
from tests.show.test_page import toy


def test_a_notebook_shows_a_plan():
    shell = SimpleNamespace(display_formatter=DisplayFormatter())
    register(shell)
    shown, _ = shell.display_formatter.format(toy())
    found = read(shown["text/html"])
    text = found.all_text()
    assert "toy on v5e-8" in text
    assert "Which devices hold which part" in text
    assert "script" not in found.tags
    assert "h2" not in found.tags


def test_a_notebook_shows_machines_programs_and_sweeps():
    shell = SimpleNamespace(display_formatter=DisplayFormatter())
    register(shell)
    sweep = WhatIf("llama", (), "step")
    shown = {}
    for one in (load("v5p-64"), train_program(), sweep):
        html = shell.display_formatter.format(one)[0]["text/html"]
        found = read(html)
        assert "script" not in found.tags
        shown[type(one).__name__] = found.all_text()
    assert "2.77 TB/s" in shown["Machine"]
    assert "weights.up" in shown["Program"]
    assert "llama" in shown["WhatIf"]


def test_what_shows_itself_is_there():
    for module, name in SHOWN:
        assert hasattr(importlib.import_module(module), name)


def test_a_plan_is_printed_in_a_few_lines():
    plan = toy()
    lines = str(plan).splitlines()
    assert lines[0].startswith("toy on v5e-8, mesh ")
    assert [line.split(":")[0].strip() for line in lines[1:]] == [
        *("step", "memory", "proof", "best scheme", "collectives")
    ]
    assert repr(plan).startswith("<Plan of toy on v5e-8")
