"""The page: whole, self-contained, with the figures of the plan; no name breaks it."""

from __future__ import annotations

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec

from autoshard.cli.main import main
from autoshard.machine.improvements import OVERLAP
from autoshard.machine.load import load, presets
from autoshard.models import build
from autoshard.plan.records import Baseline
from autoshard.plan.text.moves import alike_moves
from autoshard.show.compare import compared
from autoshard.show.page import Material, page
from autoshard.show.profile import profile
from autoshard.show.sensitivity import Gain
from autoshard.show.sources import figures, machine_text
from autoshard.show.trace import chrome_trace
from autoshard.show.verdict import verdict
from autoshard.study.advice import LAYOUTS, Advice
from autoshard.units import format_bytes, format_seconds
from tests.helpers import case, random_plan, toy_machine
from tests.host_steps import MOMENTS, moments
from tests.plan.text.test_page import GATHER
from tests.plan.text.test_page import plan as toy
from tests.show.reading import read

TITLES = ["Proof and bounds", "Well-known schemes", "Memory", "Compute", "Collectives", "Layouts",
          "Sensitivity", "Assumptions and their sources", "Versions"]  # fmt: skip


def titles(found):
    return [value for tag, name, value in found.attributes if (tag, name) == ("section", "id")]


def test_a_plan_alone():
    found = read(page(Material(toy(), missing=("the program is gone; give PROGRAM",))))
    text = found.all_text()
    assert "toy on v5e-8" in text
    assert "Left out: the program is gone; give PROGRAM" in text
    assert titles(found) == [
        "proof", "schemes", "collectives", "layouts", "assumptions", "versions"
    ]  # fmt: skip
    line = "Fits, with 13.0 GiB to spare; 12.00 ms a step; within 0.83 % of the best; bound by"
    assert f"{line} compute." in text
    moves = next(rows for rows in found.tables if rows[0][:2] == ["kind", "axes"])
    assert moves[1][:7] == [
        "all_gather", "data", "400.0 us", "2.000 ms", "2", "1.00 MiB", "2.00 MiB"
    ]  # fmt: skip
    assert moves[1][7:] == ["bf16[8@data, 4] → bf16[8, 4]", "layer_*/ffn", "model.py:7"]
    layouts = next(rows for rows in found.tables if rows[0][0] == "path")
    assert layouts[1][:3] == ["[0]['layers'][*]['wq']", "f32[16, 64@(data,model)]", "2"]
    assert ["FSDP", "18.00 ms", "1.500", "1.00 GiB", ""] in found.tables[1]


def test_only_a_close_bound_is_good_news():
    close = toy()
    wide = replace(close, proof=replace(close.proof, bound=0.5 * close.proof.objective, gap=0.5))
    for plan, said in ((close, "said good"), (wide, "said")):
        sure = page(Material(plan)).split("How sure?")[1]
        assert sure[sure.index('class="said') :].startswith(f'class="{said}"')


def test_a_plan_that_does_not_fit_and_is_refuted():
    refuted = {
        "verdicts": [
            {"judge": "price", "agrees": False, "text": "another"},
            {"judge": "numbers", "agrees": None, "text": "too large"},
        ]
    }
    given = toy(memory_limit=2.0**30)
    answers = verdict(given, verification=refuted).answers
    assert [one.said for one in answers[1:4]] == ["no", "12.00 ms", "refuted by price"]
    assert verdict(given).line.startswith("Does not fit: 2.00 GiB too much; 12.00 ms a step;")
    found = read(page(Material(given, verification=refuted)))
    assert ["price", "REFUTES", "another"] in found.tables[-1]
    assert ["numbers", "not run", "too large"] in found.tables[-1]


def test_communication_that_binds_is_named():
    estimate = replace(toy().estimate, step_seconds=0.03)
    said = verdict(toy(estimate=estimate)).answers[4].said
    assert said == "all_gather@data"


def test_what_the_step_is_most_sensitive_to_binds():
    ranked = (
        Gain("35 % hidden", OVERLAP, 0.0105),
        Gain("10 % more bandwidth of ICI", "ICI", 0.0108),
        Gain("10 % more memory bandwidth", "memory bandwidth", 0.0114),
    )
    told = verdict(toy(), gains=ranked)
    assert [one.said for one in told.answers[4:]] == ["ICI", "35 % hidden"]
    assert told.answers[5].detail == (
        "saves 12.5 % of the step with the plan as it is; then 10 % more bandwidth of ICI (10.0 %)"
    )
    assert told.line.endswith("bound by ICI; 35 % hidden would save 12.5 %.")
    idle = verdict(toy(), gains=[Gain("10 % more of nothing", "nothing", 0.012)])
    assert [one.said for one in idle.answers[4:]] == ["compute", "no part of the machine by itself"]
    assert idle.line.endswith("; bound by compute.")


def test_advice_that_fits_and_saves_goes_before_better_machines():
    larger = Advice("a batch of 32 in place of 16", "batch=32", 0.021, 2**30, True, LAYOUTS, work=2)
    chips = Advice("16 chips", "--machine v5e-16", 0.0075, 2**30, True, LAYOUTS, chips=2)
    full = replace(larger, what="a batch of 64", step_seconds=0.001, fits=False)
    ranked = [Gain("35 % hidden", OVERLAP, 0.0105)]
    told = verdict(toy(), gains=ranked, advice=(larger, chips, full))
    assert told.answers[5].said == "a batch of 32 in place of 16"
    assert told.answers[5].detail == (
        "saves 12.5 % of the seconds for the same work: batch=32; then 16 chips (1.60 times as "
        "fast, 25.0 % more chip-seconds)"
    )
    assert told.line.endswith("; a batch of 32 in place of 16 would save 12.5 %.")
    assert verdict(toy(), gains=ranked, advice=(chips, full)).answers[5].said == "35 % hidden"
    found = read(page(Material(toy(), advice=(larger, chips, full))))
    (rows,) = (rows for rows in found.tables if rows[0][:2] == ["what", "how"])
    assert [row[2:7] for row in rows[1:]] == [
        ["10.50 ms", "1.14", "12.5 % less", "1.00 GiB", "yes"],
        ["7.500 ms", "1.60", "25.0 % more", "1.00 GiB", "yes"],
        ["500.0 us", "24.00", "95.8 % less", "1.00 GiB", "no"],
    ]


def test_more_memory_is_what_helps_where_a_faster_scheme_does_not_fit():
    larger = Baseline("data parallel", 0.006, 2**45)
    told = verdict(toy(baselines=(larger,)), gains=[Gain("35 % hidden", OVERLAP, 0.0105)])
    assert told.answers[5].said == "more memory"
    assert told.answers[5].detail.startswith(
        "data parallel with 32.0 TiB per device takes 6.000 ms, 50.0 % less; what fits may come"
    )
    better = [Gain("35 % hidden", OVERLAP, 0.001)]
    assert verdict(toy(baselines=(larger,)), gains=better).answers[5].said == "35 % hidden"


def test_mesh_shapes_of_equal_figures_share_a_row():
    rows = (("x=8", 0.011, 0.012), ("x=2, y=4", 0.0119, 0.012), ("x=4, y=2", 0.0119, 0.012))
    found = read(page(Material(toy(proof=replace(toy().proof, meshes=rows)))))
    (meshes,) = (one for one in found.tables if one[0][0] == "mesh considered")
    assert meshes[1:] == [
        ["x=8", "11.00 ms", "12.00 ms"],
        ["x=2, y=4; x=4, y=2", "11.90 ms", "12.00 ms"],
    ]


HOSTILE = "</script><script>alert('1')</script><img src=http://x/y onerror=\"z\">&amp;'\"]]>"


def test_names_cannot_break_out():
    spec = {HOSTILE: PartitionSpec("data"), "": PartitionSpec()}
    given = toy(
        program=HOSTILE,
        machine=HOSTILE,
        specs={"inputs": spec, "outputs": {}},
        types={"inputs": {HOSTILE: "f32[8]", "": "f32[]"}, "outputs": {}},
        moves=(replace(GATHER, scope=HOSTILE, line=HOSTILE, value=HOSTILE),),
        baselines=(replace(toy().baselines[1], name=HOSTILE, note=HOSTILE),),
        estimate=replace(toy().estimate, peak_at=HOSTILE),
        requirements=({"text": HOSTILE, "source": HOSTILE, "kept": False, "how": [HOSTILE]},),
    )
    verdicts = {"verdicts": [{"judge": HOSTILE, "agrees": True, "text": HOSTILE}]}
    plain = read(page(Material(toy())))
    found = read(page(Material(given, None, f"{HOSTILE} = 1 # {HOSTILE}", verdicts, (HOSTILE,))))
    assert found.tags.count("script") == plain.tags.count("script") == 1
    assert found.all_text().count(HOSTILE.replace("->", "→")) >= 10


def small(step):
    return case(
        step,
        jax.ShapeDtypeStruct((8, 8), jnp.float32),
        mesh={"x": 8},
        machine=load("v5e-8"),
    )


@pytest.mark.parametrize(("step", "shows"), [(jnp.tanh, "tanh"), (lambda x: x, "No collectives")])
def test_programs_of_one_op_and_of_none(step, shows):
    given = small(step)
    plan = random_plan(given, 0)
    found = profile(plan, given.program, load("v5e-8"))
    shown = read(page(Material(plan, found)))
    assert "compute" in titles(shown)
    assert shows in shown.all_text()
    assert chrome_trace(found)["traceEvents"]


def test_the_8b_step_on_64_chips():
    built = build("llama3-8b")
    machine = load("v5p-64")
    given = case(
        built.fn, *built.args, mesh={"x": 8, "y": 8}, machine=machine, name="llama3-8b",
        **built.options,
    )  # fmt: skip
    plan = random_plan(given, 1)
    text = machine_text("v5p-64")
    document = page(Material(plan, profile(plan, given.program, machine), text))
    assert len(document) < 1_000_000
    found = read(document)
    told, estimate = found.all_text(), plan.estimate
    for seconds in (estimate.step_seconds, estimate.lower_seconds, estimate.upper_seconds):
        assert format_seconds(seconds) in told
    assert f"{format_bytes(estimate.peak_bytes)} at the peak" in told
    moves = next(rows for rows in found.tables if rows[0][:2] == ["kind", "axes"])
    groups = alike_moves(plan.moves)
    assert len(moves) - 1 == len(groups)
    for row, group in zip(moves[1:], groups, strict=True):
        assert row[4] == f"{sum(move.count for move in group):,}"
        assert row[3] == format_seconds(sum(move.seconds for move in group))
    assert sum("https://cloud.google.com/tpu/docs/v5p" in one[2] for one in found.attributes) == 1
    assert [t for t in TITLES if t not in told] == ["Well-known schemes"]


@pytest.mark.parametrize("family", presets())
def test_every_figure_of_a_machine_has_its_row(family):
    import tomllib

    name = f"{family}-8" if family != "gb200-nvl72" else "gb200-nvl72-72"
    text = machine_text(name)
    assert machine_text(f"{name}@default") == text
    found = figures(text)
    table = tomllib.loads(text)
    levels = table.pop("network")
    chip, compiler, host = table.pop("chip"), table.pop("compiler"), table.pop("host")
    count = len(compiler) + sum(map(len, levels)) + len(host) + len(table)
    count += len(chip) - 1 + len(chip["peak_flops"])
    assert len(found) == count
    said = {(one.table, one.key): one for one in found}
    bandwidth = said["chip", "memory_bandwidth"]
    assert float(bandwidth.value) == chip["memory_bandwidth"]
    assert bandwidth.source
    assert sum(bool(one.source) for one in found) >= count // 2


def test_on_the_command_line(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["--machine", "v5e-8", "--mesh", "data=2,model=4", "--quiet", "-o", "plan.json"]
    assert main(["search", "mlp:tiny", *words]) == 0
    (tmp_path / "verdict.json").write_text(
        json.dumps({"verdicts": [{"judge": "price", "agrees": True, "text": "as priced"}]})
    )
    capsys.readouterr()
    assert main(["report", "plan.json", "-o", "p.html", "--verification", "verdict.json"]) == 0
    said = capsys.readouterr().err.splitlines()
    assert (said[0], said[-1]) == ("tracing mlp:tiny", "autoshard: wrote p.html")
    assert main(["report", "plan.json", "-o", "q.html", "--quiet"]) == 0
    assert capsys.readouterr().err == ""
    found = read((tmp_path / "p.html").read_text())
    assert {"memory", "compute", "advice", "sensitivity", "verification"} <= set(titles(found))
    advised = next(rows for rows in found.tables if rows[0][:2] == ["what", "how"])
    assert ["a batch of 32 in place of 16", "batch=32"] in [row[:2] for row in advised]
    assert "verified: price" in found.all_text()


def test_without_the_program_the_page_says_what_is_left_out(tmp_path, capsys):
    toy(machine="gone.toml").save(tmp_path / "plan.json")
    assert main(["report", str(tmp_path / "plan.json"), "-o", str(tmp_path / "p.html")]) == 0
    assert (
        f"warning: left out: memory over time, compute and sensitivity: '{tmp_path}/plan.json' "
        "names the program 'toy', which is not run" in (capsys.readouterr().err)
    )
    assert "Left out: memory over time" in read((tmp_path / "p.html").read_text()).all_text()


def test_faults_on_the_command_line(tmp_path, capsys):
    toy().save(tmp_path / "plan.json")
    (tmp_path / "odd.json").write_text('{"verdicts": [{}]}')
    path = str(tmp_path / "plan.json")
    for words, message in (
        ([path], "nothing to write: name a file with -o, or with one of --output, --trace,"),
        ([path, "-o", str(tmp_path / "no" / "p.html")], "there is no folder"),
        ([path, "nonsense", "-o", str(tmp_path / "p.html")], "no built-in program is called"),
        ([path, "mlp:tiny", "-o", str(tmp_path / "p.html")], "the plan was made for program 'toy'"),
        (
            [path, "-o", str(tmp_path / "p.html"), "--verification", str(tmp_path / "odd.json")],
            "is not what `autoshard verify --json` prints",
        ),
    ):
        assert main(["report", *words]) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "p.html").exists()


def test_what_lies_on_the_host_has_a_section():
    given = case(moments, *MOMENTS, mesh={"x": 2, "y": 4}, donate_argnums=(0, 1))
    plan = replace(random_plan(given, 0), moves=())
    found = read(page(Material(plan, profile(plan, given.program, toy_machine()))))
    assert "host" in titles(found)
    text = found.all_text()
    held = format_bytes(plan.estimate.host_bytes)
    assert f"At most {held} per device in the memory of its host." in text
    waited = sum(one.exposed_seconds for one in plan.transfers)
    assert f"transfers, exposed {format_seconds(waited)}" in text
    rows = next(rows for rows in found.tables if rows[0][0] == "kind" and rows[0][-1] == "line")
    assert {row[0] for row in rows[1:]} == {"to_host", "from_host"}
    assert "transfers to the host and back that compute does not hide" in text
    both = compared(plan, plan)
    assert "transfers, exposed" in read(both).all_text()
