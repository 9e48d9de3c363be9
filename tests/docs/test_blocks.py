"""Code in the README and in `docs/` is true: Python runs, and files load."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from typing import Any

import pytest

import autoshard
from autoshard.cli.main import main
from tests.docs.pages import ROOT, all_blocks, block

KINDS = {
    "python": "test_python_blocks_run",
    "python cluster": "tests/lower/test_distributed.py",
    "sh": "test_commands.py, and test_your_model_in_five_minutes",
    "text": "what is printed",
    "toml": "test_the_machine_file_loads",
    "toml compiler": "test_the_compiler_may_be_a_table",
    "toml requirements": "test_the_requirements_file_loads",
    "toml prices": "tests/study/whatif/test_words.py",
    "json": "tests/cli/test_calibrate.py",
    "json schedule": "test_python_blocks_run",
}
"""Every kind of block, and what holds it to the code."""
FIRST = "docs/start/your-model.md"


def test_every_block_is_of_a_kind_that_is_tested():
    assert {one.kind for one in all_blocks() if not one.title} == KINDS.keys()


def test_blocks_that_show_a_file_are_that_file():
    shown = {one.title: one.text for one in all_blocks() if one.title}
    assert [name for name in shown if not (ROOT / name).exists()] == ["model.py"]
    files = {str(path.relative_to(ROOT)) for path in (ROOT / "examples").glob("*.py")}
    assert shown.keys() - {"model.py"} == files
    assert [name for name in files if shown[name] != (ROOT / name).read_text()] == []


def run(one: Any, names: dict[str, Any]) -> None:
    code = compile("\n" * one.line + one.text, one.page, "exec")
    exec(code, names)


def test_python_blocks_run(tmp_path, monkeypatch, capsys):
    """The README's first, then those of each page, which go on from them."""
    import jax

    if len(jax.devices()) != 8:
        pytest.skip("the README's example runs on eight devices")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "heavy-ends.json").write_text(block("guide/schedules.md", "json schedule"))
    python = [one for one in all_blocks() if one.kind == "python"]
    prepare, *others = [one for one in python if one.page == "README.md"]
    first: dict[str, Any] = {}
    run(prepare, first)
    expected, _ = jax.jit(first["step"])(first["weights"], first["batch"])
    for one in others:
        run(one, first)
    # 16,384 squares are summed in float32, in another order on each device
    assert float(first["loss"]) == pytest.approx(float(expected), rel=1e-4)
    names: dict[str, Any] = {}
    written = {one.text for one in python if one.page == "README.md"}
    for page in dict.fromkeys(one.page for one in python):
        ours = [one for one in python if one.page == page and one.text not in written]
        if page in ("README.md", FIRST) or not ours:
            continue
        of_page = dict(first)
        for one in ours:
            run(one, of_page)
        names |= {name: value for name, value in of_page.items() if first.get(name) is not value}
    assert float(names["loss_again"]) <= float(first["loss"])  # the same step, one update later
    assert str(names["types"]) == "output 0: f32[32, 1024]{V: data}"
    assert names["again"] == autoshard.Plan.from_json(
        json.loads(json.dumps(first["plan"].to_json()))
    )
    assert "[0]['up'] " in capsys.readouterr().out
    assert "sdy.sharding_constraint" in names["text"]
    assert len(names["blob"]) > 0
    assert len(names["found"].frame()) == 8
    assert len(names["unsure"].numbers) >= 6
    assert names["schedule"].value == 312
    schedule = names["schedule"]
    assert schedule.bound <= schedule.value <= 1.1 * schedule.bound


def test_your_model_in_five_minutes(tmp_path, monkeypatch, capsys):
    """What a newcomer does first, command by command, and then the Python of the page."""
    import jax

    if len(jax.devices()) != 8:
        pytest.skip("the page's example runs on eight devices")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(tmp_path)
    ours = [one for one in all_blocks() if one.page == FIRST]
    (tmp_path / "model.py").write_text(next(one.text for one in ours if one.title))
    lines = [line for one in ours if one.kind == "sh" for line in one.text.splitlines()]
    commands = [shlex.split(line)[1:] for line in lines if line.startswith("autoshard")]
    assert [words[0] for words in commands] == ["search", "verify", "report", "explain", "explain"]
    for words in commands:
        assert main(words) == 0, capsys.readouterr().err
    assert "<title>" in (tmp_path / "plan.html").read_text()
    try:
        names: dict[str, Any] = {}
        losses = []
        for one in ours:
            if one.kind == "python":
                run(one, names)
                losses.append(float(names["loss"]))
    finally:
        sys.modules.pop("model", None)
    assert losses == pytest.approx(unplanned(names, len(losses)), rel=1e-3)


def unplanned(names: dict[str, Any], count: int) -> list[float]:
    """The losses of the first steps of the page, on one device."""
    import jax

    params = names["init"](jax.random.key(0))
    state, losses = names["optimizer"].init(params), []
    for _ in range(count):
        loss, params, state = jax.jit(names["step"])(params, state, names["batch"])
        losses.append(float(loss))
    return losses


def test_ten_lines_are_ten_lines():
    prepare, lines, *_ = [
        one.text for one in all_blocks() if (one.page, one.kind) == ("README.md", "python")
    ]
    assert len([line for line in lines.split("\n") if line]) <= 10
    assert prepare.startswith("import jax\n")


def test_the_readme_is_one_page():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_the_machine_file_loads(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(block("guide/machines.md", "toml"))
    machine = autoshard.load_machine(str(path))
    assert machine.chips == 16
    assert [level.chips for level in machine.network] == [8, 2]


def test_the_compiler_may_be_a_table():
    from autoshard.machine.load import parse

    text = block("guide/machines.md", "toml").replace('compiler = "xla:gpu"', "#")
    text += block("guide/machines.md", "toml compiler")
    compiler = parse(text, where="the page").chip.compiler
    assert (compiler.name, compiler.workspace_bytes) == ("xla:gpu", 3.4e7)


def test_the_requirements_file_loads(tmp_path):
    from autoshard.problem.requirements.text import read_file

    path = tmp_path / "requirements.toml"
    path.write_text(block("guide/requirements.md", "toml requirements"))
    assert [str(one) for one in read_file(path)][-1] == "logical rules mlp=model"


def test_packages_are_those_of_the_architecture():
    root = os.path.dirname(autoshard.__file__)
    table = (ROOT / "docs/architecture.md").read_text().split("| package | what it is |")[1]
    cells = [row.split("|")[1] for row in table.split("\n\n")[0].split("\n")[2:]]
    named = re.findall(r"`([a-z_]+)`", " ".join(cells))
    present = {
        name.removesuffix(".py")
        for name in os.listdir(root)
        if name.endswith(".py") or os.path.exists(os.path.join(root, name, "__init__.py"))
    }
    assert sorted(named) == sorted(present - {"__init__", "__main__", "benchmarks"})
