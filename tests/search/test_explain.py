"""Explanations: prices are those of cold searches, causes are named, plans are compared."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from autoshard.cli.main import main
from autoshard.plan.plan import PlanError
from autoshard.program.layout_pattern import Dimension, LayoutPattern
from autoshard.program.select import find_values
from autoshard.search.closest import closest
from autoshard.search.explain import Explainer, values_to_explain
from autoshard.search.explanation import Alternative, priced
from autoshard.search.provenance import origins
from autoshard.search.search import InfeasibleError
from autoshard.solve import evaluate
from autoshard.solve.sensitivity.about import SolvesAbout
from tests.helpers import toy_machine
from tests.problem.requirements.programs import MESH, plan_of
from tests.random_programs import all_plans, prices_of, random_case

PIN = "pin weights.up [model, data]"


@pytest.fixture(scope="module")
def pinned(program):
    return Explainer(program, toy_machine(8), plan_of(program, PIN))


def pattern(layout, rank):
    names = list(MESH)
    axes = [[names[a] for a, d in enumerate(layout) if d == k] for k in range(rank)]
    return str(LayoutPattern(tuple(Dimension(tuple(found)) for found in axes)))


@pytest.mark.parametrize("target", ["weights.down", "scope mlp:dot_general"])
def test_every_price_is_that_of_a_cold_search(program, pinned, target):
    value = find_values(program, target)[-1]
    rank = len(program.values[value].shape)
    words = target
    if target.startswith("scope"):  # the last product alone
        words = f"line {program.ops[program.values[value].producer].line}:dot_general"
    for found in pinned.explain(value).alternatives:
        asked = f"pin {words} {pattern(found.layout, rank)}"
        if found.step_seconds is None:
            with pytest.raises(InfeasibleError):
                plan_of(program, PIN, asked)
            continue
        cold = plan_of(program, PIN, asked)
        assert found.step_seconds == pytest.approx(cold.estimate.step_seconds, rel=1e-8)
        assert found.bound == pytest.approx(cold.proof.bound, rel=1e-6)


def test_prices_are_no_more_exact_than_the_plan(program, pinned, monkeypatch):
    """Where the best plan is not known for certain, no alternative is asked for more than that."""
    asked = []

    def solved(self, group, *, time_limit, gap):
        asked.append(gap)
        return solve(self, group, time_limit=time_limit, gap=gap)

    solve = SolvesAbout.solve
    monkeypatch.setattr(SolvesAbout, "solve", solved)
    plan = pinned.plan
    loose = Explainer(program, toy_machine(8), plan)
    found = loose.outcome
    unproven = replace(found.report, bound=0.9 * found.report.objective, gap=0.1)
    for without, space in list(loose._spaces.items()):
        known = replace(space.solves.outcome, report=unproven)
        loose._spaces[without] = space._replace(solves=replace(space.solves, outcome=known))
    loose.outcome = replace(found, report=unproven)
    (value,) = values_to_explain(program, plan, "weights.down")
    said = loose.explain(value)
    assert set(asked) == {0.1}
    assert "all else decided anew, each to 10.00 % as is the plan itself:" in str(said)
    exact = {one.layout: one for one in pinned.explain(value).alternatives}
    for one in said.alternatives:
        if one.step_seconds is None:
            continue
        least = exact[one.layout].step_seconds
        assert one.bound <= least * (1 + 1e-9)
        assert least * (1 - 1e-9) <= one.step_seconds <= least / 0.9


def test_what_is_not_proven_of_a_price_is_told():
    one = Alternative((0,), 1.2, 2.0**30, 1.1, (), 3)
    assert priced(one, 1.0, 0.0) == (
        "+200.0 ms, +1.00 GiB at the peak; 3 values inside changed (at least +100.0 ms)"
    )


def test_the_proof_of_a_plan_is_of_its_prices(program):
    """A plan that is priced for another machine has a proof that says nothing there."""
    plan = plan_of(program)
    here = Explainer(program, toy_machine(8), plan)
    assert here._known_bound() == plan.proof.bound
    other = replace(plan, proof=replace(plan.proof, objective=2 * plan.proof.objective))
    assert Explainer(program, toy_machine(8), other)._known_bound() == -np.inf


def test_layouts_against_requirements_are_priced_without_them(program, pinned):
    (value,) = values_to_explain(program, pinned.plan, "weights.up")
    said = pinned.explain(value)
    free = plan_of(program)
    best = said.alternatives[0]
    assert best.step_seconds == pytest.approx(free.estimate.step_seconds)
    assert best.note == f"without {PIN}"
    ((text, saved),) = said.requirements
    loss = pinned.plan.estimate.step_seconds - free.estimate.step_seconds
    assert (text, saved) == (PIN, pytest.approx(loss, rel=1e-6))
    assert f"required: {PIN}: costs" in str(said)


def test_an_axis_comes_from_a_requirement_by_a_chain(program, pinned):
    (value,) = values_to_explain(program, pinned.plan, "weights.down")
    found = origins(pinned.prices, pinned.plan, value, pinned.demands.bounds)
    assert {one.requirement for one in found} == {PIN}
    for one in found:
        assert one.chain[0].startswith("weights.up f32[256,1024]")
        assert one.chain[-1].startswith("weights.down f32[1024,256]")


def test_without_a_requirement_an_axis_saves_work(program):
    plan = plan_of(program)
    explainer = Explainer(program, toy_machine(8), plan)
    (value,) = values_to_explain(program, plan, "weights.up")
    found = explainer.explain(value).origins
    assert found
    assert all(one.saved_seconds > 0 and not one.requirement for one in found)
    assert "dot_general" in found[0].op


def test_memory_that_binds_is_named(program):
    asked = "limit all_gather count 0"
    free = plan_of(program, asked)
    tight = plan_of(program, asked, f"limit memory {0.95 * free.estimate.peak_bytes:.0f}")
    assert tight.estimate.step_seconds > free.estimate.step_seconds
    explainer = Explainer(program, toy_machine(8), tight)
    said = [str(explainer.explain(value)) for value in find_values(program, "weights.*")]
    assert any("memory binds at" in one and "a GiB more there saves up to" in one for one in said)


def test_what_has_no_layout_is_told(program, pinned):
    free = next(value.index for value in program.values if value.free)
    with pytest.raises(PlanError, match="computed wherever it is needed"):
        pinned.explain(free)


@pytest.mark.parametrize("seed", range(12))
def test_the_closest_plan_is_the_closest_of_all(seed):
    """Against all plans that take every choice from one of the two and cost no more."""
    given = random_case(seed)
    problem = given.built.problem
    plans = all_plans(problem, 3000)
    if plans is None:
        pytest.skip("too many plans")
    seconds, _ = prices_of(problem, plans)
    dice = np.random.default_rng(seed)
    before, after = plans[dice.integers(len(plans), size=2)]
    weights = dict.fromkeys(given.built.value_node.values(), 1.0)
    counted = np.array([weights.get(n, 0.0) for n in range(plans.shape[1])])
    price = evaluate(problem, after.tolist()).objective
    ends = before.tolist(), after.tolist()
    found = np.array(closest(problem, *ends, weights, price=price, time_limit=10))
    mixed = ((plans == before) | (plans == after)).all(axis=1)
    mixed &= seconds <= price + 1e-9 * abs(price)
    least = ((plans != before) @ counted)[mixed].min()
    assert (found != before) @ counted == least
    assert evaluate(problem, found.tolist()).objective <= price * (1 + 2e-9)


def test_plans_are_compared(program, pinned):
    other = plan_of(program)
    text = str(pinned.against(other))
    assert "what is laid out otherwise: " in text
    assert "weights.up: f32[256@model, 1024@data] -> " in text
    assert f"(without {PIN})" in text
    with pytest.raises(PlanError, match="different meshes"):
        pinned.against(plan_of(program, mesh={"x": 8}))


def refused_line(path, capsys):
    """What is said of a line where nothing is made; it proposes others."""
    assert main(["explain", str(path), "--line", "mlp.py:1"]) == 2
    return capsys.readouterr().err


def test_the_command(tmp_path, capsys):
    path, other = tmp_path / "plan.json", tmp_path / "other.json"
    words = "search mlp:tiny --machine v5e-8 --mesh x=8 --no-baselines --quiet"
    pinned = ["--require", "pin params.layers[0].up [x, None]"]
    assert main([*words.split(), *pinned, "-o", str(path)]) == 0
    assert main([*words.split(), "-o", str(other)]) == 0
    capsys.readouterr()
    assert main(["explain", str(path), "params.layers[*].up"]) == 0
    said = capsys.readouterr().out
    assert "params.layers[0].up f32" in said
    assert "required: pin params.layers[0].up [x, None]" in said
    place = re.search(r"mean line (mlp\.py:\d+)", refused_line(path, capsys))
    assert place is not None
    assert main(["explain", str(path), "--line", place[1]]) == 0
    assert f"({place[1]}) is bf16" in capsys.readouterr().out
    assert main(["explain", str(path), "--against", str(other)]) == 0
    assert "the other plan takes" in capsys.readouterr().out
    assert main(["annotate", str(other), "--quiet"]) == 0
    assert "shardings of inputs and results" in capsys.readouterr().out
    assert main(["explain", str(path)]) == 0
    assert capsys.readouterr().out.startswith("dearest values as they lie")
    assert main(["explain", str(path), "params.layer"]) == 2
    assert "names no value of mlp:tiny" in capsys.readouterr().err
