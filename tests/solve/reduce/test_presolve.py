"""Each reduction keeps the best cost, and its inverse gives a plan of exactly that cost."""

from __future__ import annotations

import itertools
import math
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoshard.solve import Edge, Node, Problem, Usage, evaluate
from autoshard.solve.iopddl import read
from autoshard.solve.reduce.presolve import presolve
from autoshard.solve.reduce.trail import InfeasibleError
from tests.helpers import sampled
from tests.solve.helpers import SHAPES, brute_force, load_at, random_problem
from tests.solve.transformer import transformer

INSTANCES = Path(__file__).parents[4] / "shared" / "data" / "iopddl"


@given(
    seed=st.integers(0, 10**6),
    shape=st.sampled_from(SHAPES),
    tightness=st.sampled_from([None, 0.3, 0.5, 0.7, 0.9]),
    forbidden=st.sampled_from([0.0, 0.1, 0.3, 0.6]),
    integers=st.booleans(),
    alike=st.booleans(),
    dominance=st.booleans(),
)
@settings(max_examples=350, deadline=None, derandomize=True)
def test_keeps_the_best_cost(seed, shape, tightness, forbidden, integers, alike, dominance):
    problem = random_problem(
        seed,
        shape=shape,
        tightness=tightness,
        forbidden=forbidden,
        integers=integers,
        alike=alike,
        most=8,
    )
    check(problem, seed, dominance=dominance)


def check(problem: Problem, seed: int = 0, **options) -> Problem | None:
    """Presolve and compare with brute force; None when the problem is found infeasible."""
    best = brute_force(problem)
    try:
        small, trail = presolve(problem, **options)
    except InfeasibleError:
        assert math.isinf(best)
        return None
    assert brute_force(small) == pytest.approx(best, rel=1e-12, abs=1e-12)
    random = np.random.default_rng(seed)
    times = {usage.start for usage in small.usages}
    for _ in range(5):
        picked = tuple(int(random.integers(node.costs.size)) for node in small.nodes)
        expanded = trail.expand(picked)
        inside, outside = evaluate(small, picked), evaluate(problem, expanded)
        assert outside.objective == pytest.approx(inside.objective, rel=1e-12, abs=1e-12)
        assert outside.feasible == inside.feasible
        for when in times:
            assert load_at(problem, expanded, when) == load_at(small, picked, when)
        assert trail.project(expanded) == picked
    return small


def test_a_chain_is_eliminated_whole():
    nodes = tuple(Node(f"n{i}", np.arange(4.0)) for i in range(50))
    table = np.random.default_rng(0).random((4, 4))
    edges = tuple(Edge.dense(i, i + 1, table) for i in range(49))
    small, trail = presolve(Problem(nodes, edges))
    assert len(small.nodes) == 0
    assert evaluate(Problem(nodes, edges), trail.expand(())).objective == pytest.approx(
        small.offset
    )


def test_a_chain_of_equal_nodes_becomes_one():
    count = 2000
    nodes = tuple(Node(f"n{i}", np.array([1.0, 0.0, 3.0])) for i in range(count))
    equal = np.where(np.eye(3) > 0, 0.5, np.inf)
    usages = tuple(Usage(i, np.array([1.0, 4.0, 2.0]), i, i + 2) for i in range(count))
    problem = Problem(nodes, [Edge.dense(i, i + 1, equal) for i in range(count - 1)], usages, 7.5)
    small, trail = presolve(problem)
    # Two are alive at a time: choice 1 takes 8 bytes, and choice 0 is cheaper than choice 2.
    assert len(small.nodes) == 0
    assert trail.expand(()) == (0,) * count
    assert small.offset == count + 0.5 * (count - 1)


def test_parallel_edges_become_one():
    random = np.random.default_rng(1)
    nodes = [Node(f"n{i}", random.random(3)) for i in range(4)]
    pairs = [*itertools.combinations(range(4), 2)]
    edges = [Edge.dense(u, v, random.random((3, 3))) for u, v in pairs]
    edges += [Edge.dense(v, u, random.random((3, 3)), 2.0) for u, v in pairs]
    usages = [Usage(i, np.array([3.0, 2.0, 1.0]), 0, 1) for i in range(4)]
    small, _ = presolve(Problem(nodes, edges, usages, 8.0), dominance=False)
    assert len(small.edges) == 6
    check(Problem(nodes, edges, usages, 8.0))


def test_twins_follow_each_other():
    random = np.random.default_rng(2)
    nodes = [Node(f"n{i}", random.random(3)) for i in range(4)]
    nodes += [Node("twin", nodes[0].costs.copy())]
    edges = [Edge.dense(u, v, random.random((3, 3))) for u, v in ((0, 1), (0, 2), (0, 3))]
    edges += [Edge(4, edge.v, edge.table, edge.left, edge.right) for edge in edges]
    edges += [Edge.dense(1, 2, random.random((3, 3)))]
    usages = [Usage(i, random.integers(1, 9, 3).astype(float), 0, 1) for i in (1, 2, 3)]
    problem = Problem(nodes, edges, usages, 12.0)
    small, _ = presolve(problem, dominance=False)
    assert [node.name for node in small.nodes if node.name in ("n0", "twin")] == ["n0"]
    check(problem)


def test_a_component_without_memory_is_decided():
    random = np.random.default_rng(3)
    nodes = [Node(f"n{i}", random.random(4)) for i in range(6)]
    edges = [
        Edge.dense(u, v, random.random((4, 4))) for u, v in itertools.combinations(range(6), 2)
    ]
    problem = Problem(nodes, edges)
    small, trail = presolve(problem, dominance=False)
    assert small.nodes == ()
    assert evaluate(problem, trail.expand(())).objective == pytest.approx(brute_force(problem))


def test_a_node_whose_memory_matters_is_not_decided_by_cost_alone():
    nodes = (Node("cheap or light", np.array([0.0, 1.0])), Node("same", np.array([0.0, 1.0])))
    usages = tuple(Usage(i, np.array([8.0, 2.0]), 0, 1) for i in range(2))
    small, _ = presolve(Problem(nodes, (), usages, 12.0))
    assert [node.name for node in small.nodes] == ["cheap or light", "same", "(fixed)"]
    assert brute_force(small) == 1.0


def test_a_leaf_that_takes_memory_joins_its_neighbour():
    random = np.random.default_rng(4)
    nodes = [Node(f"n{i}", random.random(3)) for i in range(4)]
    pairs = ((0, 1), (1, 2), (0, 2), (2, 3))
    edges = [Edge.dense(u, v, random.random((3, 3))) for u, v in pairs]
    usages = [Usage(i, random.permutation([0.0, 3.0, 5.0]), 0, 1) for i in range(4)]
    problem = Problem(nodes, edges, usages, 9.0)
    small = check(problem)
    assert small is not None
    assert "n3" not in [node.name for node in small.nodes]
    assert len(presolve(problem, dominance=False)[0].nodes) >= 4


def test_pins_and_projection_of_a_plan():
    nodes = tuple(Node(f"n{i}", np.array([0.0, 0.0, 0.0])) for i in range(3))
    table = np.array([[0.0, 1.0, 2.0], [1.0, 0.0, 1.0], [2.0, 1.0, 0.5]])
    edges = tuple(Edge.dense(u, v, table) for u, v in ((0, 1), (1, 2), (2, 0)))
    usages = tuple(Usage(i, np.array([1.0, 2.0, 3.0]), 0, 1) for i in range(3))
    problem = Problem(nodes, edges, usages, 6.0)
    small, trail = presolve(problem, {0: [1, 2]}, dominance=False)
    assert trail.kept[:3] == (0, 1, 2)
    assert trail.project((2, 0, 1)) == (1, 0, 1, *[0] * (len(small.nodes) - 3))
    assert trail.project((0, 0, 1))[0] == -1


@pytest.mark.parametrize("dominance", [True, False])
def test_pins_restrict_before_all_else(dominance):
    for seed in range(40):
        problem = random_problem(seed, shape=SHAPES[seed % len(SHAPES)], forbidden=0.1)
        pins = {
            node: [0, problem.nodes[node].costs.size - 1]
            for node in range(0, len(problem.nodes), 2)
        }
        pinned = [
            Edge.dense(0, len(problem.nodes), np.zeros((problem.nodes[0].costs.size, 1))),
            *problem.edges,
        ]
        allowed = [
            np.isin(np.arange(node.costs.size), pins.get(number, np.arange(node.costs.size)))
            for number, node in enumerate(problem.nodes)
        ]
        pinned += [
            Edge.dense(number, len(problem.nodes), np.where(mask, 0.0, np.inf)[:, None])
            for number, mask in enumerate(allowed)
        ]
        nodes = (*problem.nodes, Node("one", np.zeros(1)))
        best = brute_force(Problem(nodes, pinned, problem.usages, problem.limit, problem.offset))
        try:
            small, _ = presolve(problem, pins, dominance=dominance)
        except InfeasibleError:
            assert math.isinf(best)
        else:
            assert brute_force(small) == pytest.approx(best, rel=1e-12)


def test_after_the_deadline_the_answer_is_larger_but_right():
    for seed in range(60):
        problem = random_problem(seed, shape=SHAPES[seed % len(SHAPES)], forbidden=0.2)
        check(problem, deadline=time.monotonic() - 1.0)


def test_infeasible_problems_name_what_is_wrong():
    equal = np.where(np.eye(2) > 0, 0.0, np.inf)
    nodes = [Node(name, np.zeros(2)) for name in ("a", "b", "c")]
    edges = [Edge.dense(0, 1, equal), Edge.dense(1, 2, equal), Edge.dense(0, 2, equal[::-1])]
    with pytest.raises(InfeasibleError, match=r"^no choice is left for [abc](, [abc])*$"):
        presolve(Problem(nodes, edges))
    usages = [Usage(i, np.array([5.0, 4.0]), 3, 7) for i in range(3)]
    message = "memory: at time 3 even the smallest choices take 12 bytes, limit 11"
    with pytest.raises(InfeasibleError, match=f"^{message}$"):
        presolve(Problem(nodes, (), usages, 11.0))


def test_plans_of_the_wrong_length_are_refused():
    _, trail = presolve(random_problem(5, tightness=None))
    with pytest.raises(ValueError, match="give one each"):
        trail.expand([0] * 99)


def test_transformer_shrinks():
    problem = transformer(axes=(4, 2))
    small, _ = presolve(problem)
    assert len(small.nodes) < 0.6 * len(problem.nodes)


@pytest.mark.parametrize("name", sampled(["B", "G", "V", "P"], lambda name: name != "P"))
def test_plans_of_real_problems_come_back_at_the_same_price(name):
    path = INSTANCES / f"{name}.json.gz"
    if not path.is_file():
        pytest.skip(f"the instance {path} is not there")
    problem = read(path).problem
    small, trail = presolve(problem)
    assert len(small.nodes) < 0.3 * len(problem.nodes)
    random = np.random.default_rng(0)
    picked = tuple(int(random.integers(node.costs.size)) for node in small.nodes)
    expanded = trail.expand(picked)
    inside, outside = evaluate(small, picked), evaluate(problem, expanded)
    assert outside.objective == inside.objective
    assert outside.feasible == inside.feasible
    assert trail.project(expanded) == picked
    rows = sorted({usage.start for usage in small.usages})
    for when in random.choice(rows, size=3):
        assert load_at(problem, expanded, when) == load_at(small, picked, when)
