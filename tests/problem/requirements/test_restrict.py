"""The problem under requirements: rows, hubs, and completing a plan by the choices of hubs."""

from __future__ import annotations

import numpy as np
import pytest

from autoshard.problem.requirements.bind import bind
from autoshard.problem.requirements.hub_nodes import completed
from autoshard.problem.requirements.restrict import relaxable, restricted
from autoshard.problem.requirements.text import requirements_of
from autoshard.solve import evaluate, solve
from tests.helpers import case
from tests.problem.requirements.programs import MESH, array, train_step

WORDS = (
    "p0: pin weights.up [model, data]",
    "p0: tie result[1].up with weights.up",
    "p0: limit all_gather count 1",
    "p0: limit memory 1MiB",
    "p0: limit memory 700KiB",
)


@pytest.fixture(scope="module")
def given():
    weights = {"up": array(256, 1024), "down": array(1024, 256)}
    batch = {"inputs": array(64, 256), "targets": array(64, 256)}
    return case(train_step, weights, batch, mesh=MESH, limit=2.0**30)


def test_a_plan_is_completed_by_what_it_keeps(given):
    """The hubs say of any plan what its layouts, moves and peak say."""
    bounds = bind(given.program, requirements_of(WORDS), given.mesh)
    built = relaxable(given.built, bounds, given.mesh)
    count = len(given.built.problem.nodes)
    dice = np.random.default_rng(0)
    seen = set()
    for _ in range(12):
        costs = [dice.exponential(size=node.costs.size) for node in given.built.problem.nodes]
        nodes = [type(n)(n.name, c) for n, c in zip(given.built.problem.nodes, costs, strict=True)]
        odd = type(given.built.problem)(nodes, given.built.problem.edges)
        outcome = solve(odd, time_limit=5, gap=0.5)
        assert outcome.solution is not None
        plan = given.plan(given.built.decode(outcome.solution.choices))
        choices = [*outcome.solution.choices, *([-1] * (len(built.problem.nodes) - count))]
        found = completed(built.problem, built.hubs, choices)
        assert found is not None
        assert not evaluate(built.problem, found).violations
        kept = [found[hub.node] in hub.kept for hub in built.hubs]
        peak = evaluate(given.built.problem, outcome.solution.choices).peak
        assert kept[3:] == [peak <= 2**20, peak <= 700 * 2**10]
        assert kept[0] == (tuple(plan.specs["inputs"]["[0]['up']"]) == ("model", "data"))
        seen.add(tuple(kept))
    assert len(seen) > 1


def test_restricted_domains_hold_nothing_else(given):
    words = ["pin weights.up [model, data]", "forbid weights.down [(data, model), None]"]
    bounds = bind(given.program, requirements_of(words), given.mesh)
    built = restricted(given.built, bounds, given.mesh)
    layouts = {}
    for number, choices in built.value_choices.items():
        path = given.program.values[given.built.classes.value_members[number][0]].path
        dimensions = choices.table.dimensions
        layouts[path] = {tuple(row) for row in dimensions[choices.stored].tolist()}
    assert layouts["[0]['up']"] == {(1, 0)}
    assert (0, 0) not in layouts["[0]['down']"]
    sizes = [node.costs.size for node in built.problem.nodes]
    assert sum(sizes) < sum(node.costs.size for node in given.built.problem.nodes)
