"""Few changes, the curve, prices without a solver, and plans carried to other shapes."""

from __future__ import annotations

import itertools
import json

import jax
import pytest

from autoshard.cli.main import main
from autoshard.plan.plan import PlanError
from autoshard.program.select import RequirementError, shown_path
from autoshard.program.trace import trace
from autoshard.search.replan import replan, reprice, transferred
from autoshard.search.search import InfeasibleError, search
from tests.helpers import toy_machine
from tests.problem.requirements.programs import MESH, array, plan_of, train_step

OLD = ("pin weights.up [model, data]", "pin weights.down [data, model]")


@pytest.fixture(scope="module")
def before(program):
    return plan_of(program, *OLD)


def layouts(plan, paths):
    return [tuple(plan.specs["inputs"][path]) for path in paths]


def as_pattern(plan, value):
    spec = [*plan.specs["inputs"][value.path], *(None for _ in value.shape)][: len(value.shape)]
    entries = [str(e) if e is None or isinstance(e, str) else f"({', '.join(e)})" for e in spec]
    return f"[{', '.join(entries)}]"


def test_the_curve_is_that_of_all_sets_of_changes(program, before):
    """Every point costs what the best search costs in which some K of the inputs are free."""
    machine = toy_machine(8)
    pins = [
        f"pin {shown_path(program, value)} {as_pattern(before, program.values[value])}"
        for value in program.inputs
    ]
    found = replan(program, machine, before, max_changes=3, of="**", gap=0.0)
    free = plan_of(program)
    seconds = [point.plan.estimate.step_seconds for point in found.curve]
    assert seconds == sorted(seconds, reverse=True)
    assert seconds[-1] == pytest.approx(free.estimate.step_seconds)
    for point in found.curve:
        best = min(
            plan_of(program, *kept).estimate.step_seconds
            for kept in itertools.combinations(pins, len(pins) - min(point.changes, len(pins)))
        )
        assert point.plan.estimate.step_seconds == pytest.approx(best)
        assert len(point.changed) <= point.changes
    assert "changes  step" in str(found)


def test_no_change_keeps_the_state_and_decides_the_rest(program, before):
    found = replan(program, toy_machine(8), before, max_changes=0, gap=0.0)
    paths = ["[0]['up']", "[0]['down']"]
    assert layouts(found.plan, paths) == layouts(before, paths)
    assert found.plan.estimate.step_seconds == pytest.approx(before.estimate.step_seconds)
    with pytest.raises(RequirementError, match="names no value"):
        replan(program, toy_machine(8), before, max_changes=0, of="params.**")


def test_a_limit_of_changes_conflicts_with_a_pin_of_another_layout(program, before):
    pin = "pin weights.up [data, model]"
    one = replan(program, toy_machine(8), before, max_changes=1, requirements=[pin])
    assert layouts(one.plan, ["[0]['up']"]) == [("data", "model")]
    with pytest.raises(InfeasibleError) as refused:
        replan(program, toy_machine(8), before, max_changes=0, requirements=[pin])
    assert pin in str(refused.value)
    assert "limit changes of state count 0" in str(refused.value)


def test_layers_count_once():
    def step(layers, x):
        def loss(layers):
            y = x
            for layer in layers:
                y = jax.numpy.tanh(y @ layer["w"])
            return y.sum()

        return jax.tree.map(lambda w, g: w - g, layers, jax.grad(loss)(layers))

    layers = [{"w": array(64, 64)} for _ in range(4)]
    program = trace(step, layers, array(16, 64), donate_argnums=0)
    before = plan_of(program, "pin layers[*].w [None, None]")
    free = plan_of(program)
    assert free.estimate.step_seconds < before.estimate.step_seconds
    found = replan(program, toy_machine(8), before, max_changes=1, gap=0.0)
    assert found.plan.estimate.step_seconds == pytest.approx(free.estimate.step_seconds)
    assert found.curve[1].changed == ("layers.*.w",)


def test_a_price_without_a_solver_is_that_of_the_search(program, before):
    again = reprice(before, program, toy_machine(8), requirements=OLD)
    assert again.estimate == before.estimate
    assert again.moves == before.moves
    assert [one["kept"] for one in again.requirements] == [True, True]
    held = reprice(before, program, toy_machine(8), requirements=["limit collectives count 0"])
    assert not held.requirements[0]["kept"]


def test_a_plan_goes_to_another_batch_and_starts_its_search(before):
    weights = {"up": array(256, 1024), "down": array(1024, 256)}
    batch = {"inputs": array(128, 256), "targets": array(128, 256)}
    larger = trace(train_step, weights, batch, donate_argnums=0)
    there = reprice(before, larger, toy_machine(8))
    assert there.estimate.step_seconds > before.estimate.step_seconds
    started = search(larger, toy_machine(8), mesh=MESH, start=before, baselines=False, gap=0.0)
    plain = search(larger, toy_machine(8), mesh=MESH, baselines=False, gap=0.0)
    assert started.estimate.step_seconds == pytest.approx(plain.estimate.step_seconds)
    assert started.estimate.step_seconds <= there.estimate.step_seconds


def test_what_does_not_carry_over_is_told(program, before):
    weights = {"up": array(256, 1023), "down": array(1023, 256)}
    odd = trace(train_step, weights, {"inputs": array(64, 256), "targets": array(64, 256)})
    with pytest.raises(PlanError, match="do not divide"):
        transferred(odd, before)
    other = trace(lambda x: x * 2, array(8, 8))
    with pytest.raises(PlanError, match="not of that form"):
        transferred(other, before)
    with pytest.raises(PlanError, match="has 16 chips"):
        reprice(before, program, toy_machine(16))


def test_the_commands(tmp_path, capsys):
    path = tmp_path / "plan.json"
    words = "search mlp:tiny --machine v5e-8 --mesh x=8 --no-baselines --quiet"
    pinned = "pin params.layers[*].up [x, None]"
    assert main([*words.split(), "--require", pinned, "-o", str(path)]) == 0
    capsys.readouterr()
    assert main(["check", str(path), "--machine", "v6e-8", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["fits"]
    assert data["plan"]["requirements"][0]["kept"]
    assert main(["check", str(path), "--require", "limit memory 1KiB"]) == 5
    captured = capsys.readouterr()
    assert f"kept     {pinned}" in captured.out
    assert "it does not keep limit memory 1KiB" in captured.err
    words = f"search mlp:tiny --machine v5e-8 --from {path} --quiet --no-baselines --json"
    assert main([*words.split(), "--max-changes", "1"]) == 0
    captured = capsys.readouterr()
    assert captured.err.startswith("changes  step")
    assert json.loads(captured.out)["requirements"][0]["text"].startswith("limit changes of state")
    assert main(words.split()) == 0
    capsys.readouterr()
    assert main([*words.split(), "--mesh", "x=4,y=2", "--max-changes", "1"]) == 2
    assert "leave --mesh out" in capsys.readouterr().err
