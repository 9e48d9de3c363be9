"""What a notebook shows of a plan."""

from __future__ import annotations

import importlib
import json
from types import SimpleNamespace

from IPython.core.formatters import DisplayFormatter

from autoshard.machine.load import load
from autoshard.search.meshes.plan import PipelinePlan
from autoshard.show.notebook import SHOWN, register
from autoshard.show.sweep.file import read_sweep
from autoshard.show.sweep.serving_file import read_serving
from autoshard.study.frontier import Frontier
from autoshard.study.robust.record import Robust
from autoshard.study.whatif.table import WhatIf
from tests.cli.known_explanations import difference, explanation
from tests.kept import write_kinds
from tests.problem.requirements.programs import train_program
from tests.show.reading import read
from tests.show.test_page import toy

KINDS = {
    "sweep": (lambda data: read_sweep(json.dumps(data)), "tokens/s a chip"),
    "serving": (lambda data: read_serving(json.dumps(data)), "Largest batch that fits"),
    "frontier": (Frontier.from_json, "a GiB less costs"),
    "robust": (Robust.from_json, "the plan stays best"),
    "pipeline": (PipelinePlan.from_json, "once a step"),
}
"""What a notebook shows beside plans, programs and machines, and words that stand there."""


def test_a_notebook_shows_a_plan():
    shell = SimpleNamespace(display_formatter=DisplayFormatter())
    register(shell)
    shown, _ = shell.display_formatter.format(toy())
    found = read(shown["text/html"])
    text = found.all_text()
    assert "toy on v5e-8" in text
    assert "Which devices hold which part" in text
    assert not {"script", "button", "h2"} & set(found.tags)


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


def test_a_notebook_shows_all_that_commands_answer(tmp_path):
    """As it shows them: a heading of a notebook is its own, so that none is of the second rank."""
    write_kinds(tmp_path)
    shell = SimpleNamespace(display_formatter=DisplayFormatter())
    register(shell)
    data = {name: json.loads((tmp_path / f"{name}.json").read_text()) for name in KINDS}
    for name, (read_back, said) in KINDS.items():
        one = read_back(data[name])
        found = read(shell.display_formatter.format(one)[0]["text/html"])
        assert not {"script", "button", "h2"} & set(found.tags), name
        assert said in found.all_text(), name


def test_an_explanation_is_its_text():
    shell = SimpleNamespace(display_formatter=DisplayFormatter())
    register(shell)
    for one in (explanation(0), difference()):
        text = read(shell.display_formatter.format(one)[0]["text/html"]).all_text()
        assert text == " ".join(str(one).split())


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
