"""Contest files: read, written and read again; forbidden choices, repeats, self-loops."""

from __future__ import annotations

import json

import numpy as np
import pytest

from autoshard.solve import ProblemError, evaluate, iopddl, solve
from autoshard.solve.iopddl import FORBIDDEN
from tests.solve.helpers import random_problem

DATA = {
    "name": "tiny",
    "usage_limit": 10,
    "nodes": {
        "intervals": [[0, 2], [1, 3], [0, 0]],
        "costs": [[5, FORBIDDEN, 1], [0, 2], [7]],
        "usages": [[3, 0, 9], [4, 1], [100]],
    },
    "edges": {
        "nodes": [[0, 1], [0, 1], [0, 0]],
        "costs": [[0, 1, 0, 0, 2, FORBIDDEN], [1, 1, 1, 1, 1, 1], [10, 0, 0, 0, 0, 0, 0, 0, 20]],
    },
}


def test_reads_forbidden_repeated_and_own_edges():
    instance = iopddl.from_json(DATA)
    problem = instance.problem
    assert [node.costs.tolist() for node in problem.nodes] == [[15.0, 21.0], [0.0, 2.0], [7.0]]
    assert len(problem.edges) == 2
    assert problem.edges[0].table.tolist() == [[0.0, 1.0], [2.0, np.inf]]
    assert len(problem.usages) == 2
    assert instance.original((1, 0, 0)) == (2, 0, 0)
    assert instance.reduced((2, 0, 0)) == (1, 0, 0)
    with pytest.raises(ProblemError, match="node 0: choice 1"):
        instance.reduced((1, 0, 0))


def test_solves_to_the_choices_of_the_file():
    instance = iopddl.from_json(DATA)
    outcome = solve(instance.problem, time_limit=5)
    assert outcome.solution is not None
    assert outcome.report.objective == 15 + 0 + 7 + 0 + 1
    assert instance.original(outcome.solution.choices) == (0, 0, 0)


@pytest.mark.parametrize("name", ["p.json", "p.json.gz"])
def test_round_trip(tmp_path, name):
    problem = iopddl.from_json(DATA).problem
    iopddl.write(tmp_path / name, problem, "again")
    again = iopddl.read(tmp_path / name)
    assert again.name == "again"
    for choices in ((0, 0, 0), (1, 0, 0), (0, 1, 0)):
        assert evaluate(again.problem, choices).objective == (evaluate(problem, choices).objective)


def test_refuses_what_contradicts_itself():
    broken = json.loads(json.dumps(DATA))
    broken["edges"]["costs"][0] = [0]
    with pytest.raises(ProblemError, match="edge 0-1: 1 costs for 3 x 2 choices"):
        iopddl.from_json(broken)
    broken = json.loads(json.dumps(DATA))
    broken["nodes"]["costs"][2] = [FORBIDDEN]
    with pytest.raises(ProblemError, match="only forbidden choices"):
        iopddl.from_json(broken)


def test_several_usages_cannot_be_written():
    problem = next(
        p
        for p in (random_problem(seed) for seed in range(100))
        if len({u.node for u in p.usages}) < len(p.usages)
    )
    with pytest.raises(ProblemError, match="several usages"):
        iopddl.to_json(problem)
