"""Bounds by branching, and the choices that they drop, against brute force."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoshard.solve import Edge, Node, Problem, Usage, evaluate
from autoshard.solve.branch.splits import splits
from autoshard.solve.branch.squeeze import squeeze
from autoshard.solve.branch.tree import Solved, Tree
from autoshard.solve.dual import DualAscent
from autoshard.solve.flat import flatten
from tests.solve.helpers import random_problem


def plans(problem: Problem) -> dict[tuple[int, ...], float]:
    """All plans that break nothing, with their costs without the offset."""
    found = {}
    for choices in itertools.product(*(range(node.costs.size) for node in problem.nodes)):
        answer = evaluate(problem, choices)
        if not answer.violations:
            found[choices] = answer.objective - problem.offset
    return found


def binding(seed: int, shape: str) -> Problem:
    """A problem in which memory is a matter of every node, and scarce."""
    problem = random_problem(seed, shape=shape, forbidden=0.1, tightness=None, most=6)
    random = np.random.default_rng(seed)
    usages = tuple(
        Usage(i, random.integers(0, 9, node.costs.size).astype(float), start, start + 3)
        for i, node in enumerate(problem.nodes)
        for start in random.integers(0, 3, 2).tolist()
    )
    peaks = [
        evaluate(Problem(problem.nodes, (), usages, None), [int(c) for c in picked]).peak
        for picked in random.integers(0, 100, (9, len(problem.nodes)))
        % np.array([node.costs.size for node in problem.nodes])
    ]
    limit = float(np.quantile(peaks, 0.2)) + 1.0
    return Problem(problem.nodes, problem.edges, usages, limit, offset=1.5)


@given(
    seed=st.integers(0, 10**6),
    shape=st.sampled_from(["clique", "random", "grid"]),
    slack=st.sampled_from([0.0, 1e-6, 0.3]),
    passes=st.sampled_from([1, 30]),
    exactly=st.sampled_from([None, 0.0, 0.5, 1.0]),
)
@settings(max_examples=120, deadline=None, derandomize=True)
def test_bounds_hold_and_close_in_on_the_best_plan(seed, shape, slack, passes, exactly):
    problem = binding(seed, shape)
    costs = plans(problem)
    flat = flatten(problem)
    best = min(costs.values(), default=10.0)
    cutoff = best + slack * (1.0 + abs(best))
    dual = DualAscent(flat)
    dual.run(cutoff, math.inf, passes)

    def solved(alive, upper, _):
        """What brute force says of a leaf; of its gap to the cutoff below, only a part."""
        where = {plan: flat.node_start[:-1] + np.array(plan) for plan in costs}
        inside = {plan: cost for plan, cost in costs.items() if alive[where[plan]].all()}
        plan = min(inside, key=inside.__getitem__, default=None)
        if plan is None or inside[plan] >= upper:
            return Solved(upper if exactly == 1.0 else least, None, False)
        bound = inside[plan] - (1.0 - exactly) * 0.1
        return Solved(bound, np.array(plan) if exactly else None, exactly == 1.0)

    tree = Tree(flat, cutoff, exactly=None if exactly is None else solved)
    least = -math.inf
    for _ in range(300):
        tree.run(dual, 0.0 if least == -math.inf else math.inf)
        assert least <= tree.bound <= tree.cutoff
        least, floor = tree.bound, tree.floor()
        tree.cutoff = min([cutoff, *(costs[tuple(plan.tolist())] for plan in tree.met)])
        assert not costs or min(least, tree.cutoff) <= best + 1e-9
        for choices, cost in costs.items():
            where = flat.node_start[:-1] + np.array(choices)
            assert cost >= tree.cutoff - 1e-9 or floor[where].max() <= cost + 1e-9
        if least >= tree.cutoff:
            break
    assert tree.bound == tree.cutoff >= min(dual.bound, cutoff) - 1e-9
    assert tree.cutoff == pytest.approx(best if costs else cutoff)


@given(seed=st.integers(0, 10**6), shape=st.sampled_from(["clique", "lonely"]))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_what_fits_beside_nothing_goes_and_nothing_else(seed, shape):
    problem = binding(seed, shape)
    flat = flatten(problem)
    random = np.random.default_rng(seed)
    alive = random.random(flat.costs.size) < 0.8
    before = alive.copy()
    fits = squeeze(flat, alive)
    assert not (alive & ~before).any()
    free = Problem(problem.nodes, (), problem.usages, problem.limit)
    left = [
        flat.node_start[:-1] + np.array(choices)
        for choices in plans(free)
        if before[flat.node_start[:-1] + np.array(choices)].all()
    ]
    assert fits or not left
    for where in left:
        assert alive[where].all()
    again = alive.copy()
    assert not fits or (squeeze(flat, again) and np.array_equal(again, alive))


def test_a_split_has_two_parts_that_hold_choices():
    flat = flatten(binding(7, "clique"))
    alive = np.ones(flat.costs.size, dtype=np.bool_)
    zeros = np.zeros(flat.costs.size)
    found = splits(flat, alive, zeros, zeros, 1.0)
    assert found
    for split in found:
        start, stop = flat.span(split.node)
        assert split.part.size == stop - start
        assert 0 < split.part.sum() < stop - start
    alive[:] = False
    alive[flat.node_start[:-1]] = True
    assert splits(flat, alive, zeros, zeros, 1.0) == []


def rival_plans(count: int) -> Problem:
    """Pairs of large tensors: both of a pair are whole or neither is, and whole pairs are quick.

    Each pair takes 0.6 of the limit, so that one fits; the relaxation takes parts of several.
    """
    nodes = tuple(Node(f"n{i}", np.array([0.0, 10.0])) for i in range(2 * count))
    alike = np.array([[0.0, 40.0], [40.0, 0.0]])
    edges = tuple(Edge.dense(2 * i, 2 * i + 1, alike) for i in range(count))
    usages = tuple(Usage(i, np.array([30.0, 0.0]), 0, 2) for i in range(2 * count))
    return Problem(nodes, edges, usages, 100.0)


@pytest.mark.parametrize("count", [3, 5])
def test_splits_by_usage_close_the_gap_of_the_relaxation(count):
    problem = rival_plans(count)
    flat = flatten(problem)
    best = min(plans(problem).values())
    assert best == 20.0 * (count - 1)
    dual = DualAscent(flat)
    dual.run(best, math.inf, 500)
    assert dual.bound < best - 5.0
    tree = Tree(flat, best)
    tree.run(dual, math.inf)
    assert tree.bound == best
    assert 0 < tree.splits < 4 * count
