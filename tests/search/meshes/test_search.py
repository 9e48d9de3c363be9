"""What is chosen is at least as good as every named schedule of every placement; errors."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from autoshard.cli.main import main
from autoshard.cli.progress import ProgressLine
from autoshard.lower.mpmd.cut.stages import StageError
from autoshard.lower.mpmd.partition import partition_step
from autoshard.machine.cluster import load_cluster
from autoshard.plan.work import work_of
from autoshard.program.trace import trace
from autoshard.search.meshes.choices import placements
from autoshard.search.meshes.plan import PipelinePlan
from autoshard.search.meshes.price import StagePrice
from autoshard.search.meshes.pricer import Pricer
from autoshard.search.meshes.problem import TICK, loop_seconds, outer_seconds, schedule_problem
from autoshard.search.meshes.report import format_pipeline
from autoshard.search.meshes.search import search_meshes
from autoshard.search.meshes.stage_program import stage_program
from autoshard.search.search import InfeasibleError
from autoshard.solve.schedule.named import named_orders
from autoshard.solve.schedule.timeline import simulate
from autoshard.units import format_percent, format_seconds
from tests.helpers import sampled
from tests.lower.mpmd.cases import small_step

PROGRAM = """
from tests.lower.mpmd.cases import small_step


def step(microbatches=None):
    count = microbatches or 1
    return small_step(scan=True, layers=2, microbatches=count)


def fixed():
    return small_step(scan=True, layers=2)
"""


def named(step, cluster, blocks):
    """Seconds of the step with every placement, cut by FLOP, and every named schedule of it."""
    pricer = Pricer(seconds=30)
    found = {}
    for placement in placements(cluster, None, blocks=blocks):
        machines = [cluster.meshes[mesh] for mesh in placement.mesh_of]
        cut = partition_step(
            step.fn,
            *step.args,
            stages=placement.stages,
            speeds=placement.speeds(
                tuple(one.chips * one.chip.matmul_flops("bfloat16") for one in cluster.meshes)
            ),
            donate_argnums=(0, 1),
        )
        prices = []
        for stage, machine in enumerate(machines):
            program = stage_program(cut, stage, "split")
            price = pricer.price(program, machine, None, pricer.limit(machine), 30)
            assert isinstance(price, StagePrice)
            prices.append(price)
        limits = [pricer.limit(machine) for machine in cluster.meshes]
        instance = schedule_problem(cut, prices, placement.mesh_of, cluster, limits, "split")
        after = max(outer_seconds(cut, prices, placement.mesh_of, cluster))
        dispatch = [mesh.dispatch_seconds for mesh in cluster.meshes]
        for name, order in named_orders(instance).items():
            loop = loop_seconds(instance, order, "split", dispatch)
            found[placement.name, placement.stages, name] = loop + after
    return found


@pytest.mark.parametrize(
    "meshes", sampled(["2 x h100-1", "h100-1 + a100-1"], lambda one: "a100" in one)
)
def test_no_named_schedule_of_any_placement_is_better(meshes):
    step, cluster = small_step(scan=True), load_cluster(meshes)
    plan = search_meshes({4: step}, cluster, compare=False, gap=0.0, modes=("split",))
    tried = {(choice.name, choice.stages) for choice in plan.choices}
    others = named(step, cluster, 4)
    assert plan.step_seconds <= min(others.values()) + 1e-12
    assert tried == {(f"{name}, backward split", stages) for name, stages, _ in others}
    assert plan.bound <= plan.order_bound <= plan.step_seconds
    text = format_pipeline(plan)
    assert "one mesh of all chips was not planned" in text
    assert all(len(line) <= 120 for line in text.splitlines())
    fn, args, options = step
    whole = work_of(trace(fn, *args, **options), cluster.meshes)
    assert plan.work == whole
    assert format_percent(whole.utilisation(plan.step_seconds)) in text
    assert PipelinePlan.from_json(plan.to_json()).work == whole


@pytest.mark.parametrize(
    ("meshes", "vocabulary"),
    sampled(
        [("2 x h100-1", 8192), ("h100-1 + a100-1", 2048), ("h100-1 + a100-1", 8192)],
        lambda one: one == ("h100-1 + a100-1", 8192),
    ),
)
def test_heavy_ends_and_two_speeds_beat_every_named_schedule(meshes, vocabulary):
    step = small_step(6, scan=True, width=2048, vocabulary=vocabulary, rows=8192)
    cluster = load_cluster(meshes)
    plan = search_meshes({4: step}, cluster, compare=False, gap=0.0)
    others = named(step, cluster, 6)
    assert {name.partition(" ")[0] for name, _, _ in others} == {"v1", "loop", "v"}
    assert plan.step_seconds < min(others.values())
    assert not plan.waits_for_controller


def test_more_stages_than_blocks():
    with pytest.raises(StageError) as caught:
        search_meshes({4: small_step(layers=2)}, load_cluster("2 x h100-1"), stages=(1, 4))
    assert str(caught.value) == (
        "these stages cannot be placed:\n"
        "  * 2 meshes do not share 1 stage evenly\n"
        "  * 4 stages are more than the 2 repeated blocks of step (layer_0 to layer_1)"
    )


def test_too_little_memory_names_what_is_needed():
    with pytest.raises(InfeasibleError) as caught:
        search_meshes(
            {4: small_step(layers=2, scan=True)},
            load_cluster("2 x h100-1"),
            stages=(2,),
            modes=("fused",),
            memory_limit=1000.0,
            compare=False,
        )
    assert str(caught.value).startswith(
        "no choice of stages and microbatches has a plan:\n"
        "  * 2 stages, 4 microbatches, v1, backward fused: stage "
    )
    assert "the smallest limit for which one was found is" in str(caught.value)


def test_the_command_line(tmp_path, capsys):
    program = tmp_path / "small.py"
    program.write_text(PROGRAM)
    plan, svg, trace = (str(tmp_path / name) for name in ("plan.json", "a.svg", "a.trace"))
    words = ["search", f"{program}:step", "--meshes", "2 x h100-1", "--quiet"]
    code = main([*words, "--microbatches", "4", "-o", plan, "--svg", svg, "--trace", trace])
    out = capsys.readouterr().out
    assert code == 0
    assert "pipelining loses" in out or "pipelining wins" in out
    assert "mesh 1   " in out
    assert "h100-1" in (tmp_path / "plan.json").read_text()
    loop = float(PipelinePlan.load(plan).timeline.makespan) * TICK
    tasks = [e for e in json.loads(Path(trace).read_text())["traceEvents"] if e["ph"] == "X"]
    assert max(e["ts"] + e["dur"] for e in tasks) == pytest.approx(loop * 1e6)
    assert f"makespan {format_seconds(loop)}" in Path(svg).read_text()
    ran = str(tmp_path / "ran.trace")
    assert main(["verify", plan, "--trace", ran]) == 0
    out = capsys.readouterr().out
    assert "order        ok" in out
    assert "numbers      ok       on 2 fake devices as on one, in double precision" in out
    assert "mesh 1: " in out
    blocks = [e for e in json.loads(Path(ran).read_text())["traceEvents"] if e["ph"] == "X"]
    assert {"F", "transfer"} <= {kind for one in blocks for kind in one["cat"].split("+")}
    damaged = json.loads(Path(plan).read_text())
    damaged["step_seconds"] *= 2
    Path(plan).write_text(json.dumps(damaged))
    assert main(["verify", plan]) == 5
    assert "order        FAILED   the step takes" in capsys.readouterr().out
    assert main(["verify", plan, "--explicit"]) == 2
    assert "a plan for several meshes is verified without --explicit" in capsys.readouterr().err
    assert main([*words, "--microbatches", "2,4", "--stages", "8"]) == 2
    assert "more than the 2 repeated blocks" in capsys.readouterr().err
    fixed = ["search", f"{program}:fixed", "--meshes", "2 x h100-1", "--quiet"]
    assert main([*fixed, "--microbatches", "4"]) == 2
    assert "has its microbatches built in" in capsys.readouterr().err
    assert main(["search", f"{program}:step", "--machine", "h100-1", "--svg", svg]) == 2
    assert "--svg applies to --meshes alone: leave it out" in capsys.readouterr().err


def test_microbatches_that_do_not_divide(capsys):
    words = ["search", "llama3-8b", "--meshes", "2 x h100-1", "--quiet", "--microbatches", "3"]
    assert main(words) == 2
    assert "the batch cannot be cut into 3 equal microbatches" in capsys.readouterr().err


@pytest.fixture
def _interruptible():
    """Ctrl-C interrupts, also where the tests run in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_interruptible")
@pytest.mark.parametrize("moment", ["4 stages", "improving the stages"])
def test_an_interrupt_leaves_the_best_plan_so_far(moment, tmp_path, capsys, monkeypatch):
    program = tmp_path / "small.py"
    program.write_text(PROGRAM.replace("layers=2", "layers=4"))
    path = str(tmp_path / "plan.json")
    show = ProgressLine.show

    def pressed(line, text, **options):
        show(line, text, **options)
        if text.startswith(moment):
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(ProgressLine, "show", pressed)
    words = ["search", f"{program}:step", "--meshes", "2 x h100-1", "--microbatches", "4"]
    assert main([*words, "--gap", "0", "--quiet", "-o", path]) == 0
    told = capsys.readouterr()
    assert "interrupted; this is the best plan so far" in told.err
    plan = PipelinePlan.load(path)
    assert plan.limit_hit == "interrupted"
    assert 0 < plan.bound <= plan.step_seconds
    assert json.loads(Path(path).read_text())["gap"] == 1 - plan.bound / plan.step_seconds
    assert simulate(plan.instance, plan.order).makespan > 0
    assert ", interrupted" in told.out


@pytest.mark.usefixtures("_interruptible")
def test_an_interrupt_before_any_plan(tmp_path, monkeypatch):
    program = tmp_path / "small.py"
    program.write_text(PROGRAM)

    def pressed(line, text, **options):
        if text.startswith("bounding"):
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(ProgressLine, "show", pressed)
    path = tmp_path / "plan.json"
    words = ["search", f"{program}:step", "--meshes", "2 x h100-1", "--quiet", "-o", str(path)]
    assert main(words) == 130
    assert not path.exists()
