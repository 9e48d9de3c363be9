"""Changes the first of two plans only as much as the price of the second needs.

A plan from a new solve differs from the earlier plan wherever two choices cost the same. Let x be
the first plan and y the second. The plan sought takes x_i or y_i at every node, costs no more than
y, keeps the memory limit, and takes as few y_i as possible. The cost becomes one more memory row.
So this is a problem of the same kind, over the nodes that differ, with at most two choices each. If
y is among the cheapest plans, a single elimination solves it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from autoshard.solve import Node, Problem, Usage
from autoshard.solve.pipeline import solve
from autoshard.solve.problem import Floats, Integers
from autoshard.solve.reduce.elimination import cheapest
from autoshard.solve.sensitivity.neighbourhood import Neighbourhoods

ROUNDING = 1e-9
EXCHANGE = 0.25
"""The number of changes that equals the possible cost of rounding."""
LEAST_CHANGE = 1.0
"""The minimum weight of one change."""


def closest(
    problem: Problem,
    before: Sequence[int],
    after: Sequence[int],
    weights: Mapping[int, float],
    *,
    price: float,
    kept: frozenset[int] = frozenset(),
    time_limit: float = 1.0,
) -> tuple[int, ...]:
    """Return the plan between two plans that changes the least weight.

    Args:
      problem: the problem of both plans; its pairs cost nothing or are forbidden.
      before, after: the choices of all nodes in each plan; `after` keeps all limits.
      weights: the weight of a change, by node, at least 1; other nodes have weight 0.
      price: the price of `after`.
      kept: nodes that stay as in `after`.
      time_limit: seconds; the function returns the best plan found by then.
    """
    differing = {
        node: np.array((old, new))
        for node, (old, new) in enumerate(zip(before, after, strict=True))
        if old != new and node not in kept
    }
    if not differing:
        return tuple(after)
    cut = Neighbourhoods.of(problem).cut(differing, after)
    assert cut is not None, "the plan after breaks a rule"
    sides, numbers = cut.kept, {node: number for number, node in enumerate(cut.kept)}
    changes = [np.zeros(side.size) for side in sides.values()]
    for node, number in numbers.items():
        if sides[node].size > 1:
            changes[number][-1] = weights.get(node, 0.0)
    spent = [node.costs - node.costs.min() for node in cut.problem.nodes]
    slack = ROUNDING * max(abs(price), 1e-300)
    room = sum(float(one[-1]) for one in spent) + slack
    usages = _usages(problem, sides, numbers, before, after)
    if not usages:
        found = _by_elimination(cut.problem, changes, spent, room, slack)
        if found is not None:
            return cut.expand(found, after)
    nodes = [Node(node.name, one) for node, one in zip(cut.problem.nodes, changes, strict=True)]
    if any(usage.node == len(nodes) for usage in usages):
        nodes.append(Node("what does not change", np.zeros(1)))
    limit = problem.limit if usages and problem.limit is not None else 1.0
    end = max((usage.stop for usage in usages), default=0)
    usages += [
        Usage(number, one * (limit / room), end, end + 1)
        for number, one in enumerate(spent)
        if one.any()
    ]
    between = Problem(tuple(nodes), cut.problem.edges, tuple(usages), limit)
    start = [*(side.size - 1 for side in sides.values()), *(0 for _ in nodes[len(sides) :])]
    outcome = solve(between, time_limit=time_limit, gap=0.0, warm_start=[start])
    if outcome.solution is None:
        return tuple(after)
    return cut.expand(outcome.solution.choices, after)


def _by_elimination(
    whole: Problem, changes: Sequence[Floats], spent: Sequence[Floats], room: float, slack: float
) -> tuple[int, ...] | None:
    """Return the plan with the least changes f that spends g <= room, if one elimination proves it.

    Take the plan with the least f + p g. Any other plan within the room has
    f' >= f - p (room - g). If that difference is less than one change, f is the minimum.
    """
    price = EXCHANGE / slack
    nodes = tuple(
        Node(node.name, one + price * cost)
        for node, one, cost in zip(whole.nodes, changes, spent, strict=True)
    )
    found = cheapest(replace(whole, nodes=nodes))
    if found is None:
        return None
    least = room - sum(float(one[choice]) for one, choice in zip(spent, found, strict=True))
    return found if 0 <= least < LEAST_CHANGE / price else None


def _usages(
    problem: Problem,
    sides: Mapping[int, Integers],
    numbers: Mapping[int, int],
    before: Sequence[int],
    after: Sequence[int],
) -> list[Usage]:
    """Return the usages of the nodes that differ, and of one extra node for all others.

    The list is empty if no plan between the two can break the limit.
    """
    if problem.limit is None:
        return []

    live = [usage for usage in problem.usages if usage.start < usage.stop]
    most = [max(one.amounts[before[one.node]], one.amounts[after[one.node]]) for one in live]
    _, loads = _profile(live, most)
    if not live or loads.max() <= problem.limit:
        return []
    others = [usage for usage in live if usage.node not in sides]
    times, loads = _profile(others, [usage.amounts[after[usage.node]] for usage in others])
    return [
        *(
            replace(one, node=numbers[one.node], amounts=one.amounts[sides[one.node]])
            for one in live
            if one.node in sides
        ),
        *(
            Usage(len(sides), np.array([load]), start, stop)
            for load, (start, stop) in zip(loads.tolist(), pairwise(times.tolist()), strict=False)
            if load > 0
        ),
    ]


def _profile(usages: Sequence[Usage], amounts: Sequence[float]) -> tuple[Integers, Floats]:
    """Return the sorted event times, and the bytes in use from each until the next."""
    starts = np.array([usage.start for usage in usages], dtype=np.int64)
    stops = np.array([usage.stop for usage in usages], dtype=np.int64)
    times, where = np.unique(np.concatenate([starts, stops]), return_inverse=True)
    signed = np.concatenate([amounts, np.negative(amounts)])
    jumps = np.bincount(where, signed, minlength=times.size)
    return times, np.cumsum(jumps, dtype=np.float64)
