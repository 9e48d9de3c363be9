"""Requirements in every corner: regrets and bounds against all plans that keep them."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest

import autoshard
from autoshard.cli.main import main
from autoshard.cost.step_prices import step_prices
from autoshard.problem.build import build
from autoshard.problem.requirements.records import Requirement
from autoshard.program.repeats import find_repeats
from autoshard.program.select import RequirementError
from autoshard.program.trace import Program, trace
from autoshard.search.all_shapes import InfeasibleError
from autoshard.study.robust.regret import least_regret
from autoshard.study.robust.scenarios import Point, box_of
from tests.problem.requirements.brute_force import Oracle, random_requirements
from tests.random_programs import prices_of, random_case
from tests.study.robust.test_against_brute_force import EXACT, TOLERANCE, Everything, random_ranges
from tests.study.whatif import programs


def best_of(
    given: Everything, asked: list[Requirement], oracle: Oracle, corners: list[Point]
) -> dict[Point, float] | None:
    """Seconds, with the prices of what is broken, of the best plan at corners that keeps the rest.

    What a plan keeps, it keeps with the collectives that it has on the machine as it is taken.
    """
    allowed = np.ones(len(given.all), dtype=bool)
    dues = np.zeros(len(given.all))
    for one in asked:
        kept = oracle.keeps(one)
        if one.hard:
            allowed &= kept
        elif one.price:
            dues += np.where(kept, 0.0, one.price)
    if not allowed.any():
        return None
    program, flow = given.case.program, given.case.built.prices.dataflow
    found = {}
    for corner in corners:
        prices = step_prices(program, flow, given.box.at(corner), given.case.mesh.sizes)
        problem = build(prices, given.case.built.classes, limit=None).problem
        found[corner] = float((prices_of(problem, given.all)[0] + dues)[allowed].min())
    return found


def test_what_is_asked_is_kept_whatever_the_machine_proves_to_be():
    held = infeasible = changed = 0
    for seed in range(700_000, 700_400):
        case = random_case(seed)
        oracle = Oracle(case)
        folded = len(find_repeats(case.program).op_members) < len(case.program.ops)
        if folded or oracle.plans is None or not 2 <= len(oracle.plans) <= 400:
            continue
        dice = np.random.default_rng((seed, 11))
        machine = case.built.prices.machine
        box = box_of(machine, random_ranges(machine, dice, 2, 3.0))
        given = Everything(case, box, oracle.plans)
        asked = [one for one in random_requirements(dice, case, oracle) if one.priority is None]
        corners = list(itertools.product(*((axis.fast, axis.slow) for axis in box.axes)))
        best = best_of(given, asked, oracle, corners)
        plans = replace(given.plans(), requirements=tuple(asked))
        try:
            first = plans.solve(box.taken)
        except InfeasibleError:
            assert best is None, seed
            infeasible += 1
            continue
        assert best is not None, seed
        assert first is not None
        choice, regrets = least_regret(plans, first, TOLERANCE)
        for corner, bound in plans.bounds.items():
            if corner in best:
                assert bound <= best[corner] * (1 + EXACT), seed
        for plan, regret in regrets.items():
            true = max(plans.seconds(corner, plan) / best[corner] for corner in corners) - 1
            assert regret.known - EXACT <= true <= regret.most + EXACT, seed
        one = plans.known[choice.plan]
        assert plans.demands.allows(
            plans.evaluation(box.taken, choice.plan), one.decisions, one.shape
        ), seed
        free = best_of(given, [], oracle, corners[:1])
        assert free is not None
        changed += best[corners[0]] > free[corners[0]] * (1 + EXACT)
        held += 1
        if held == 12:
            break
    assert held == 12
    assert infeasible >= 1
    assert changed >= 2  # what was asked costs something


@pytest.fixture(scope="module")
def program() -> Program:
    fn, args, options = programs.step()
    return trace(fn, *args, name="tests.study.whatif.programs:step", **options)


def test_the_plan_says_what_it_keeps(program: Program):
    found = autoshard.robust(
        program, "v5e-8", spread=0.2, mesh={"x": 8}, requirements=["pin weights.down [None, None]"]
    )
    (verdict,) = found.plan.requirements
    assert verdict["kept"]
    assert not any(found.plan.specs["inputs"]["[0]['down']"])
    assert "keeps 1 of 1 requirement, whatever the machine proves to be" in str(found)
    with pytest.raises(RequirementError, match=r"nothing\.there"):
        autoshard.robust(program, "v5e-8", spread=0.2, requirements=["pin nothing.there [None]"])


def test_the_command_line(tmp_path, capsys):
    words = ["robust", "tests.study.whatif.programs:step", "--machine", "v5e-8", "--mesh", "x=8"]
    words += ["--range", "overlap=0..0.5", "--quiet", "-o", str(tmp_path / "plan.json")]
    assert main([*words, "--require", "limit all_gather count 0"]) == 0
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert [one["kept"] for one in plan["requirements"]] == [True]
    assert not any(move["kind"] == "all_gather" for move in plan["moves"])
    assert main([*words, "--require", "limit memory 1KiB"]) == 3
    assert "no plan" in capsys.readouterr().err
