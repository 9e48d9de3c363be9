"""`autoshard verify`: what its judges say, what it refutes, and what it cannot read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autoshard.cli.common import fake_devices
from autoshard.cli.main import main
from autoshard.plan.plan import Plan
from autoshard.problem.requirements import demands
from tests.cli.helpers import refused
from tests.kept import write_kinds


def test_verify_agrees(plan_file, capsys):
    assert main(["verify", str(plan_file)]) == 0
    lines = capsys.readouterr().out.strip().split("\n")
    assert [line.split()[:2] for line in lines] == [
        ["types", "ok"],
        ["price", "ok"],
        ["requirements", "ok"],
        ["collectives", "ok"],
        ["numbers", "ok"],
    ]


def test_verify_explicit_judges_the_step_that_is_written_out(plan_file, capsys):
    assert main(["verify", str(plan_file), "--explicit", "--json"]) == 0
    verdicts = json.loads(capsys.readouterr().out)["verdicts"]
    assert [v["judge"] for v in verdicts] == [
        "types", "price", "requirements", "collectives", "numbers", "explicit",
    ]  # fmt: skip
    planned = sum(m.count for m in Plan.load(plan_file).moves if m.kind != "all_slice")
    assert verdicts[-1]["text"].startswith(f"{planned} as planned, 0 missing, 0 unplanned; on ")


def test_verify_refutes(plan_file, tmp_path, capsys):
    data = json.loads(plan_file.read_text())
    gather = next(move for move in data["moves"] if move["kind"] == "all_gather")
    gather["bytes"] *= 2
    data["estimate"]["step_seconds"] *= 2
    path = tmp_path / "forged.json"
    path.write_text(json.dumps(data))
    assert main(["verify", str(path), "--json"]) == 5
    out, err = capsys.readouterr()
    verdicts = {v["judge"]: v for v in json.loads(out)["verdicts"]}
    assert verdicts["price"]["agrees"] is False
    assert "step_seconds" in verdicts["price"]["text"]
    assert verdicts["types"]["agrees"] is False
    assert "moves hold all_gather over" in verdicts["types"]["text"]
    # What is mis-typed is not lowered.
    assert verdicts.keys() == {"types", "price", "requirements"}
    assert err.endswith(
        f"autoshard: error: {path} is refuted by its types and price; do not run it: search again\n"
    )


def test_verify_says_what_it_does_not_run(folder, capsys):
    words = "search steps.py:good --machine v5e-32 --mesh x=32 --quiet --no-baselines -o p.json"
    assert main(words.split()) == 0
    capsys.readouterr()
    assert main(["verify", "p.json"]) == 0
    assert (
        "numbers      not run  the mesh has 32 devices; at most 16 are imitated\n"
        in capsys.readouterr().out
    )


def test_verify_refuses_another_program(plan_file, folder, capsys):
    plan = Plan.load(plan_file)
    message = refused(capsys, f"verify {plan_file} steps.py:good")
    assert message.startswith(
        f"the plan was made for program 'mlp:tiny' ({plan.fingerprint}), but 'steps.py:good' "
        "traces to "
    )
    assert ": the first difference is the input [0], here f32[8,16]; " in message
    assert message.endswith("; other shapes, other code or another version of JAX; search again")


def test_damaged_plans(folder, plan_file, capsys):
    assert refused(capsys, "verify none.json") == (
        "cannot read the plan 'none.json': No such file or directory"
    )
    Path("cut.json").write_text(plan_file.read_text()[:70])
    message = refused(capsys, "show cut.json")
    assert message.startswith("'cut.json' is damaged: no JSON at line 1, column ")
    data = json.loads(plan_file.read_text())
    del data["moves"]
    Path("lacks.json").write_text(json.dumps(data))
    assert refused(capsys, "verify lacks.json") == (
        "'lacks.json': the plan is damaged: it lacks moves; search again"
    )
    Path("old.json").write_text('{"schema_version": 0}')
    assert refused(capsys, "verify old.json") == (
        "'old.json': the plan has schema version 0, this autoshard reads 3: search again"
    )


FORGETS = """
import jax
import jax.numpy as jnp

def abstract(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)

def forgets():
    def step(params, moments, x):
        loss, gradient = jax.value_and_grad(lambda w: jnp.sum(jnp.tanh(x @ w) ** 2))(params["w"])
        moments["w"] = 0.9 * moments["w"] + gradient
        params["w"] = params["w"] - 0.1 * moments["w"] / (jnp.abs(moments["w"]) + 1e-8)
        return loss

    return step, ({"w": abstract(16, 16)}, {"w": abstract(16, 16)}, abstract(8, 16))
"""


def test_a_step_of_which_the_update_is_dead_is_told_so_and_refuted(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("dead.py").write_text(FORGETS)
    words = "search dead.py:forgets --machine v5e-8 --mesh x=8 --quiet --no-baselines -o p.json"
    assert main(words.split()) == 0
    said = capsys.readouterr().err
    assert said.startswith("autoshard: no result of dead.py:forgets depends on ")
    assert "1 of its 3 inputs (1.00 KiB of 2.50 KiB; the first is moments.w)" in said
    assert main(["verify", "p.json"]) == 5
    out, err = capsys.readouterr()
    assert out.startswith("program      FAILED   no result of dead.py:forgets depends on ")
    assert err.endswith("p.json is refuted by its program; do not run it: search again\n")


ASKS = """
import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

def asks():
    mesh = AbstractMesh((8,), ("x",), axis_types=(AxisType.Auto,))
    columns = NamedSharding(mesh, PartitionSpec(None, "x"))

    def step(x, w):
        return jnp.sum(jnp.tanh(jax.lax.with_sharding_constraint(x @ w, columns)))

    array = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    return step, (array, array)
"""
SEARCH_ASKS = "search asks.py:asks --machine v5e-8 --mesh x=8 --quiet --no-baselines -o p.json"


@pytest.fixture
def asks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("asks.py").write_text(ASKS)


def requirements_of(capsys, code):
    capsys.readouterr()
    assert main(["verify", "p.json", "asks.py:asks", "--json"]) == code
    verdicts = {v["judge"]: v for v in json.loads(capsys.readouterr().out)["verdicts"]}
    assert verdicts["price"]["agrees"] is True
    return verdicts.get("requirements", {}).get("text")


def test_requirements_are_judged(asks, capsys):
    assert main(SEARCH_ASKS.split()) == 0
    assert requirements_of(capsys, 0) == "1 kept or priced"
    assert main([*SEARCH_ASKS.split(), "--ignore-constraints"]) == 0
    assert requirements_of(capsys, 0) is None


def test_a_requirement_that_is_dropped_on_the_way_is_found(asks, capsys, monkeypatch):
    with monkeypatch.context() as planted:
        planted.setattr(demands, "constraints_of", lambda program: ())
        assert main(SEARCH_ASKS.split()) == 0
    said = requirements_of(capsys, 5).split("\n")
    assert "pin f32[64,64] of sharding_constraint at (top) (asks.py:11) [None, x]" in said[0]
    assert "(with_sharding_constraint at asks.py:11) is broken: " in said[0]
    assert said[1] == "the plan knows 0 of the 1 requirement of the program itself"


def test_a_requirement_that_is_only_said_to_be_kept_is_found(asks, capsys):
    assert main(SEARCH_ASKS.split()) == 0
    kept = json.loads(Path("p.json").read_text())["requirements"]
    assert main([*SEARCH_ASKS.split(), "--ignore-constraints"]) == 0
    forged = json.loads(Path("p.json").read_text())
    Path("p.json").write_text(json.dumps({**forged, "requirements": kept, "options": {}}))
    said = requirements_of(capsys, 5)
    assert "(with_sharding_constraint at asks.py:11) is broken: " in said
    assert "knows" not in said


def test_fake_devices_wait_for_each_other_and_obey_the_users_flags(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_collective_call_terminate_timeout_seconds=7")
    flags = fake_devices(8)["XLA_FLAGS"].split()
    waits = [flag for flag in flags if "terminate_timeout" in flag]
    assert [flag.partition("=")[2] for flag in waits] == ["3600", "7"]  # the last one counts
    assert flags[-1] == "--xla_force_host_platform_device_count=8"


def test_numbers_that_take_too_long_are_not_waited_for(tmp_path, capsys):
    write_kinds(tmp_path)
    plan = str(tmp_path / "plan.json")
    assert main(["verify", plan, "mlp:tiny", "--numbers-limit", "0.01"]) == 0
    assert (
        "numbers      not run  no answer in 0.01 s; give it longer by --numbers-limit: a plan of "
        "fewer examples or layers has its numbers compared\n"
    ) in capsys.readouterr().out
