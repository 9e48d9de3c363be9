"""Why a problem has no solution, where that shows without a search.

Two reasons can be seen from afar, and they name nodes, edges and times:

* Forbidden pairs: a choice needs, along every edge, an allowed choice at the other end. Choices
  without one are dropped until nothing changes (arc consistency). A node that loses its last
  choice is named with the edges whose forbidden pairs took part.
* Memory: at some time even the lightest choices that are left exceed the limit.

That neither shows does not mean that there is a solution.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from autoshard.solve.evaluate import LOAD_TOLERANCE
from autoshard.solve.problem import Edge, Problem

SHOWN = 5


def conflict(problem: Problem) -> str:
    """A reason why no choices satisfy the problem, or an empty string where none is seen.

    The work is that of a few passes over the edges with forbidden pairs.
    """
    allowed = [np.ones(node.costs.size, dtype=np.bool_) for node in problem.nodes]
    return _pairs_conflict(problem, allowed) or memory_conflict(problem, allowed)


def _pairs_conflict(problem: Problem, allowed: list[np.ndarray]) -> str:
    """Drop the choices that no pair allows; the reason once a node has none left."""
    finite: dict[int, np.ndarray] = {}
    at: list[list[int]] = [[] for _ in problem.nodes]
    for position, edge in enumerate(problem.edges):
        mask = finite.setdefault(id(edge.table), edge.table < np.inf)
        if not mask.all():
            at[edge.u].append(position)
            at[edge.v].append(position)
    causes: list[dict[int, None]] = [{} for _ in problem.nodes]
    todo = deque((i, node) for node, edges in enumerate(at) for i in edges)
    while todo:
        position, node = todo.popleft()
        edge = problem.edges[position]
        keep = allowed[node] & _supported(edge, finite[id(edge.table)], node, allowed)
        if keep.sum() == allowed[node].sum():
            continue
        allowed[node] = keep
        causes[node][position] = None
        if not keep.any():
            return _emptied(problem, node, causes)
        for further in at[node]:
            other = problem.edges[further]
            todo.append((further, other.v if other.u == node else other.u))
    return ""


def _supported(
    edge: Edge, finite: np.ndarray, node: int, allowed: Sequence[np.ndarray]
) -> np.ndarray:
    """The choices of `node`, an end of the edge, with an allowed partner at the other end."""
    if node == edge.u:
        return np.logical_or.reduce(finite[:, edge.right[allowed[edge.v]]], axis=1)[edge.left]
    return np.logical_or.reduce(finite[edge.left[allowed[edge.u]]], axis=0)[edge.right]


def _emptied(problem: Problem, node: int, causes: Sequence[dict[int, None]]) -> str:
    """The node without a choice, and the edges that led there, the nearest first."""
    edges: dict[int, None] = {}
    nodes, reached = [node], {node}
    for here in nodes:
        for position in causes[here]:
            edges[position] = None
            edge = problem.edges[position]
            for end in (edge.u, edge.v):
                if end not in reached:
                    reached.add(end)
                    nodes.append(end)
    named = [
        f"{problem.nodes[problem.edges[i].u].name} - {problem.nodes[problem.edges[i].v].name}"
        for i in edges
    ]
    plural = "edges" if len(named) > 1 else "edge"
    return (
        f"{problem.nodes[node].name} has no choice left under the forbidden pairs of {plural} "
        f"{_some(named)}"
    )


def memory_conflict(problem: Problem, allowed: Sequence[np.ndarray]) -> str:
    """The time at which the lightest allowed choices exceed the limit the most.

    `allowed` marks the choices of every node. An empty string where they keep the limit.
    """
    if problem.limit is None:
        return ""
    load, when = lightest_peak(problem, allowed)
    if load <= problem.limit * (1 + LOAD_TOLERANCE):
        return ""
    users = [
        (float(usage.amounts[allowed[usage.node]].min()), problem.nodes[usage.node].name)
        for usage in problem.usages
        if usage.start <= when < usage.stop
    ]
    users = sorted((user for user in users if user[0] > 0), key=lambda user: -user[0])
    named = [f"{name} {amount:.12g}" for amount, name in users]
    return (
        f"at time {when} the lightest choices use {load:.17g}, and the limit is "
        f"{problem.limit:.17g}: {_some(named)}; no limit below {load:.17g} can work"
    )


def lightest_peak(problem: Problem, allowed: Sequence[np.ndarray]) -> tuple[float, int]:
    """The peak load of the lightest allowed choices, and its time; no plan has a lower peak."""
    live = [usage for usage in problem.usages if usage.start < usage.stop]
    if not live:
        return 0.0, 0
    least = np.array([usage.amounts[allowed[usage.node]].min() for usage in live])
    start = np.array([usage.start for usage in live])
    stop = np.array([usage.stop for usage in live])
    times, where = np.unique(np.concatenate([start, stop]), return_inverse=True)
    loads = np.cumsum(np.bincount(where, np.concatenate([least, -least]), times.size))
    worst = int(loads.argmax())
    return float(loads[worst]), int(times[worst])


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
