"""Nodes decided, and what is hoped of it, against brute force."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoshard.solve import Edge, Node, Problem
from autoshard.solve.branch.cases import decide, hubs
from autoshard.solve.branch.leaf import Leaf, ascent_on, ascent_within, leaf_of
from autoshard.solve.branch.tree import Tree
from autoshard.solve.branch.ways import HALVES, PRICES, Branch, Ways
from autoshard.solve.dual import DualAscent
from autoshard.solve.flat import Flat, flatten
from tests.solve.branch.test_tree import binding, plans


def root(flat: Flat, dual: DualAscent) -> Leaf:
    """All plans, as a leaf."""
    value, _, extra = dual.appraisal()
    return leaf_of(dual, dual.alive, value, value + extra, np.inf, {})


def layers(count: int) -> Problem:
    """Pairs that should be alike, of which one should follow the hub and the other should not.

    Every pair costs 1 in any plan, and nothing in the relaxation, where all is half and half.
    """
    alike = np.array([[0.0, 1.0], [1.0, 0.0]])
    nodes = [Node(f"n{i}", np.zeros(2)) for i in range(2 * count + 1)]
    edges = []
    for one in range(1, 2 * count, 2):
        edges += [Edge.dense(0, one, alike), Edge.dense(0, one + 1, alike[::-1])]
        edges += [Edge.dense(one, one + 1, alike)]
    return Problem(nodes, edges)


@given(
    seed=st.integers(0, 10**6),
    shape=st.sampled_from(["clique", "random", "grid"]),
    slack=st.sampled_from([1e-6, 0.3]),
    worth=st.sampled_from([-np.inf, 0.1]),
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_parts_of_a_node_hold_every_cheap_plan(seed, shape, slack, worth):
    problem = binding(seed, shape)
    costs = plans(problem)
    flat = flatten(problem)
    best = min(costs.values(), default=10.0)
    cutoff = best + slack * (1.0 + abs(best))
    dual = DualAscent(flat)
    dual.run(cutoff, math.inf, 5)
    leaf = root(flat, dual)
    for node in range(flat.node_count):
        start, stop = flat.span(node)

        def begin(part, start=start, stop=stop):
            alive = leaf.alive.copy()
            alive[start:stop] &= part
            ascent = ascent_within(flat, leaf, alive)
            ascent.still = True
            return ascent

        cases = decide(flat, node, leaf.floor, leaf.bound, cutoff, begin, leaf.bound + worth)
        cheap = {plan: cost for plan, cost in costs.items() if cost < cutoff}
        assert all(cases.bound <= cost + 1e-9 for cost in cheap.values())
        if cases.parts is None:
            assert cases.bound < leaf.bound + worth
            continue
        for plan, cost in cheap.items():
            where = flat.node_start[:-1] + np.array(plan)
            inside = [part for part in cases.parts if part.alive[where].all()]
            assert len(inside) == 1
            assert inside[0].bound <= cost + 1e-9


@pytest.mark.parametrize("count", [2, 9])
def test_a_hub_decides_what_many_nodes_do(count):
    problem = layers(count)
    flat = flatten(problem)
    dual = DualAscent(flat)
    dual.run(float(count), math.inf, 200)
    assert dual.bound < 0.01
    _, _, extra = dual.appraisal()
    assert hubs(flat, dual.alive, extra, float(count))[0] == 0
    tree = Tree(flat, float(count))
    tree.run(dual, math.inf)
    assert tree.bound == count
    assert tree.splits == 1


def test_what_was_tried_is_remembered_and_an_end_of_time_loses_nothing():
    flat = flatten(binding(7, "clique"))
    dual = DualAscent(flat)
    dual.run(100.0, math.inf, 3)
    leaf = root(flat, dual)
    ways, calls = Ways(flat, leaf, 100.0), 0
    over = itertools.cycle([False, True])
    while not ways.try_all(lambda: next(over)):
        calls += 1
    assert calls >= len(leaf.hopes) - 1
    assert ways.best.parts is not None
    assert {HALVES, PRICES} < set(leaf.hopes)
    assert max(leaf.hopes.values()) < np.inf
    hopes = ways.handed_on()
    assert ways.best.way not in hopes or ways.best.way < 0
    if ways.best.way >= 0:
        assert hopes[PRICES] > leaf.hopes[PRICES]
    below = Ways(flat, leaf_of(dual, dual.alive, leaf.bound, leaf.floor, np.inf, hopes), 100.0)
    assert below.try_all(lambda: False)
    assert below.best.parts is not None


def test_messages_of_a_leaf_are_halved_and_its_bound_holds():
    problem = binding(11, "clique")
    flat = flatten(problem)
    dual = DualAscent(flat)
    dual.run(100.0, math.inf, 30)
    leaf = root(flat, dual)
    assert leaf.messages.dtype == np.float32
    again = ascent_within(flat, leaf, leaf.alive)
    value = again.check()
    assert value == pytest.approx(leaf.bound, rel=1e-4, abs=1e-4)
    assert value <= min(plans(problem).values()) + 1e-9
    still = ascent_on(flat, leaf.alive, dual.best_prices, dual.best_messages)
    still.still = True
    still.run(100.0, math.inf, 9)
    np.testing.assert_array_equal(still.prices, dual.best_prices)


@pytest.mark.parametrize("gain", [2.0, 0.0])
def test_parts_of_a_hub_look_for_better_prices_before_all_else(monkeypatch, gain):
    flat = flatten(binding(3, "grid"))
    dual = DualAscent(flat)
    dual.run(40.0, math.inf, 5)
    leaf = root(flat, dual)
    leaf.hopes = {HALVES: 1.0, PRICES: 0.5, 0: 9.0}
    ways = Ways(flat, leaf, dual.bound + 10.0)
    ways.best = Branch(0, 1.0, [])
    leaf.hopes = ways.handed_on()
    assert leaf.hopes == {HALVES: pytest.approx(1.22), PRICES: math.inf}
    tried = []

    def found(self, way, rival):
        tried.append(way)
        return Branch(way, gain if way == PRICES else 1.0, [] if gain or way != PRICES else None)

    monkeypatch.setattr(Ways, "_try", found)
    ways = Ways(flat, leaf, dual.bound + 10.0)
    assert ways.try_all(lambda: False)
    assert tried == ([PRICES] if gain else [PRICES, HALVES])
    assert ways.best.way == tried[-1]
    assert leaf.hopes[PRICES] == ways.handed_on()[PRICES] == gain or not gain
