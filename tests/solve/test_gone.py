"""Bounds where choices are gone: valid for what is left, and no worse for having been elsewhere."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import numpy as np
import pytest

from autoshard.solve import Duals, solve
from autoshard.solve.dual import DualAscent
from autoshard.solve.flat import flatten
from autoshard.solve.kernels import GONE
from autoshard.solve.whole import ascent_of
from tests.solve.helpers import brute_force, random_problem


def some_choices(problem, random):
    """A random part of the choices of every node."""
    return {
        number: np.sort(
            random.choice(node.costs.size, random.integers(1, node.costs.size + 1), replace=False)
        )
        for number, node in enumerate(problem.nodes)
    }


def cut_down(problem, kept):
    """The problem with those choices only."""
    nodes = [replace(n, costs=n.costs[kept[i]]) for i, n in enumerate(problem.nodes)]
    edges = [replace(e, left=e.left[kept[e.u]], right=e.right[kept[e.v]]) for e in problem.edges]
    usages = [replace(u, amounts=u.amounts[kept[u.node]]) for u in problem.usages]
    return replace(problem, nodes=tuple(nodes), edges=tuple(edges), usages=tuple(usages))


def ascent_on(problem, kept):
    """An ascent that only counts on some choices."""
    flat = flatten(problem)
    ascent = DualAscent(flat)
    ascent.alive[:] = False
    for node, chosen in kept.items():
        ascent.alive[flat.node_start[node] + chosen] = True
    return ascent


@pytest.mark.parametrize("tightness", [None, 0.5, 0.8])
def test_bound_and_reduced_costs_hold_for_what_is_left(tightness):
    infeasible = 0
    for seed in range(60):
        problem = random_problem(seed, forbidden=0.4, tightness=tightness)
        kept = some_choices(problem, np.random.default_rng(seed))
        ascent = ascent_on(problem, kept)
        ascent.run(math.inf, time.monotonic() + 60, 40)
        bound, _, extra = ascent.appraisal()
        best = brute_force(cut_down(problem, kept))
        if math.isinf(best):
            infeasible += 1
            continue
        assert problem.offset + bound <= best + 1e-9 * max(abs(best), 1)
        starts = ascent.flat.node_start
        for node, chosen in kept.items():
            gone = np.setdiff1d(np.arange(problem.nodes[node].costs.size), chosen)
            assert (extra[starts[node] + gone] > GONE / 2).all()
            for choice in chosen.tolist():
                with_it = brute_force(cut_down(problem, {**kept, node: np.array([choice])}))
                least = problem.offset + bound + extra[starts[node] + choice]
                assert least <= with_it + 1e-9 * max(abs(with_it), 1) or math.isinf(with_it)
    assert infeasible > 0


def test_what_was_gone_elsewhere_counts_again():
    for seed in range(40):
        problem = random_problem(seed, forbidden=0.3, tightness=None)
        there = ascent_on(problem, some_choices(problem, np.random.default_rng(seed)))
        there.run(math.inf, time.monotonic() + 60, 20)
        here = DualAscent(flatten(problem))
        here.begin_with(there.best_prices, there.best_messages)
        here.run(math.inf, time.monotonic() + 60, 40)
        best = brute_force(problem)
        assert here.alive.all() or not math.isinf(best) or here.check() > here.worst
        if not math.isinf(best):
            assert problem.offset + here.check() <= best + 1e-9 * max(abs(best), 1)


def knot(count, seed):
    """Nodes in a ring with chords, and memory that binds everywhere: nothing is eliminated."""
    from autoshard.solve import Edge, Node, Problem, Usage

    random = np.random.default_rng(seed)
    nodes = tuple(Node(f"n{i}", random.integers(0, 100, 12).astype(float)) for i in range(count))
    pairs = [(i, (i + step) % count) for i in range(count) for step in (1, 4, 9)]
    edges = tuple(
        Edge.dense(u, v, random.integers(0, 60, (12, 12)).astype(float)) for u, v in pairs
    )
    usages = tuple(
        Usage(i, random.integers(1, 50, 12).astype(float), i, i + 14) for i in range(count)
    )
    return Problem(nodes, edges, usages, 200.0)


def test_windows_find_better_plans():
    # Large enough that no exact stage takes the whole, so that windows have to do the work.
    problem = knot(220, 3)
    phases = []

    def heard(news):
        phases.append(news.phase)
        if news.phase == "windows":
            raise KeyboardInterrupt

    outcome = solve(problem, time_limit=90, progress=heard)
    assert "windows" in phases
    assert outcome.solution is not None
    assert outcome.report.bound <= outcome.report.objective


@pytest.mark.parametrize("passes", [3, 4])
def test_messages_begin_where_they_ended_whichever_way_the_last_pass_went(passes):
    lost = 0
    for seed in range(40):
        problem = replace(random_problem(seed, forbidden=0.4, tightness=None), limit=None)
        there = DualAscent(flatten(problem))
        there.run(math.inf, time.monotonic() + 60, passes)
        if there.check() > there.worst:
            continue  # there is no plan at all
        finite = np.where(np.abs(there.best_messages) < GONE, there.best_messages, 0.0)
        here, _ = ascent_of(problem, Duals((), finite))
        assert here.bound >= there.check() - 1e-9 * abs(there.check())
        lost += int(not there.alive.all())
    assert lost > 0
