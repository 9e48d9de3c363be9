"""The reports of plans for several meshes and of schedules: whole, and with their figures."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from jax.sharding import PartitionSpec

from autoshard.cli.main import main
from autoshard.plan.plan import MeshShape
from autoshard.search.meshes.plan import Choice, OneMesh, PipelinePlan, Sharding
from autoshard.search.meshes.stage_program import Argument
from autoshard.show.pipeline.gains import LINKS, pipeline_gains
from autoshard.show.pipeline.gantt import MEMORY_COLUMNS, memory_columns, ticks
from autoshard.show.pipeline.page import picture_of, pipeline_page
from autoshard.show.pipeline.schedule_page import schedule_page
from autoshard.show.pipeline.verdict import pipeline_verdict
from autoshard.solve.schedule.drawing import draw_svg
from autoshard.solve.schedule.instance import Instance
from autoshard.solve.schedule.named import NAMED
from autoshard.solve.schedule.optimise import solve
from autoshard.solve.schedule.optimise.outcome_json import choice_to_json, outcome_from_json
from autoshard.solve.schedule.optimise.placements import PlacementChoice
from autoshard.units import visible
from tests.show.reading import read
from tests.show.test_page import HOSTILE, titles

GIB, MILLI = 2**30, 10**6
INSTANCE = Instance(
    meshes=2,
    microbatches=3,
    forward=(10 * MILLI, 20 * MILLI),
    backward=(20 * MILLI, 40 * MILLI),
    weight=(0, 0),
    placement=(0, 1),
    transfer=((0, 2 * MILLI), (2 * MILLI, 0)),
    time_scale=(1, 1),
    memory_forward=(GIB, 4 * GIB),
    memory_backward=(-GIB, -4 * GIB),
    memory_weight=(0, 0),
    memory_limit=(4 * GIB, 4 * GIB),
)


def pipeline(**changed) -> PipelinePlan:
    given = PipelinePlan(
        program="toy",
        cluster="h100-8 + a100-8",
        described="h100-8 + a100-8, joined by 50 GB/s a chip",
        machines=("h100-8", "a100-8"),
        shapes=(MeshShape(("x",), (8,)), MeshShape(("x", "y"), (4, 2))),
        stages=(("layer_0",), ("layer_1", "layer_2")),
        mesh_of=(0, 1),
        placement="v1",
        mode="fused",
        order=NAMED["1f1b"](replace(INSTANCE, fused=(20 * MILLI, 40 * MILLI))),
        instance=INSTANCE,
        outer_seconds=(0.005, 0.006),
        dispatch_seconds=(0.0, 0.0),
        memory_limit=(10.0 * GIB, 10.0 * GIB),
        fixed_bytes=(6.0 * GIB, 6.0 * GIB),
        bound=0.2,
        order_bound=0.214,
        shardings=(
            (Sharding(Argument("state", 0, path="params.w1"), PartitionSpec("x")),),
            (Sharding(Argument("sent", 1), PartitionSpec(("x", "y"))),),
        ),
        choices=(Choice("v1, fused", 2, 3, 0.22, 0.214), Choice("loop", 4, 3, None, None, "no")),
        one_mesh=OneMesh("h100-16", 0.25, 7.0 * GIB, "x=16", 3),
        limit_hit=None,
        seconds=12.0,
    )
    return replace(given, **changed)


def test_the_page_of_a_pipeline():
    plan = pipeline()
    found = read(pipeline_page(plan))
    text = found.all_text()
    assert titles(found) == [
        "schedule", "proof", "one", "meshes", "memory", "stages", "transfers", "layouts",
        "sensitivity", "considered", "versions",
    ]  # fmt: skip
    # Mesh 1 waits for its first microbatch 12 ms, works 180 ms, and the last gradient takes 22 ms.
    assert plan.step_seconds == pytest.approx(0.22)
    assert (
        "2 stages on 2 meshes: fits; 220.0 ms a step; within 9.09 % of the best; bound by the work "
        "of mesh 1;" in text
    )
    assert "the fullest is mesh 1 (a100-8): 10.0 GiB of 10.0 GiB per device (100.0 %)" in text
    assert "One mesh of all chips (h100-16, x=16, 3 microbatches) takes 250.0 ms" in text
    assert "pipelining wins, 12.0 % less" in text
    assert "backward of stage 1, microbatch 2: " in text
    assert "weight gradient" not in text
    meshes = next(rows for rows in found.tables if rows[0][:3] == ["mesh", "machine", "shape"])
    assert meshes[2] == ["1", "a100-8", "x=4, y=2", "1", "180.0 ms", "34.00 ms", "6.000 ms",
                         "10.0 GiB", "10.0 GiB", "100.0 %"]  # fmt: skip
    sent = next(rows for rows in found.tables if rows[0][0] == "what" and "each" in rows[0])
    assert sent[1:] == [
        ["activations", "0 to 1", "mesh 0 to mesh 1", "2.000 ms", "3", "6.000 ms"],
        ["gradients", "1 to 0", "mesh 1 to mesh 0", "2.000 ms", "3", "6.000 ms"],
    ]
    layouts = [rows for rows in found.tables if rows[0] == ["what", "path", "layout"]]
    assert layouts == [
        [["what", "path", "layout"], ["state", "params.w1", "[x]"]],
        [["what", "path", "layout"], ["sent", "value 1", "[x,y]"]],
    ]


def test_what_would_help_is_what_the_simulator_says():
    gains = {gain.part: gain.step_seconds for gain in pipeline_gains(pipeline())}
    # 10 + 2 + 180 + 2 + 20 + 6 ms; a tenth faster is 1 / 1.1 of the time.
    assert gains == pytest.approx(
        {
            "mesh 0 (h100-8)": (30 / 1.1 + 190) * 1e-3,
            "mesh 1 (a100-8)": (180 / 1.1 + 34 + max(5, 6 / 1.1)) * 1e-3,
            LINKS: (4 / 1.1 + 216) * 1e-3,
        }
    )
    answer = pipeline_verdict(pipeline(), pipeline_gains(pipeline())).answers[5]
    assert answer.said == "10 % faster: mesh 1 (a100-8)"
    assert answer.detail.startswith("saves 7.7 % of the step, the order as it is; then")


def test_one_mesh_that_is_faster_is_what_would_help():
    plan = pipeline(one_mesh=OneMesh("h100-16", 0.11, 7.0 * GIB, "x=16", None))
    told = pipeline_verdict(plan, pipeline_gains(plan))
    assert told.line.endswith("; all chips as one mesh would be faster.")
    assert told.answers[0].detail == (
        "takes 100.0 % longer than the best plan of all chips as one mesh (h100-16, x=16)"
    )
    assert told.answers[5].said == "all chips as one mesh"
    assert told.answers[5].detail.startswith("--machine h100-16 saves 50.0 %; then 10 % faster")
    assert "autoshard search toy --machine h100-16" in read(pipeline_page(plan)).all_text()


def test_memory_is_that_of_the_simulator():
    plan = pipeline()
    picture = picture_of(plan)
    columns = [memory_columns(picture, mesh) for mesh in range(2)]
    assert [one.max() for one in columns] == [float(p) for p in plan.timeline.peak_memory]
    assert columns[1][0] == 0.0  # nothing before the first activations are there
    assert columns[1][int(0.1 / 0.22 * MEMORY_COLUMNS)] == 4.0 * GIB
    assert np.all(columns[1][-10:] == 0.0)


def test_ticks_are_round_and_in_one_unit():
    found = ticks(picture_of(pipeline()))  # 220 ms
    assert [text for _, text in found] == ["0 ms", "50 ms", "100 ms", "150 ms", "200 ms"]
    assert [part for part, _ in found] == pytest.approx([k * 50 / 220 for k in range(5)])


@pytest.mark.parametrize("name", [HOSTILE, "a\x00b\x1b[31m", "$\\frac{$"])
def test_no_name_breaks_the_page(name):
    found = read(pipeline_page(pipeline(program=name, stages=((name,), (name, name)))))
    assert visible(name) in "".join(found.text)


def test_the_command_line(tmp_path: Path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pipeline().save("plan.json")
    verdict = {"verdicts": [{"judge": "numbers", "agrees": False, "text": "another"}]}
    Path("verdict.json").write_text(json.dumps(verdict))
    words = ["report", "plan.json", "-o", "plan.html", "--trace", "plan.trace"]
    assert main([*words, "--verification", "verdict.json"]) == 0
    assert "refuted by numbers" in read(Path("plan.html").read_text()).all_text()
    assert json.loads(Path("plan.trace").read_text())["traceEvents"]
    assert main(["report", "plan.json", "-o", "plan.html", "--rules", "rules.yml"]) == 2
    assert (
        "'plan.json' is a plan for several meshes, of which -o makes a page and --trace a trace; "
        "--rules is about a plan for one mesh" in capsys.readouterr().err
    )
    damaged = json.loads(Path("plan.json").read_text())
    del damaged["outer_seconds"]
    Path("plan.json").write_text(json.dumps(damaged))
    assert main(["report", "plan.json", "-o", "plan.html"]) == 2
    assert "the plan is damaged: outer_seconds is missing" in capsys.readouterr().err


def test_the_page_of_a_schedule(tmp_path: Path, capsys):
    instance = replace(INSTANCE, weight=(MILLI, MILLI), name="two", memory_limit=None)
    outcome = solve(instance, time_limit=5)
    choice = PlacementChoice("two", {"two": outcome}, {"vee": "no schedule keeps 1"})
    path = tmp_path / "order.json"
    path.write_text(json.dumps(choice_to_json(choice)))
    again = outcome_from_json(json.loads(path.read_text()))
    assert (again.value, again.bound, again.order) == (outcome.value, outcome.bound, outcome.order)
    assert main(["report", str(path), "-o", str(tmp_path / "order.html")]) == 0
    found = read((tmp_path / "order.html").read_text())
    assert titles(found) == [
        "schedule", "named", "meshes", "memory", "stages", "sensitivity", "considered", "versions"
    ]  # fmt: skip
    assert ["vee", "-", "-", "no schedule keeps 1"] in found.tables[-1]
    assert f"makespan {outcome.value:,.6g}; proven best;" in found.all_text()
    named = next(rows for rows in found.tables if rows[0][0] == "schedule")
    assert ["zb-v", "-", "-", "the placement must be [0, 1, 1, 0], not [0, 1]"] in named
    assert read(schedule_page(outcome, ())).all_text().count("What was considered") == 0
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema_version": 0}))
    assert main(["report", str(path), "-o", str(tmp_path / "order.html")]) == 2
    assert "it has schema version 0, this autoshard reads 1: solve again" in capsys.readouterr().err


@pytest.mark.parametrize("name", [HOSTILE, "a\x00b\x1b[31m"])
def test_no_name_breaks_the_page_of_a_schedule_or_its_drawing(name):
    instance = replace(INSTANCE, weight=(MILLI, MILLI), name=name, memory_limit=None)
    outcome = solve(instance, time_limit=5)
    considered = [{"name": name, "value": None, "bound": None, "note": name}]
    page = schedule_page(outcome, considered)
    assert read(page).tags.count("script") == 1
    assert outcome.timeline is not None
    drawing = ElementTree.fromstring(draw_svg(instance, outcome.timeline))
    assert {one.tag.rpartition("}")[2] for one in drawing.iter()} == {
        "svg", "rect", "text", "title", "polyline"
    }  # fmt: skip
    for control in ("\x00", "\x1b"):
        assert control not in page
