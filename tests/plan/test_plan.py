"""Plan files: what is written is read back, and what is damaged says how."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from jax.sharding import PartitionSpec

from autoshard.plan.decisions import Decisions, Reshard
from autoshard.plan.plan import Baseline, Estimate, MeshShape, Move, Plan, PlanError, Proof


@pytest.fixture
def plan() -> Plan:
    return Plan(
        program="toy",
        fingerprint="0123456789abcdef",
        options={"donate_argnums": [0, 1], "trip_counts": {"loop": 3}},
        machine="v5e-8",
        memory_limit=2.0**34,
        mesh=MeshShape(("data", "model"), (2, 4)),
        estimate=Estimate(0.3, 0.2, 0.4, 0.2, 0.2, 12, "the end of the step"),
        proof=Proof("optimal", 0.3, 0.3, 0.0, 1.5, None, (("x=8", 0.3, None), ("x=2", 0.3, 0.4))),
        specs={
            "inputs": {"[0]": PartitionSpec(("data", "model"), None), "[1]": PartitionSpec()},
            "outputs": {"": PartitionSpec(None, "model")},
        },
        moves=(Move("all_gather", ("data",), 8, 2, 0.1, 0.05, "scope", "f.py:3", "f32[2]"),),
        baselines=(Baseline("FSDP", 0.5, 30, "note"), Baseline("none", None, None)),
        decisions=Decisions(((0, -1), None), (None, (1, 0)), (0, 3), (None, (0, 0))),
        reshards=(Reshard((4, 8), 2, (0, -1), (-1, 0), (((0,), ()), ((), (0,)))),),
        types={"inputs": {"[0]": "f32[8,2,2]", "[1]": "i32[]"}, "outputs": {"": "f32[2,4]"}},
    )  # fmt: skip


NO_PLAN = "not a plan: there is no schema_version; give what `autoshard search -o` wrote"


def test_json_round_trip(plan: Plan):
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


def test_file_round_trip(plan: Plan, tmp_path: Path):
    path = tmp_path / "plan.json"
    plan.save(path)
    assert Plan.load(path) == plan
    assert [file.name for file in tmp_path.iterdir()] == ["plan.json"]


def test_a_plan_cannot_be_changed(plan: Plan):
    with pytest.raises(AttributeError):
        plan.program = "another"  # type: ignore[misc]


def test_a_file_that_is_there_outlives_a_failed_write(plan: Plan, tmp_path: Path, monkeypatch):
    path = tmp_path / "plan.json"
    path.write_text("precious")

    def fail(*_: object, **__: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        plan.save(path)
    assert path.read_text() == "precious"
    assert [file.name for file in tmp_path.iterdir()] == ["plan.json"]


def test_save_in_the_current_folder(plan: Plan, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plan.save("plan.json")
    assert os.listdir() == ["plan.json"]


def damaged(plan: Plan, **changes: object) -> str:
    with pytest.raises(PlanError) as caught:
        Plan.from_json({**plan.to_json(), **changes})
    return str(caught.value)


def test_other_things_are_no_plan(plan: Plan):
    for other in ([], {}, 3, None, "plan"):
        with pytest.raises(PlanError, match=f"^{NO_PLAN}$"):
            Plan.from_json(other)
    assert damaged(plan, schema_version=99) == (
        "the plan has schema version 99, this autoshard reads 3: search again"
    )


def test_every_missing_field_is_named(plan: Plan):
    data = plan.to_json()
    del data["mesh"], data["moves"]
    with pytest.raises(PlanError, match=r"lacks mesh, moves; search again$"):
        Plan.from_json(data)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("mesh", {"data": "two"}),
        ("mesh", [2, 4]),
        ("estimate", {"step_seconds": 1.0}),
        ("estimate", None),
        ("proof", {}),
        ("specs", {"inputs": 3}),
        ("moves", [{"kind": "all_gather"}]),
        ("moves", 7),
        ("baselines", [{"unknown": 1}]),
        ("decisions", {"tuples": []}),
        ("decisions", None),
        ("decisions", {"tuples": [], "stored": [3], "copy": [], "mode": [], "assignment": []}),
        ("reshards", [{}]),
        ("memory_limit", "much"),
        ("options", 3),
        ("types", []),
    ],
)
def test_faulty_fields_are_damage(plan: Plan, field: str, value: object):
    assert damaged(plan, **{field: value}).startswith("the plan is damaged:")


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("memory_limit",), "much", "memory_limit is 'much'; it must be a number or null"),
        (("memory_limit",), -1, "memory_limit is -1; it must be a number of at least 0.0"),
        (("mesh", "model"), 0, "mesh.model is 0; it must be a whole number of at least 1"),
        (("mesh", "model"), 8e12, "mesh.model is 8000000000000.0; it must be a whole number"),
        (
            ("mesh", "model"),
            8 * 10**12,
            "mesh.model is 8000000000000; it must be a whole number of at most 16777216",
        ),
        (
            ("decisions", "tuples", 0, 0),
            2**40,
            "decisions.tuples[0][0] is 1099511627776; it must be a whole number of at most 4095",
        ),
        (
            ("decisions", "mode", 0),
            -1,
            "decisions.mode[0] is -1; it must be a whole number of at least 0",
        ),
        (("proof", "status"), None, "proof.status is null; it must be a text"),
        (
            ("proof", "limit_hit"),
            "lunch",
            "proof.limit_hit is 'lunch'; it must be one of the words that are known",
        ),
        (("estimate", "peak_bytes"), "1", "estimate.peak_bytes is '1'; it must be a whole number"),
        (
            ("estimate", "step_seconds"),
            -2.0,
            "estimate.step_seconds is -2.0; it must be a number of at least 0.0",
        ),
        (("compiled",), {"compiler": "gpu"}, "compiled.step_seconds is missing"),
        (("requirements",), [{"text": "x"}], "requirements[0].source is missing"),
        (
            ("options", "donate_argnums"),
            "0",
            "options.donate_argnums is '0'; it must be a whole number or a list",
        ),
        (("estimate", "speed"), 1, "estimate.speed is not known"),
        (("reshards",), [{"colour": 1}], "reshards[0].shape is missing"),
        (("notes",), [1], "notes[0] is 1; it must be a text"),
    ],
)
def test_what_does_not_fit_is_named_with_its_place(plan: Plan, path, value, message):
    data = json.loads(json.dumps(plan.to_json()))
    inner = data
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    with pytest.raises(PlanError) as caught:
        Plan.from_json(data)
    assert str(caught.value) == f"the plan is damaged: {message}"


def test_contradictions_are_all_named(plan: Plan):
    data = plan.to_json()
    data["mesh"] = {"data": 8}
    with pytest.raises(PlanError) as caught:
        Plan.from_json(data)
    assert str(caught.value) == (
        "the plan is damaged:\n"
        "  - inputs [0]: no axis model in the mesh data=8\n"
        "  - outputs : no axis model in the mesh data=8\n"
        "  - decisions: stored holds entries for another number of axes than 1\n"
        "  - decisions: copy holds entries for another number of axes than 1\n"
        "  - decisions: assignment holds entries for another number of axes than 1"
    )


def test_a_plan_is_as_readable_as_any_new_file(plan: Plan, tmp_path: Path):
    (tmp_path / "other").touch()
    plan.save(tmp_path / "plan.json")
    modes = {name: (tmp_path / name).stat().st_mode for name in ("other", "plan.json")}
    assert modes["plan.json"] == modes["other"]


def test_files_that_are_no_plan(plan: Plan, tmp_path: Path):
    path = tmp_path / "plan.json"
    with pytest.raises(PlanError) as caught:
        Plan.load(path)
    assert str(caught.value) == f"cannot read the plan {str(path)!r}: No such file or directory"
    plan.save(path)
    path.write_text(path.read_text()[:100])
    with pytest.raises(PlanError) as caught:
        Plan.load(path)
    assert str(caught.value).startswith(f"{str(path)!r} is damaged: no JSON at line 1, column ")
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PlanError) as caught:
        Plan.load(path)
    assert str(caught.value).startswith(f"{str(path)!r} is damaged: it is not text (byte 1); copy")
    path.write_text("[]")
    with pytest.raises(PlanError) as caught:
        Plan.load(path)
    assert str(caught.value) == f"{str(path)!r}: {NO_PLAN}"
