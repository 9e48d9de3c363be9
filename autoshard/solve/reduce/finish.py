"""What presolve has left, as a problem of its own, and the way back from it."""

from __future__ import annotations

import numpy as np

from autoshard.solve.problem import Edge, Floats, Integers, Node, Problem, Usage
from autoshard.solve.reduce.interned import join, starts_of
from autoshard.solve.reduce.trail import Follow, FollowPair, Restrict, Trail
from autoshard.solve.reduce.workspace import Workspace


def finish(space: Workspace) -> tuple[Problem, Trail]:
    """What is left, and its trail; fixed load becomes a last node "(fixed)" with one choice."""
    kept = np.flatnonzero(space.size)
    number = np.full(space.count, -1, dtype=np.int64)
    number[kept] = np.arange(kept.size)
    nodes = [Node(space.names[i], space.costs_of(i).copy()) for i in kept.tolist()]
    kinds = space.kinds
    ends = number[space.u].tolist(), number[space.v].tolist()
    edges = [
        Edge(u, v, kinds.costs(kind), kinds.left_side(kind), kinds.right_side(kind))
        for u, v, kind in zip(*ends, space.kind.tolist(), strict=True)
    ]
    usages = _usages(space, number)
    memory = space.memory
    left = kept.tolist()
    if memory.base_times.size:
        nodes.append(Node("(fixed)", np.zeros(1)))
        left.append(space.count)
        # Sums of fractions may come out just below nothing.
        loads = np.maximum(np.cumsum(memory.base_jumps), 0.0).tolist()
        times = memory.base_times.tolist()
        usages += [
            Usage(kept.size, np.array([load]), start, stop)
            for start, stop, load in zip(times, times[1:], loads, strict=False)
            if load
        ]
    limit = memory.limit if memory.rows.size else None
    problem = Problem(tuple(nodes), tuple(edges), tuple(usages), limit, space.offset)
    return problem, _trail(space, left)


def _usages(space: Workspace, number: Integers) -> list[Usage]:
    """The usages of the nodes that are left; equal vectors are one object."""
    memory = space.memory
    amounts: dict[tuple[int, float], Floats] = {}
    usages = []
    columns = (number[memory.node], memory.vector, memory.scale, memory.start, memory.stop)
    for node, vector, scale, start, stop in zip(*(c.tolist() for c in columns), strict=True):
        used = amounts.get((vector, scale))
        if used is None:
            used = amounts[vector, scale] = memory.vectors.items[vector] * scale
        usages.append(Usage(node, used, start, stop))
    return usages


def _trail(space: Workspace, kept: list[int]) -> Trail:
    """The trail of the edits of a workspace, with the maps laid out one after another."""
    items = space.maps.items
    begins = starts_of([item.size for item in items])
    steps = []
    for made, *parts in space.steps:
        if made is Restrict:
            nodes, numbers, lengths = parts
            steps.append(Restrict(nodes, begins[numbers], lengths))
        elif made is Follow:
            nodes, leaders, numbers = parts
            steps.append(Follow(nodes, leaders, begins[numbers]))
        elif made is FollowPair:
            node, u, v, left, right, choices = parts
            steps.append(FollowPair(node, u, v, items[left], items[right], choices))
        else:
            steps.append(made(*parts))
    return Trail(tuple(steps), tuple(kept), space.count, join(items, np.int64))
