"""Of two plans, the first with only as many changes as the price of the second needs.

A plan that is solved for anew differs from the one before wherever two choices cost the same. With
x the first plan and y the second, the plan sought takes x_i or y_i at every node, costs no more
than y, keeps the memory limit, and takes as few y_i as possible. Costs stand as one more memory
row, so this is a problem of the same kind with at most two choices a node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from autoshard.solve import Node, Problem, Usage, evaluate
from autoshard.solve.pipeline import solve

ROUNDING = 1e-9


def closest(
    problem: Problem,
    before: Sequence[int],
    after: Sequence[int],
    weights: Mapping[int, float],
    *,
    kept: frozenset[int] = frozenset(),
    time_limit: float = 1.0,
) -> tuple[int, ...]:
    """The plan between two that changes the least weight.

    Args:
      problem: of both; its pairs cost nothing or are forbidden.
      before, after: choices of all nodes; `after` keeps all limits.
      weights: by node, what a change of it counts; others count nothing.
      kept: nodes that stay as in `after`.
      time_limit: seconds; what is found by then stands.
    """
    sides = [
        (new,) if old == new or node in kept else (old, new)
        for node, (old, new) in enumerate(zip(before, after, strict=True))
    ]
    rows = [np.array(side, dtype=np.int64) for side in sides]
    nodes = []
    spent = []
    for number, (node, side) in enumerate(zip(problem.nodes, rows, strict=True)):
        changes = np.zeros(len(side))
        changes[-1] = weights.get(number, 0.0) if len(side) > 1 else 0.0
        nodes.append(Node(node.name, changes))
        spent.append(node.costs[side] - node.costs[side].min())
    edges = tuple(
        replace(edge, left=edge.left[rows[edge.u]], right=edge.right[rows[edge.v]])
        for edge in problem.edges
        if len(rows[edge.u]) > 1 or len(rows[edge.v]) > 1
    )
    limit = problem.limit
    usages = [replace(one, amounts=one.amounts[rows[one.node]]) for one in problem.usages]
    if limit is None:
        usages, limit = [], 1.0
    price = evaluate(replace(problem, limit=None), after).objective
    room = sum(float(one[-1]) for one in spent) + ROUNDING * max(abs(price), 1e-300)
    end = max((usage.stop for usage in usages), default=0)
    usages += [
        Usage(number, one * (limit / room), end, end + 1)
        for number, one in enumerate(spent)
        if one.any()
    ]
    between = Problem(tuple(nodes), edges, tuple(usages), limit)
    start = [len(side) - 1 for side in sides]
    outcome = solve(between, time_limit=time_limit, gap=0.0, warm_start=[start])
    if outcome.solution is None:
        return tuple(after)
    return tuple(side[k] for side, k in zip(sides, outcome.solution.choices, strict=True))
