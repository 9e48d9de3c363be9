"""The plan of least regret: the one that is the least behind the best, whatever the machine is.

The regret of a plan x on a machine u is x(u) / v(u) - 1, with v(u) the seconds of the best plan
there. Its worst case over the corners of the box is found by branch and bound: a part of the
corners is that in which some numbers stand at one end, and no corner of it is worse than

    x(all others slow) / v(all others fast),

as both never fall in any cost. What that says of machines between the corners, and why, is in
`autoshard.study.robust.scenarios`.

That no plan does much better is shown by mixing: for any weights p_s on scenarios s that sum to 1,

    min_x max_s x(s) / v(s)  >=  min_x sum_s p_s x(s) / v(s),

and the right side is one search with averaged prices, which are prices of single choices
(`autoshard.problem.build`). The weights are those of the game between the plans and the scenarios
that are known; what the search finds joins the plans (Kelley's cutting planes on the dual; see
Aissi, Bazgan, Vanderpooten, Min-max and min-max regret versions of combinatorial optimization
problems, https://doi.org/10.1016/j.ejor.2008.09.012).
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import linprog

from autoshard.plan.evaluate import tidy
from autoshard.problem.build import Built, build
from autoshard.problem.memo import Shared
from autoshard.problem.requirements.restrict import EmptyDomainError
from autoshard.search.one_shape import MeshSearcher
from autoshard.solve.pipeline import solve
from autoshard.solve.problem import Node, Status
from autoshard.study.robust.plans import Plans
from autoshard.study.robust.scenarios import Point

ROUNDS = 4
"""So often plans and scenarios may bring each other forth."""
WEIGHTLESS = 1e-3
"""Scenarios of less weight than this are left out of a mixture."""


@dataclass(frozen=True, slots=True)
class Regret:
    """How far a plan may be behind the best.

    Attributes:
      known: at some corner it is by this share behind a plan that is known.
      most: at no corner is it by more.
      anywhere: nor on any machine of the box by more than this.
      worst: the corner of `known`.
    """

    known: float
    most: float
    anywhere: float
    worst: Point


@dataclass(frozen=True, slots=True)
class Choice:
    """The plan of least regret, by its number, and what no plan's regret at corners undercuts."""

    plan: int
    regret: Regret
    least: float


def regret_of(plans: Plans, plan: int, tolerance: float) -> Regret:
    """The worst case of a plan.

    Args:
      plans: what is known; grows.
      plan: its number.
      tolerance: share of the step to which the worst case is found, if time allows.
    """
    box = plans.box
    spread = [
        plans.seconds(box.along(k, axis.slow), plan) - plans.seconds(box.along(k, axis.fast), plan)
        for k, axis in enumerate(box.axes)
    ]
    order = sorted(range(len(spread)), key=lambda k: -spread[k])
    count = itertools.count()
    found, worst = plans.behind(box.taken, plan), box.taken

    def bounded(ends: tuple[bool, ...]) -> tuple[float, Point]:
        """What no corner of a part is worse than, and the corner of which the search tells more."""
        slow, fast = list(box.slow), list(box.fast)
        for k, is_slow in zip(order, ends, strict=False):
            slow[k] = fast[k] = box.slow[k] if is_slow else box.fast[k]
        least = plans.least(tuple(fast))
        above = plans.seconds(tuple(slow), plan, steady=True)
        return above / least if least > 0 else math.inf, tuple(fast)

    heap: list[tuple[float, int, tuple[bool, ...]]] = []

    def push(ends: tuple[bool, ...]) -> None:
        heapq.heappush(heap, (-bounded(ends)[0], next(count), ends))

    push(())
    most = math.inf
    while heap:
        _, _, ends = heapq.heappop(heap)
        ratio, corner = bounded(ends)  # may be less than when it was put there
        if heap and ratio < -heap[0][0]:
            heapq.heappush(heap, (-ratio, next(count), ends))
            continue
        most = max(ratio, found)
        if ratio <= found * (1 + tolerance):
            break
        if corner not in plans.bounds and plans.may_search():
            plans.solve(corner)
            push(ends)
        elif len(ends) < len(order):
            for is_slow in (False, True):
                push((*ends, is_slow))
        else:
            break  # a corner; nothing more is known of it
        if (now := plans.behind(corner, plan)) > found:
            found, worst = now, corner
    else:
        most = found
    return Regret(found - 1, most - 1, most * (1 + box.sag) - 1, worst)


def least_regret(plans: Plans, first: int, tolerance: float) -> tuple[Choice, dict[int, Regret]]:
    """The plan of least regret among all that come up, with a bound for all plans.

    Args:
      plans: what is known; grows.
      first: the plan for the machine as it is taken.
      tolerance: share of the step to which worst cases are found.
    """
    regrets = {first: regret_of(plans, first, tolerance)}
    least = 0.0
    for _ in range(ROUNDS):
        points = _scenarios(plans, regrets)
        candidate = _best_row(plans, points)
        if candidate not in regrets:
            regrets[candidate] = regret_of(plans, candidate, tolerance)
            continue
        best = min(regrets, key=lambda plan: regrets[plan].most)
        if regrets[best].most - least <= tolerance or not plans.may_search():
            break
        weights = _weights(plans, points)
        before = len(plans.known)
        least = max(least, _mixed(plans, points, weights) - 1)
        if len(plans.known) == before:
            break
    best = min(regrets, key=lambda plan: regrets[plan].most)
    return Choice(best, regrets[best], max(min(least, regrets[best].most), 0.0)), regrets


def _scenarios(plans: Plans, regrets: dict[int, Regret]) -> list[Point]:
    """The machines that were searched at corners, and the one that is taken."""
    ends = [{axis.fast, axis.slow} for axis in plans.box.axes]
    corners = [
        point
        for point in plans.bounds
        if all(cost in both for cost, both in zip(point, ends, strict=True))
    ]
    worst = [one.worst for one in regrets.values()]
    return list(dict.fromkeys([plans.box.taken, *worst, *corners]))


def _table(plans: Plans, points: Sequence[Point]) -> np.ndarray:
    """By plan and scenario, how far each is behind the best that is known."""
    rows = [[plans.behind(point, plan) for point in points] for plan in range(len(plans.known))]
    return np.array(rows)


def _best_row(plans: Plans, points: Sequence[Point]) -> int:
    """The plan whose worst case is best; of equal ones, what is better where it is taken."""
    table = _table(plans, points)
    return min(range(len(table)), key=lambda plan: (table[plan].max(), table[plan][0]))


def _weights(plans: Plans, points: Sequence[Point]) -> np.ndarray:
    """Weights of the scenarios under which even the best plan is as far behind as can be."""
    table = _table(plans, points)
    count, scenarios = table.shape
    answer = linprog(
        np.append(np.zeros(scenarios), -1.0),
        A_ub=np.hstack([-table, np.ones((count, 1))]),
        b_ub=np.zeros(count),
        A_eq=np.append(np.ones(scenarios), 0.0)[None, :],
        b_eq=[1.0],
        bounds=[(0.0, None)] * scenarios + [(None, None)],
    )
    weights = np.where(answer.x[:-1] < WEIGHTLESS, 0.0, answer.x[:-1])
    return weights / weights.sum()


def _mixed(plans: Plans, points: Sequence[Point], weights: np.ndarray) -> float:
    """What no plan undercuts of the weighted ratios; the best plan of the mixture becomes known."""
    searcher, _ = plans.searcher()
    used = [(point, weight) for point, weight in zip(points, weights, strict=True) if weight > 0]
    best, bound = math.inf, math.inf
    for shape in plans.shapes():
        sizes = shape.sizes
        try:
            built, costs = _built(plans, searcher, sizes, used)
        except EmptyDomainError:
            continue
        problem = replace(
            built.problem,
            nodes=tuple(
                Node(node.name, own) for node, own in zip(built.problem.nodes, costs, strict=True)
            ),
        )
        begun = [built.encode(one.decisions) for one in plans.known if one.shape.sizes == sizes]
        outcome = solve(
            problem,
            time_limit=max(min(plans.each, plans.left()), 0.5),
            gap=plans.gap,
            warm_start=[plan for plan in begun if plan is not None],
            better_than=best,
            memo=plans.shared[sizes].arrays,
        )
        if outcome.status is Status.INFEASIBLE:
            continue
        bound = min(bound, outcome.report.bound)
        if outcome.solution is not None and outcome.report.objective < best:
            best = outcome.report.objective
            found = tidy(built.prices, built.decode(outcome.solution.choices))
            plans.add(shape, found)
    return bound


def _built(
    plans: Plans,
    searcher: MeshSearcher,
    sizes: tuple[int, ...],
    used: Sequence[tuple[Point, float]],
) -> tuple[Built, list[np.ndarray]]:
    """The problem of a mesh under all requirements, and the weighted costs of its nodes."""
    shared = plans.shared.setdefault(sizes, Shared())
    counted = plans.prices(plans.box.taken, sizes)
    built, costs = None, []
    for point, weight in used:
        prices = plans.prices(point, sizes)
        free = build(prices, searcher.classes, limit=searcher.limit, shared=shared)
        left = max(min(plans.each, plans.left()), 0.5)
        built = plans.demands.applied(free, seconds=left, counted=counted)
        share = weight / plans.most(point)
        costs.append([share * node.costs for node in built.problem.nodes])
    assert built is not None
    return built, [np.sum(parts, axis=0) for parts in zip(*costs, strict=True)]
