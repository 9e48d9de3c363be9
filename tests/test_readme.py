"""The README is true: its Python runs, its machine file loads, its commands and modules exist."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import autoshard
from autoshard.cli.main import main

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.DOTALL | re.MULTILINE)


def test_python_blocks_run(tmp_path, monkeypatch, capsys):
    import jax

    if len(jax.devices()) != 8:
        pytest.skip("the README's example runs on eight devices")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "heavy-ends.json").write_text(blocks("json schedule")[0])
    prepare, run, *others = blocks("python")
    names: dict[str, Any] = {}
    exec(compile(prepare, "README.md", "exec"), names)
    expected, _ = jax.jit(names["step"])(names["weights"], names["batch"])
    for block in (run, *others):
        exec(compile(block, "README.md", "exec"), names)
    # 16,384 squares are summed in float32, in another order on each device
    assert float(names["loss"]) == pytest.approx(float(expected), rel=1e-4)
    assert float(names["loss_again"]) <= float(names["loss"])  # the same step, one update later
    assert str(names["types"]) == "output 0: f32[32, 1024]{V: data}"
    written = json.loads(json.dumps(names["plan"].to_json()))
    assert names["again"] == autoshard.Plan.from_json(written)
    assert "[0]['up'] " in capsys.readouterr().out
    assert "sdy.sharding_constraint" in names["text"]
    assert len(names["blob"]) > 0
    assert len(names["found"].frame()) == 8
    assert len(names["unsure"].numbers) >= 6
    assert names["schedule"].value == 312
    schedule = names["schedule"]
    assert schedule.bound <= schedule.value <= 1.1 * schedule.bound


def test_ten_lines_are_ten_lines():
    assert len([line for line in blocks("python")[1].split("\n") if line]) <= 10


def test_the_machine_file_loads(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(blocks("toml")[0])
    machine = autoshard.load_machine(str(path))
    assert machine.chips == 16
    assert [level.chips for level in machine.network] == [8, 2]


def test_the_compiler_may_be_a_table():
    from autoshard.machine.load import parse

    text = blocks("toml")[0].replace('compiler = "xla:gpu"', "#") + blocks("toml compiler")[0]
    compiler = parse(text, where="README").chip.compiler
    assert (compiler.name, compiler.workspace_bytes) == ("xla:gpu", 3.4e7)


def test_the_requirements_file_loads(tmp_path):
    from autoshard.problem.requirements.text import read_file

    path = tmp_path / "requirements.toml"
    path.write_text(blocks("toml requirements")[0])
    assert [str(one) for one in read_file(path)][-1] == "logical rules mlp=model"


def test_its_commands_exist(capsys):
    commands = set(re.findall(r"`?autoshard ([a-z]+)(?= |`)", README)) - {"takes"}
    assert commands >= {
        "search",
        "verify",
        "show",
        "solve",
        "bench",
        "schedule",
        "programs",
        "machines",
        "whatif",
        "robust",
        "serving",
    }
    for command in commands:
        assert main([command, "--help"]) == 0


def test_its_options_exist(capsys):
    parts = ("fidelity", "habits", "plans", "schedules", "all")
    benches = [["bench", part] for part in parts]
    for command in (
        ["search"],
        ["verify"],
        ["explain"],
        ["report"],
        ["check"],
        ["calibrate"],
        ["schedule"],
        ["whatif"],
        ["robust"],
        ["serving"],
        *benches,
    ):
        main([*command, "--help"])
    text = capsys.readouterr().out
    for option in set(re.findall(r"--[a-z][a-z-]+", README)):
        assert option in text, option


def test_its_exit_codes_are_those_of_the_command_line():
    from autoshard.cli import common

    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", README, flags=re.MULTILINE)}
    codes = {common.USAGE, common.INFEASIBLE, common.TIME_LIMIT, common.FAILED}
    assert listed == codes | {common.INTERRUPTED, 0}


def test_its_modules_exist_and_none_is_left_out():
    root = Path(autoshard.__file__).parent
    table = README.split("## Packages")[1].split("\n\n")[2]
    cells = [row.split("|")[1] for row in table.split("\n")[2:]]
    named = re.findall(r"`([a-z_]+\*?)`", " ".join(cells))
    present = {p.stem for p in root.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
    present -= {"__init__", "__main__"}
    patterns = [re.compile(name.replace("*", ".*")) for name in named]
    assert [n for n in sorted(present) if not any(p.fullmatch(n) for p in patterns)] == []
    assert [p.pattern for p in patterns if not any(p.fullmatch(n) for n in present)] == []
