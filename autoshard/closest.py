"""Of two plans, the first with only as many changes as the price of the second needs.

A plan that is solved for anew differs from the one before wherever two choices cost the same. With
x the first plan and y the second, the plan sought takes x_i or y_i at every node, costs no more
than y, keeps the memory limit, and takes as few y_i as possible. Costs stand as one more memory
row, so this is a problem of the same kind, of the nodes that differ, with at most two choices each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from autoshard.solve import Node, Problem, Usage
from autoshard.solve.pipeline import solve
from autoshard.solve.problem import Floats, Integers

ROUNDING = 1e-9


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
    """The plan between two that changes the least weight.

    Args:
      problem: of both; its pairs cost nothing or are forbidden.
      before, after: choices of all nodes; `after` keeps all limits.
      weights: by node, what a change of it counts; others count nothing.
      price: of `after`.
      kept: nodes that stay as in `after`.
      time_limit: seconds; what is found by then stands.
    """
    sides = {
        node: np.array((old, new))
        for node, (old, new) in enumerate(zip(before, after, strict=True))
        if old != new and node not in kept
    }
    if not sides:
        return tuple(after)
    touching = [edge for edge in problem.edges if edge.u in sides or edge.v in sides]
    for edge in touching:  # what stays as in `after` may forbid what was before
        if edge.u not in sides:
            allowed = edge.table[edge.left[after[edge.u]], edge.right[sides[edge.v]]] < np.inf
            sides[edge.v] = sides[edge.v][allowed]
        elif edge.v not in sides:
            allowed = edge.table[edge.left[sides[edge.u]], edge.right[after[edge.v]]] < np.inf
            sides[edge.u] = sides[edge.u][allowed]
    numbers = {node: number for number, node in enumerate(sides)}
    nodes, spent = [], []
    for node, side in sides.items():
        changes = np.zeros(len(side))
        changes[-1] = weights.get(node, 0.0) if len(side) > 1 else 0.0
        nodes.append(Node(problem.nodes[node].name, changes))
        spent.append(problem.nodes[node].costs[side] - problem.nodes[node].costs[side].min())
    edges = tuple(
        edge.among(sides, numbers) for edge in touching if edge.u in sides and edge.v in sides
    )
    limit = problem.limit
    usages = _usages(problem, sides, numbers, before, after)
    if any(usage.node == len(nodes) for usage in usages):
        nodes.append(Node("what does not change", np.zeros(1)))
    if limit is None or not usages:
        usages, limit = [], 1.0
    room = sum(float(one[-1]) for one in spent) + ROUNDING * max(abs(price), 1e-300)
    end = max((usage.stop for usage in usages), default=0)
    usages += [
        Usage(number, one * (limit / room), end, end + 1)
        for number, one in enumerate(spent)
        if one.any()
    ]
    between = Problem(tuple(nodes), edges, tuple(usages), limit)
    start = [*(len(side) - 1 for side in sides.values()), *(0 for _ in nodes[len(sides) :])]
    outcome = solve(between, time_limit=time_limit, gap=0.0, warm_start=[start])
    if outcome.solution is None:
        return tuple(after)
    found = list(after)
    for side, (node, number) in zip(sides.values(), numbers.items(), strict=True):
        found[node] = int(side[outcome.solution.choices[number]])
    return tuple(found)


def _usages(
    problem: Problem,
    sides: Mapping[int, Integers],
    numbers: Mapping[int, int],
    before: Sequence[int],
    after: Sequence[int],
) -> list[Usage]:
    """Usages of the nodes that differ, and of one node more for all others.

    There are none where nothing between the plans can break the limit.
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
    """Event times (sorted) and the bytes in use from each until the next."""
    starts = np.array([usage.start for usage in usages], dtype=np.int64)
    stops = np.array([usage.stop for usage in usages], dtype=np.int64)
    times, where = np.unique(np.concatenate([starts, stops]), return_inverse=True)
    signed = np.concatenate([amounts, np.negative(amounts)])
    jumps = np.bincount(where, signed, minlength=times.size)
    return times, np.cumsum(jumps, dtype=np.float64)
