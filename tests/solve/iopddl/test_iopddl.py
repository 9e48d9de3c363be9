"""Contest files: what is read is what the contest means, and is written back as it was."""

from __future__ import annotations

import copy
import itertools
import json
import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoshard.solve import Edge, Node, Problem, ProblemError, Usage, evaluate, iopddl, solve
from autoshard.solve.iopddl import FORBIDDEN, ForbiddenError
from tests.solve.helpers import brute_force, random_problem

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


def changed(**paths: Any) -> dict[str, Any]:
    """DATA with other values, as `nodes_costs=...`."""
    data = copy.deepcopy(DATA)
    for path, value in paths.items():
        group, _, key = path.partition("_")
        if group in ("nodes", "edges") and key:
            data[group][key] = value
        else:
            data[path] = value
    return data


def cost_by_definition(data: dict[str, Any], choices: tuple[int, ...]) -> float:
    """What the file says that choices cost; infinity where it forbids them."""
    nodes, edges = data["nodes"], data["edges"]
    parts: dict[tuple[int, ...], list[float]] = {}
    for i, choice in enumerate(choices):
        parts.setdefault((i,), []).append(nodes["costs"][i][choice])
    for (u, v), costs in zip(edges["nodes"], edges["costs"], strict=True):
        cost = costs[choices[u] * len(nodes["costs"][v]) + choices[v]]
        parts.setdefault(tuple(sorted({u, v})), []).append(cost)
    if any(max(costs) >= FORBIDDEN or sum(costs) >= FORBIDDEN for costs in parts.values()):
        return math.inf
    last = max((stop for _, stop in nodes["intervals"]), default=0)
    for time in range(last):
        used = sum(
            nodes["usages"][i][choice]
            for i, choice in enumerate(choices)
            if nodes["intervals"][i][0] <= time < nodes["intervals"][i][1]
        )
        if used > data.get("usage_limit", math.inf):
            return math.inf
    return sum(sum(costs) for costs in parts.values())


COSTS = st.one_of(
    st.integers(-5, 30), st.integers(0, 8).map(lambda k: k / 4), st.sampled_from([6e17, 1e18, 2e18])
)


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """Contest files with up to 4 nodes: repeated edges, self-loops, forbidden costs, no edges."""
    sizes = draw(st.lists(st.integers(1, 3), max_size=4))

    def rows(values: st.SearchStrategy[Any], lengths: list[int]) -> list[list[Any]]:
        return [draw(st.lists(values, min_size=n, max_size=n)) for n in lengths]

    node = st.integers(0, max(len(sizes) - 1, 0))
    ends = draw(st.lists(st.lists(node, min_size=2, max_size=2), max_size=6 if sizes else 0))
    moments = st.lists(st.integers(0, 4), min_size=2, max_size=2).map(sorted)
    data = {
        "nodes": {
            "intervals": [draw(moments) for _ in sizes],
            "costs": rows(COSTS, sizes),
            "usages": rows(st.integers(0, 9), sizes),
        },
        "edges": {"nodes": ends, "costs": rows(COSTS, [sizes[u] * sizes[v] for u, v in ends])},
    }
    if draw(st.booleans()):
        data["usage_limit"] = draw(st.integers(0, 20))
    return data


@settings(max_examples=300, deadline=None)
@given(documents())
def test_a_file_means_what_the_contest_says(data):
    every = itertools.product(*(range(len(costs)) for costs in data["nodes"]["costs"]))
    costs = {choices: cost_by_definition(data, choices) for choices in every}
    try:
        instance = iopddl.from_json(data)
    except ForbiddenError:
        assert set(costs.values()) == {math.inf}
        return
    for choices, cost in costs.items():
        try:
            found = evaluate(instance.problem, instance.reduced(choices))
        except ProblemError:
            assert cost == math.inf
            continue
        assert instance.original(instance.reduced(choices)) == choices
        assert found.feasible == (cost < math.inf)
        if found.feasible:
            assert found.objective == pytest.approx(cost, rel=1e-12, abs=1e-9)
            assert instance.evaluate(choices).objective == pytest.approx(cost, rel=1e-12, abs=1e-9)
            assert instance.evaluate(choices).peak == found.peak
            assert instance.evaluate(choices).feasible
    assert brute_force(instance.problem) == pytest.approx(min(costs.values()), rel=1e-12, abs=1e-9)


@settings(max_examples=200, deadline=None)
@given(documents(), st.booleans())
def test_text_and_data_are_read_alike(tmp_path_factory, data, spaced):
    path = tmp_path_factory.mktemp("alike") / "p.json"
    path.write_text(json.dumps({"problem": data}, indent=1 if spaced else None))
    try:
        expected = iopddl.from_json(data)
    except ForbiddenError as error:
        message = str(error).replace("the data", repr(str(path)))
        with pytest.raises(ForbiddenError, match=re.escape(message)):
            iopddl.read(path)
        return
    assert_same(iopddl.read(path).problem, expected.problem)


def assert_same(one: Problem, other: Problem) -> None:
    """Both problems have the same numbers; names and usages of nothing do not count."""

    def nodes(problem: Problem) -> list[list[float]]:
        return [node.costs.tolist() for node in problem.nodes]

    def edges(problem: Problem) -> list[tuple[Any, ...]]:
        return [(edge.u, edge.v, edge.pair_costs().tolist()) for edge in problem.edges]

    def usages(problem: Problem) -> set[tuple[Any, ...]]:
        return {
            (usage.node, usage.start, usage.stop, tuple(usage.amounts.tolist()))
            for usage in problem.usages
            if usage.start < usage.stop and usage.amounts.any()
        }

    assert nodes(one) == nodes(other)
    assert edges(one) == edges(other)
    assert usages(one) == usages(other)
    assert (one.limit, one.offset) == (other.limit, other.offset)


def writable(problem: Problem) -> Problem:
    """The problem without what the format cannot hold."""
    first = {usage.node: usage for usage in reversed(problem.usages)}
    return replace(problem, usages=tuple(first.values()), offset=0.0)


@settings(max_examples=100, deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from(["random", "tree", "clique", "grid"]),
    st.booleans(),
    st.sampled_from([None, 0.5]),
    st.sampled_from(["p.json", "p.json.gz"]),
)
def test_problems_are_read_as_they_were_written(
    tmp_path_factory, seed, shape, integers, tightness, name
):
    problem = writable(random_problem(seed, shape=shape, integers=integers, tightness=tightness))
    path = tmp_path_factory.mktemp("again") / name
    iopddl.write(path, problem, "again")
    again = iopddl.read(path)
    assert again.name == "again"
    assert_same(again.problem, problem)
    assert iopddl.to_json(again.problem, "again") == iopddl.to_json(problem, "again")
    whole = all(
        isinstance(cost, int) for row in iopddl.to_json(problem)["nodes"]["costs"] for cost in row
    )
    assert whole or not integers


def test_equal_problems_are_equal_files(tmp_path):
    problem = iopddl.from_json(DATA).problem
    iopddl.write(tmp_path / "a.json.gz", problem)
    iopddl.write(tmp_path / "b.json.gz", problem)
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()
    assert (tmp_path / "a.json.gz").stat().st_mode & 0o044
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json.gz", "b.json.gz"]


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
    with pytest.raises(ProblemError, match="2 choices for 3 nodes"):
        instance.reduced((0, 0))


def test_equal_tables_are_one_object():
    data = changed(
        edges_nodes=[[0, 1], [1, 0], [0, 1]],
        edges_costs=[[1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6], [1.0, 2, 3, 4, 5, 6]],
        nodes_costs=[[0, 0, 0], [0, 0], [7]],
    )
    first, turned, third = iopddl.from_json(data).problem.edges
    assert first.table is third.table
    assert turned.table.shape == (2, 3)


def test_infinity_forbids_and_no_limit_is_no_limit(tmp_path):
    for limit in ("null", "Infinity"):
        path = tmp_path / "p.json"
        text = json.dumps(changed(nodes_costs=[[5, math.inf, 1], [0, 2], [7]]))
        path.write_text(text.replace('"usage_limit": 10', f'"usage_limit": {limit}'))
        instance = iopddl.read(path)
        assert instance.problem.limit is None
        assert instance.kept[0].tolist() == [0, 2]


def test_what_adds_up_to_a_forbidden_cost_is_forbidden():
    data = {
        "nodes": {"intervals": [[0, 0]] * 2, "costs": [[6e17, 0], [0, 0]], "usages": [[0, 0]] * 2},
        "edges": {
            "nodes": [[0, 0], [0, 1], [1, 0]],
            "costs": [[6e17, 0, 0, 0], [6e17, 0, 6e17, 0], [0, 6e17, 0, 0]],
        },
    }
    instance = iopddl.from_json(data)
    assert instance.kept[0].tolist() == [1]
    assert [edge.table.tolist() for edge in instance.problem.edges] == [
        [[np.inf, 0.0]],
        [[6e17], [0.0]],
    ]


def test_a_node_that_is_wholly_forbidden_is_an_infeasible_problem():
    data = changed(
        nodes_costs=[[9e17, FORBIDDEN, 1], [0, 2], [math.inf]],
        edges_costs=[[0] * 6, [0] * 6, [5e17, 0, 0, 0, 0, 0, 0, 0, FORBIDDEN]],
    )
    with pytest.raises(ForbiddenError) as caught:
        iopddl.from_json(data, source="p.json")
    assert str(caught.value) == (
        "p.json is infeasible:\n"
        "  - node 0 has only forbidden choices: 3 of at least 1e18, with its edges to itself; "
        "give one a lower cost\n"
        "  - node 2 has only forbidden choices: 1 of at least 1e18, with its edges to itself; "
        "give one a lower cost"
    )


def test_solves_to_the_choices_of_the_file():
    instance = iopddl.from_json(DATA)
    outcome = solve(instance.problem, time_limit=5)
    assert outcome.solution is not None
    assert outcome.report.objective == 15 + 0 + 7 + 0 + 1
    assert instance.original(outcome.solution.choices) == (0, 0, 0)


def test_the_price_of_a_solution_by_the_file_alone():
    instance = iopddl.from_json(changed(usage_limit=6))
    good = instance.evaluate((0, 1, 0))
    assert (good.objective, good.peak, good.peak_time) == (15 + 2 + 7 + 1 + 1, 4, 1)
    assert instance.evaluate((0, 0, 0)).violations == ("usage is 7 at time 1, the limit 6",)
    assert instance.evaluate((2, 1, 0)).violations == (
        "node 0 choice 2 and node 1 choice 1 exclude each other",
        "usage is 10 at time 1, the limit 6",
    )
    assert instance.evaluate((1, 0, 0)).violations == ("node 0: choice 1 is forbidden",)
    assert instance.evaluate((1, 0, 0)).objective == math.inf
    with pytest.raises(ProblemError) as caught:
        instance.evaluate((3, 0, -1))
    assert (
        str(caught.value)
        == "no such choice:\n  - node 0: choice 3 of 3\n  - node 2: choice -1 of 1"
    )


def test_what_the_format_cannot_hold_is_refused():
    problem = Problem(
        (Node("a", np.array([1.0, 2e18])), Node("b", np.array([0.0]))),
        (Edge.dense(0, 1, [[1e18], [1.0]], 2.0),),
        (
            Usage(0, np.array([1.0, 2.0]), 0, 2),
            Usage(0, np.array([0.0, 0.0]), 1, 2),
            Usage(0, np.array([3.0, 2.0]), 4, 5),
            Usage(1, np.array([3.0]), -2, 5),
        ),
        offset=1.5,
    )
    with pytest.raises(ProblemError) as caught:
        iopddl.to_json(problem)
    assert str(caught.value) == (
        "the contest's format cannot hold this problem:\n"
        "  - a has several usages, over [0, 2), [4, 5); leave it one\n"
        "  - the usage of b starts at -2; shift all times to 0 or later\n"
        "  - a has a choice that costs 2e+18, which reads as forbidden; use a larger unit of cost\n"
        "  - edge a - b has a pair that costs 2e+18, which reads as forbidden; use a larger unit "
        "of cost\n"
        "  - the offset 1.5 has no place; subtract it, or add it to every cost of one node"
    )


def test_nothing_is_written_over_a_file_in_vain(tmp_path):
    path = tmp_path / "p.json"
    path.write_text("precious")
    with pytest.raises(ProblemError, match="several usages"):
        iopddl.write(
            path,
            Problem(
                (Node("a", np.array([1.0])),),
                usages=(Usage(0, np.array([1.0]), 0, 1), Usage(0, np.array([1.0]), 2, 3)),
            ),
        )
    assert path.read_text() == "precious"
    assert [p.name for p in tmp_path.iterdir()] == ["p.json"]
