"""`autoshard search`: what it prints, writes and keeps, and what an interrupt leaves."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path

import pytest

from autoshard.cli.main import main
from autoshard.plan.plan import Plan
from tests.cli.helpers import SEARCH, refused


def test_search_prints_a_report_and_writes_the_plan(folder, capsys):
    words = "search steps.py:good --machine v5e-8 --mesh data=2,model=4 --quiet -o plan.json"
    assert main(words.split()) == 0
    out, err = capsys.readouterr()
    assert out.startswith("steps.py:good on v5e-8, mesh data=2, model=4 (8 devices)\n")
    for name in ("data parallel", "FSDP", "tensor parallel", "FSDP x TP", "FSDP x TP x sequence"):
        assert f"\n  {name} " in out
    assert err == ""
    plan = Plan.load("plan.json")
    assert (plan.program, plan.machine) == ("steps.py:good", "v5e-8")
    assert main(["show", "plan.json"]) == 0
    assert capsys.readouterr().out == out


def test_json_is_all_that_goes_to_stdout(folder, capsys):
    words = "search steps:counted --machine v5e-8 --mesh x=8 --json --no-baselines --gap 5%"
    assert main(words.split()) == 0
    out, err = capsys.readouterr()
    plan = Plan.from_json(json.loads(out))
    assert dict(plan.options) == {"trip_counts": 3, "donate_argnums": [0]}
    assert plan.baselines == ()
    assert "tracing steps:counted" in err


def test_the_mesh_is_searched_and_the_limit_is_kept(folder, capsys):
    words = "search steps.py:good --machine v5e-8 --memory-limit 7.25KiB --json --no-baselines"
    assert main([*words.split(), "--quiet"]) == 0
    plan = Plan.from_json(json.loads(capsys.readouterr().out))
    assert plan.memory_limit == 7424
    assert plan.estimate.peak_bytes <= 7424
    assert {name for name, _, _ in plan.proof.meshes} >= {"x=2, y=2, z=2"}


def test_a_machine_file_stays_in_the_plan(folder, capsys):
    from importlib import resources

    text = (resources.files("autoshard") / "machine" / "presets" / "v5e.toml").read_text()
    (folder / "mine.toml").write_text(f'topology = "2x4"\n{text}')
    words = "search steps.py:good --machine mine.toml --mesh x=8 --quiet --no-baselines -o p.json"
    assert main(words.split()) == 0
    assert Plan.load("p.json").machine == "mine.toml"
    assert main(["verify", "p.json"]) == 0
    assert "price        ok" in capsys.readouterr().out


def test_a_rule_of_the_user_is_kept_in_the_plan(folder, capsys):
    words = "search steps.py:ruled --machine v5e-8 --mesh x=8 --quiet --no-baselines --json"
    assert main(words.split()) == 0
    plan = Plan.from_json(json.loads(capsys.readouterr().out))
    assert dict(plan.options) == {"user_rules": {"double": "rows columns -> rows columns"}}


def test_requirements_from_a_file_and_in_line(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a short name, which the report prints whole
    path = Path("asked.toml")
    path.write_text('requirements = ["limit all_gather count 0"]\n')
    words = SEARCH.format("mlp:tiny") + f" --mesh x=8 --no-baselines --require {path}"
    assert main([*words.split(), "--require", "p0: pin params.layers[0].up [x, None]"]) == 0
    printed = capsys.readouterr().out
    assert f"{path}: limit all_gather count 0" in printed
    assert re.search(r"(kept|dropped) +--require: p0: pin params.layers\[0\].up", printed)
    message = refused(capsys, f"{words} --require limit", code=2)
    assert "'limit': write `limit memory SIZE`" in message


def test_warnings_are_one_line(folder, capsys):
    words = SEARCH.format("steps.py:until") + " --mesh x=8 --no-baselines"
    assert main(words.split()) == 0
    err = capsys.readouterr().err
    assert err.startswith("autoshard: warning: while loop 0 at (top) (steps.py:")
    assert err.count("\n") == 1


def test_unwritable_outputs_are_refused_before_the_search(folder, capsys):
    # The program is unknown too: that it is not the one complained of shows the order.
    for path, why in (
        ("none/plan.json", "there is no folder 'none'"),
        (".", "it is a folder"),
        ("/dev/null", "it is not a regular file"),
    ):
        message = refused(capsys, f"search unknown --machine v5e-8 -o {path}")
        assert message == f"cannot write {path!r}: {why}"


def test_a_file_that_is_there_outlives_a_failed_search(folder, capsys):
    Path("plan.json").write_text("precious")
    refused(capsys, SEARCH.format("steps.py:broken") + " -o plan.json")
    assert Path("plan.json").read_text() == "precious"
    assert sorted(p.name for p in folder.iterdir() if p.is_file()) == ["plan.json", "steps.py"]


def test_an_interrupt_leaves_the_best_plan(folder, capsys, monkeypatch):
    search = importlib.import_module("autoshard.search.one_shape")
    real = search.solve
    solved = []

    def interrupted_later(*args: object, **options: object) -> object:
        if solved:
            raise KeyboardInterrupt
        solved.append(1)
        return real(*args, **options)

    monkeypatch.setattr(search, "solve", interrupted_later)
    words = "search steps.py:good --machine v5e-8 --quiet -o plan.json"
    assert main(words.split()) == 0
    assert capsys.readouterr().err == "autoshard: interrupted; this is the best plan so far\n"
    plan = Plan.load("plan.json")
    assert plan.proof.limit_hit == "interrupted"
    assert plan.baselines == ()


def test_an_interrupt_before_any_plan(folder, capsys, monkeypatch):
    search = importlib.import_module("autoshard.search.one_shape")

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(search, "solve", interrupted)
    assert (
        main(["search", "steps.py:good", "--machine", "v5e-8", "--quiet", "-o", "plan.json"]) == 130
    )
    assert capsys.readouterr().err == "autoshard: interrupted before any plan was found\n"
    assert not Path("plan.json").exists()


def test_what_is_saved_is_searched_and_the_plan_verified(folder, capsys):
    words = "search llama3-1b:tiny --machine h100-8 --mesh x=2,y=4 --quiet --no-baselines"
    assert main([*words.split(), "--remat", "search", "-o", "p.json"]) == 0
    assert "note: what is saved for the backward pass: " in capsys.readouterr().out
    assert "saved" in Plan.load("p.json").options
    assert main(["verify", "p.json"]) == 0
    assert "collectives  ok" in capsys.readouterr().out
    assert main(["explain", "p.json", "--keep", "*ffn/bsd,df->bsf/dot_general"]) == 0
    row = r"layers/ffn/bsd,df->bsf/dot_general +bf16\S+ x 2 +saved +computed again +\S"
    assert re.search(row, capsys.readouterr().out)
    assert main(["explain", "p.json", "[0].layers.wq", "--keep"]) != 0
    assert "--keep cannot be combined with VALUE" in capsys.readouterr().err
    assert main(["annotate", "p.json"]) != 0
    assert "which no constraint says" in capsys.readouterr().err


@pytest.mark.parametrize("rewrites", ["--remat search", "--accumulate 2,4"])
def test_what_rewrites_the_step_is_not_searched_with_few_changes(folder, capsys, rewrites):
    words = f"search steps.py:good --machine v5e-8 {rewrites} --max-changes 2"
    told = f"leave out --max-changes: it does not go with {rewrites.removesuffix(' 2,4')}"
    assert told in refused(capsys, words)


def test_what_shardy_completes_is_not_refined(folder, capsys):
    words = "search steps.py:good --machine v5e-8 --mesh x=8 --complete --refine 2"
    assert "leave out --refine: it does not go with --complete" in refused(capsys, words)
