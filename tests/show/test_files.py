"""Files that others display: traces, graphs, rules and shardings, read back as those read them."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise

import jax
import pytest
from flax.linen import spmd
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from autoshard.cli.main import main
from autoshard.machine.load import load
from autoshard.show.model_explorer import graph_collection, node_data
from autoshard.show.shardings import logical_rules, shardings
from autoshard.show.timeline import WAITING, step_timeline
from autoshard.show.trace import chrome_trace
from tests.helpers import case, random_plan
from tests.plan.test_evaluate import ARGS, step
from tests.plan.text.test_page import plan as toy
from tests.show.test_profile import profiles


def test_the_timeline_ends_with_the_step():
    waits = hides = 0
    for found in profiles():
        made, estimate = step_timeline(found), found.plan.estimate
        last = 0.0
        for block in made.compute:
            assert block.start == pytest.approx(last, abs=1e-12)
            last = block.start + block.seconds
        assert last == pytest.approx(estimate.step_seconds)
        exposed = sum(block.seconds for block in made.compute if block.kind == WAITING)
        assert exposed == pytest.approx(estimate.step_seconds - estimate.compute_seconds)
        assert Counter(b.placed.move for b in made.collectives) == Counter(found.plan.moves)
        for lane in {block.lane for block in made.collectives}:
            own = [block for block in made.collectives if block.lane == lane]
            for before, after in pairwise(own):
                assert before.start + before.seconds <= after.start + 1e-15
        assert all(block.start >= 0 for block in made.collectives)
        assert sorted(found.order) == list(range(len(made.starts)))
        in_order = [made.starts[index] for index in found.order]
        assert in_order == sorted(in_order)
        waits += exposed > 0
        hides += any(
            b.start + b.seconds > b.placed.move.exposed_seconds + b.start for b in made.collectives
        )
    assert waits > 5
    assert hides > 5


def test_the_trace_is_one_that_perfetto_reads():
    for found in list(profiles())[::4]:
        written = json.loads(json.dumps(chrome_trace(found)))
        events = written["traceEvents"]
        assert {event["ph"] for event in events} <= {"M", "X", "C"}
        spans = [event for event in events if event["ph"] == "X"]
        assert all({"name", "ts", "dur", "pid", "tid", "args"} <= event.keys() for event in spans)
        end = max(event["ts"] + event["dur"] for event in spans if event["tid"] == 0)
        assert end == pytest.approx(found.plan.estimate.step_seconds * 1e6)
        named = {event["tid"] for event in events if event["name"] == "thread_name"}
        assert {event["tid"] for event in spans} <= named
        peaks = [sum(event["args"].values()) for event in events if event["ph"] == "C"]
        assert max(peaks) == pytest.approx(found.plan.estimate.peak_bytes, abs=8)


def test_the_graph_holds_every_collective_and_every_edge_a_source():
    for found in profiles():
        collection = json.loads(json.dumps(graph_collection(found)))
        (graph,) = collection["graphs"]
        nodes = {node["id"]: node for node in graph["nodes"]}
        assert len(nodes) == len(graph["nodes"])
        for node in graph["nodes"]:
            for edge in node["incomingEdges"]:
                source = nodes[edge["sourceNodeId"]]
                outputs = [one["id"] for one in source["outputsMetadata"]]
                assert edge["sourceNodeOutputId"] in outputs
        shown = [n for name, n in nodes.items() if name.startswith("copy") or "s" in name[2:]]
        times = sum(int({a["key"]: a["value"] for a in n["attrs"]}["times"]) for n in shown)
        assert times == sum(move.count for move in found.plan.moves)
        (data,) = node_data(found).values()
        assert node_data(found).keys() == {graph["id"]}
        assert data["results"].keys() <= nodes.keys()
        total = sum(one["value"] for one in data["results"].values())
        assert total == pytest.approx(found.plan.estimate.step_seconds)


def test_operands_are_read_in_the_layouts_that_the_graph_shows():
    found = next(f for f in profiles() if any(m.before for m in f.moves))
    (graph,) = graph_collection(found)["graphs"]
    read = {edge["sourceNodeId"] for node in graph["nodes"] for edge in node["incomingEdges"]}
    copies = [node["id"] for node in graph["nodes"] if node["id"].startswith("copy")]
    assert copies
    assert set(copies) <= read


def test_shardings_are_what_named_sharding_makes_of_them():
    if len(jax.devices()) != 8:
        pytest.skip("needs eight devices")
    given = case(step, *ARGS, mesh={"x": 2, "y": 4}, machine=load("v5e-8"))
    for seed in range(4):
        plan = random_plan(given, seed)
        dump = json.loads(json.dumps(shardings(plan)))
        sizes, names = dump["mesh"]["axis_sizes"], dump["mesh"]["axis_names"]
        mesh = jax.make_mesh(sizes, names, axis_types=(AxisType.Auto,) * len(names))
        for side in ("inputs", "outputs"):
            assert dump[side].keys() == plan.specs[side].keys()
            for path, one in dump[side].items():
                entries = (tuple(e) if isinstance(e, list) else e for e in one["spec"])
                sharding = NamedSharding(mesh, PartitionSpec(*entries))
                rank = len(one["local_shape"])
                wanted = NamedSharding(mesh, plan.specs[side][path])
                assert sharding.is_equivalent_to(wanted, rank)
                shape = [int(n) for n in one["type"].partition("[")[2][:-1].split(",") if n]
                assert list(wanted.shard_shape(tuple(shape))) == one["local_shape"]


def parsed_rules(text: str) -> tuple[list[list], dict[str, list]]:
    """The two tables of the YAML file, whose lines hold JSON, which is YAML too."""
    rules, names = [], {}
    for line in text.splitlines():
        if line.startswith("  - "):
            rules.append(json.loads(line[4:]))
        elif line.startswith('  "'):
            names.update(json.loads("{" + line + "}"))
    return rules, names


def in_tuples(spec: PartitionSpec) -> list[tuple[str, ...]]:
    """The axes of every dimension, without those at the end that are whole."""
    axes = [() if e is None else (e,) if isinstance(e, str) else e for e in spec]
    while axes and not axes[-1]:
        axes.pop()
    return axes


def test_rules_give_flax_the_layouts_of_the_plan():
    given = case(step, *ARGS, mesh={"x": 2, "y": 2, "z": 2}, machine=load("v5e-8"))
    for seed in range(6):
        plan = random_plan(given, seed)
        rules, names = parsed_rules(logical_rules(plan))
        assert names.keys() == plan.specs["inputs"].keys()
        for path, spec in plan.specs["inputs"].items():
            flat = [(name, tuple(axes)) for name, axes in rules]
            found = spmd.logical_to_mesh_axes(tuple(names[path]), flat)
            assert in_tuples(found) == in_tuples(spec)


def test_rules_as_text():
    assert logical_rules(toy(requirements=({"kept": True, "rules": {"embed": ("data",)}},))) == (
        "# toy on v5e-8, data=2, model=4\n"
        'mesh_axes: ["data", "model"]\n'
        "mesh_shape: [2, 4]\n"
        "logical_axis_rules:\n"
        '  - ["embed", ["data"]]\n'
        '  - ["size_64_over_data_model", ["data", "model"]]\n'
        '  - ["size_8_over_data", ["data"]]\n'
        "# of every input by its tree path: the names of its dimensions\n"
        "logical_axis_names:\n"
        "  \"[0]['layers'][0]['wq']\": [null, \"size_64_over_data_model\"]\n"
        "  \"[0]['layers'][1]['wq']\": [null, \"size_64_over_data_model\"]\n"
        "  \"[0]['norm']\": [null]\n"
        '  "[1]": ["size_8_over_data", null]\n'
    )


def test_on_the_command_line(tmp_path, capsys):
    given = case(step, *ARGS, mesh={"x": 8}, machine=load("v5e-8"), name="step")
    path = tmp_path / "plan.json"
    random_plan(given, 0).save(path)
    module = tmp_path / "steps.py"
    module.write_text(
        "from tests.plan.test_evaluate import ARGS, step\n\ndef one():\n    return step, ARGS\n"
    )
    files = {
        option: tmp_path / option.strip("-")
        for option in ("--trace", "--model-explorer", "--node-data", "--rules", "--shardings")
    }
    words = [word for option, file in files.items() for word in (option, str(file))]
    assert main(["report", str(path), f"{module}:one", "--machine", "v5e-8", *words]) == 0
    for option, file in files.items():
        text = file.read_text()
        assert text if option == "--rules" else json.loads(text)


def test_what_needs_the_program_says_so(tmp_path, capsys):
    toy().save(tmp_path / "plan.json")
    words = ["--trace", str(tmp_path / "t"), "--rules", str(tmp_path / "r")]
    assert main(["report", str(tmp_path / "plan.json"), *words]) == 2
    assert capsys.readouterr().err.startswith(
        f"autoshard: error: --trace need the program and the machine: '{tmp_path}/plan.json' names "
        "the program 'toy', which is not run"
    )
    assert not (tmp_path / "r").exists()
    assert main(["report", str(tmp_path / "plan.json"), "--rules", str(tmp_path / "r")]) == 0
