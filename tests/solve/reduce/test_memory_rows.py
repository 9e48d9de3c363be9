"""The memory side of presolve: exact rows, boxes that add up, choices that fit beside nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoshard.solve import Node, Problem, Usage
from autoshard.solve.evaluate import LOAD_TOLERANCE
from autoshard.solve.reduce.memory_rows import Memory
from autoshard.solve.reduce.presolve import presolve
from autoshard.solve.reduce.trail import InfeasibleError
from tests.solve.helpers import brute_force, load_at


def random_usages(seed: int) -> Problem:
    """Nodes whose usages overlap, nest and touch, some alike and some multiples of each other."""
    random = np.random.default_rng(seed)
    count = int(random.integers(1, 5))
    sizes = random.integers(1, 4, count)
    nodes = [Node(f"n{i}", random.random(size)) for i, size in enumerate(sizes.tolist())]
    shapes = [[random.integers(0, 4, size).astype(float) for _ in range(2)] for size in sizes]
    usages = []
    for _ in range(int(random.integers(1, 14))):
        node = int(random.integers(count))
        start = int(random.integers(0, 12))
        amounts = shapes[node][int(random.integers(2))] * float(random.integers(1, 4))
        usages.append(Usage(node, amounts, start, start + int(random.integers(0, 6))))
    limit = float(random.integers(1, 30))
    return Problem(nodes, (), usages, limit)


@given(seed=st.integers(0, 10**6))
@settings(max_examples=400, deadline=None, derandomize=True)
def test_the_rows_left_say_the_same_of_every_plan(seed):
    problem = random_usages(seed)
    memory = Memory.of(problem)
    times = range(20)
    sizes = [node.costs.size for node in problem.nodes]
    plans = np.stack([axis.ravel() for axis in np.indices(sizes)]).T.tolist()
    loads = np.array([[load_at(problem, plan, when) for when in times] for plan in plans])
    allowed = problem.limit * (1 + LOAD_TOLERANCE)
    try:
        heavy = memory.refresh()
    except InfeasibleError:
        assert (loads.max(axis=1) > allowed).all()
        return
    fits = loads.max(axis=1) <= allowed
    for node, mask in heavy:
        dropped = np.array([not mask[plan[node]] for plan in plans])
        assert dropped.any()
        assert not (fits & dropped).any()
    for plan, right, load in zip(plans, fits.tolist(), loads, strict=True):
        left = [_load(memory, plan, int(row)) for row in memory.rows]
        assert left == pytest.approx(load[memory.rows], rel=1e-12)
        assert (max(left, default=0.0) <= allowed) == right


def _load(memory: Memory, plan: list[int], row: int) -> float:
    """The bytes of a plan at a row, as `memory` has them."""
    alive = (memory.start <= row) & (row < memory.stop)
    columns = (memory.node[alive], memory.vector[alive], memory.scale[alive])
    used = sum(
        memory.vectors.items[vector][plan[node]] * scale
        for node, vector, scale in zip(*(column.tolist() for column in columns), strict=True)
    )
    return used + float(memory.base_load(np.array([row]))[0])


def test_usages_that_take_turns_become_one():
    nodes = [Node(f"n{i}", np.array([0.0, 1.0])) for i in range(3)]
    amounts = np.array([9.0, 1.0])
    usages = [Usage(i, amounts, t, t + 1) for i in range(3) for t in range(10)]
    small, _ = presolve(Problem(nodes, (), usages, 20.0), dominance=False)
    assert len({usage.start for usage in small.usages}) == 1
    assert len([usage for usage in small.usages if usage.amounts.size > 1]) == 3


def test_a_choice_that_fits_beside_nothing_goes():
    nodes = [Node("a", np.array([0.0, 1.0, 2.0])), Node("b", np.array([0.0, 1.0]))]
    usages = [
        Usage(0, np.array([8.0, 5.0, 1.0]), 0, 4),
        Usage(1, np.array([9.0, 3.0]), 2, 6),
    ]
    memory = Memory.of(Problem(nodes, (), usages, 9.0))
    found = {node: mask.tolist() for node, mask in memory.refresh()}
    assert found == {0: [False, True, True], 1: [False, True]}


def test_stops_are_not_part_of_an_interval():
    nodes = [Node(f"n{i}", np.array([0.0, 1.0])) for i in range(2)]
    usages = [Usage(i, np.array([6.0, 1.0]), 3 * i, 3 * i + 3) for i in range(2)]
    small, _ = presolve(Problem(nodes, (), usages, 6.0))
    assert (small.nodes, small.offset) == ((), 0.0)
    usages[1] = Usage(1, np.array([6.0, 1.0]), 2, 6)
    assert brute_force(presolve(Problem(nodes, (), usages, 7.0))[0]) == 1.0
