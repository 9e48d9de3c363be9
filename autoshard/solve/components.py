"""Parts of a problem that have nothing to do with each other.

Two nodes belong together when an edge joins them, or when there is a limit and both have a choice
of how much memory they take at one time. What nodes take whatever their choice joins nothing: it is
fixed load. So the best plan of the whole is the best plan of every component.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from autoshard.solve.problem import Integers, Node, Problem, Usage
from autoshard.units import counted


def components(problem: Problem) -> list[Integers]:
    """The nodes of every component, ascending; the component of the lowest node comes first.

    >>> nodes = tuple(Node(name, np.array([0.0, 1.0])) for name in "abc")
    >>> components(Problem(nodes, (Edge.dense(0, 2, np.eye(2)),)))
    [array([0, 2]), array([1])]
    """
    pairs = [(edge.u, edge.v) for edge in problem.edges]
    if problem.limit is not None:
        pairs += _alive_together(problem)
    count = len(problem.nodes)
    ends = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    graph = coo_array((np.ones(len(pairs)), (ends[:, 0], ends[:, 1])), shape=(count, count))
    label = connected_components(graph, directed=False)[1] if count else np.zeros(0, np.int64)
    ends_of_parts = np.cumsum(np.bincount(label))[:-1]
    parts = np.split(np.argsort(label, kind="stable"), ends_of_parts) if count else []
    return sorted(parts, key=lambda nodes: nodes[0])


def _alive_together(problem: Problem) -> list[tuple[int, int]]:
    """Pairs that chain all nodes with a choice of memory in one stretch of time together."""
    spans = sorted(
        (usage.start, usage.stop, usage.node)
        for usage in problem.usages
        if usage.start < usage.stop and np.ptp(usage.amounts) > 0
    )
    pairs = []
    until, last = 0, -1
    for start, stop, node in spans:
        if last >= 0 and start < until:
            pairs.append((last, node))
            until = max(until, stop)
        else:
            until = stop
        last = node
    return pairs


def component(problem: Problem, nodes: Integers) -> Problem:
    """The problem of the nodes of a component (or of several), in the order given, without offset.

    What the other nodes take whatever their choice is the fixed load of a last node "(elsewhere)"
    with one choice; it is there when there is such load and a limit.

    Raises ValueError when an edge leads out of the nodes.
    """
    number = {node: position for position, node in enumerate(nodes.tolist())}
    inside = [edge for edge in problem.edges if edge.u in number]
    out = [e for e in problem.edges if (e.u in number) != (e.v in number)]
    if out:
        names = [f"{problem.nodes[e.u].name} - {problem.nodes[e.v].name}" for e in out[:8]]
        raise ValueError(
            f"{counted(len(out), 'edge')} out of the nodes given: {', '.join(names)}; give "
            "whole components"
        )
    kept = [problem.nodes[node] for node in number]
    edges = [replace(edge, u=number[edge.u], v=number[edge.v]) for edge in inside]
    usages = [replace(u, node=number[u.node]) for u in problem.usages if u.node in number]
    fixed = [
        Usage(len(kept), usage.amounts.min(keepdims=True), usage.start, usage.stop)
        for usage in problem.usages
        if usage.node not in number and usage.amounts.min() > 0
    ]
    if fixed and problem.limit is not None:
        kept.append(Node("(elsewhere)", np.zeros(1)))
        usages += fixed
    return Problem(tuple(kept), tuple(edges), tuple(usages), problem.limit)
