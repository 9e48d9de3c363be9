"""Rules on nodes with few neighbours: see `autoshard.solve.reduce.presolve`."""

from __future__ import annotations

from collections import deque

import numpy as np

from autoshard.solve.problem import Floats, Integers
from autoshard.solve.reduce.interned import starts_of
from autoshard.solve.reduce.kinds import GROWTH, TABLE_ENTRIES
from autoshard.solve.reduce.workspace import Workspace

# A table over both neighbours of a node takes at most so many sums.
SUMS = 20_000_000


def fold_isolated(space: Workspace) -> bool:
    """Decide nodes without links whose cheapest choice is also the lightest."""
    alone = np.flatnonzero((space.degrees() == 0) & (space.size > 0) & space.unfolded)
    if alone.size == 0:
        return False
    vectors, begins = space.memory.vectors_by_node(space.count)
    single = space.size[alone] == 1
    nodes = alone[single].tolist()
    choices = [0] * len(nodes)
    for node in alone[~single].tolist():
        own = vectors[begins[node] : begins[node + 1]].tolist()
        amounts = [space.memory.vectors.items[number] for number in own]
        best = best_and_lightest(space.costs_of(node)[None, :], amounts)
        if best is not None:
            nodes.append(node)
            choices.append(int(best[0]))
    if nodes:
        space.fix(np.array(nodes), np.array(choices))
    return bool(nodes)


def best_and_lightest(totals: Floats, amounts: list[Floats]) -> Integers | None:
    """Per row of `totals`, the cheapest choice, if no allowed choice takes less memory.

    None when memory and cost pull in different directions in some row.
    """
    best = totals.argmin(axis=1)
    if not amounts:
        return best
    cheapest = totals.min(axis=1)
    tied = totals == cheapest[:, None]
    best = np.where(tied, np.sum(amounts, axis=0), np.inf).argmin(axis=1)
    allowed = totals < np.inf
    for vector in amounts:
        least = np.where(allowed, vector, np.inf).min(axis=1)
        if (vector[best] > least).any():
            return None
    return best


def fold_leaves(space: Workspace) -> bool:
    """Let nodes with one neighbour follow it, from the tips of trees inward.

    A leaf follows when, for every choice of its neighbour, its cheapest choice is the lightest.
    """
    degree = space.degrees()
    tips = np.flatnonzero((degree == 1) & space.unfolded)
    if tips.size == 0:
        return False
    peeling = _Peeling(space, degree)
    waiting = deque(tips.tolist())
    while waiting:
        node = waiting.popleft()
        if degree[node] != 1:
            continue
        leader = peeling.peel(node)
        if leader >= 0 and degree[leader] == 1:
            waiting.append(leader)
    return peeling.apply()


class _Peeling:
    """Leaves that were taken off, and what their leaders have taken over from them."""

    def __init__(self, space: Workspace, degree: Integers) -> None:
        self.space, self.degree = space, degree
        ends = np.concatenate([space.u, space.v])
        order = np.argsort(ends, kind="stable")
        self.near = order % max(space.u.size, 1)
        self.begin = starts_of(np.bincount(ends, minlength=space.count))
        self.gone = np.zeros(space.u.size, dtype=bool)
        self.vectors, self.vector_begin = space.memory.vectors_by_node(space.count)
        self.taken_over: dict[int, list[Floats]] = {}
        self.nodes: list[int] = []
        self.leaders: list[int] = []
        self.maps: list[int] = []

    def amounts(self, node: int) -> list[Floats]:
        items = self.space.memory.vectors.items
        own = self.vectors[self.vector_begin[node] : self.vector_begin[node + 1]].tolist()
        return [items[number] for number in own] + self.taken_over.get(node, [])

    def peel(self, node: int) -> int:
        """Take a leaf off, if it may; the leader, or -1."""
        space = self.space
        near = self.near[self.begin[node] : self.begin[node + 1]]
        link = int(near[~self.gone[near]][0])
        kind, up = int(space.kind[link]), space.v[link] == node
        leader = int(space.u[link] if up else space.v[link])
        table, own = space.kinds.costs(kind), space.kinds.right_side(kind)
        theirs = space.kinds.left_side(kind)
        if not up:
            table, own, theirs = table.T, theirs, own
        totals = table[:, own] + space.costs_of(node)
        amounts = self.amounts(node)
        best = best_and_lightest(totals, amounts)
        if best is None:
            return -1
        extra = totals[np.arange(best.size), best][theirs]
        space.costs_of(leader)[:] += extra
        choices = best[theirs]
        if amounts:
            moved = [vector[choices] for vector in amounts]
            self.taken_over.setdefault(leader, []).extend(v for v in moved if np.ptp(v) > 0)
        self.gone[link] = True
        self.degree[[node, leader]] -= 1
        self.nodes.append(node)
        self.leaders.append(leader)
        self.maps.append(space.maps.add(choices))
        return leader

    def apply(self) -> bool:
        """Make it so; the costs have moved already."""
        if not self.nodes:
            return False
        space = self.space
        space.drop_links(self.gone)
        nodes = np.array(self.nodes)
        for node in self.nodes:
            space.costs_of(node)[:] = 0.0
        space.follow(nodes, np.array(self.leaders), np.array(self.maps))
        return True


def fold_middles(space: Workspace) -> bool:
    """Replace nodes between two others by a table over both: min_x c[x] + A[g, x] + B[x, h].

    The node takes no memory that could bind, and the table is small. No two neighbours go at once.
    """
    degree = space.degrees()
    able = (degree == 2) & (space.size > 0) & ~space.memory.has_usage(space.count)
    nodes = np.flatnonzero(able & space.unfolded)
    if nodes.size == 0:
        return False
    ends = np.concatenate([space.u, space.v])
    order = np.argsort(ends, kind="stable")
    begin = np.searchsorted(ends[order], nodes)
    held = np.zeros(space.count, dtype=bool)
    gone = np.zeros(space.u.size, dtype=bool)
    u, v, kind = [], [], []
    for node, at in zip(nodes.tolist(), begin.tolist(), strict=True):
        pair = (order[at : at + 2] % space.u.size).tolist()
        if held[node]:
            continue
        found = _through(space, node, pair)
        if found is None:
            continue
        one, two, number = found
        held[[one, two, node]] = True
        gone[pair] = True
        u.append(one)
        v.append(two)
        kind.append(number)
    if not u:
        return False
    space.drop_links(gone)
    space.add_links(u, v, kind)
    return True


def _through(space: Workspace, node: int, links: list[int]) -> tuple[int, int, int] | None:
    """Take the node out of the middle of two links: both neighbours, and the kind of link there."""
    sides = []
    for link in links:
        number = int(space.kind[link])
        table, left = space.kinds.costs(number), space.kinds.left[number]
        own, other, theirs = space.kinds.right_side(number), int(space.u[link]), left
        if space.u[link] == node:
            table, own = table.T, space.kinds.left_side(number)
            other, theirs = int(space.v[link]), space.kinds.right[number]
        sides.append((table, own, other, theirs))
    (rows, own_row, u, left), (columns, own_column, v, right) = sides
    if u == v:
        return None
    entries = rows.shape[0] * columns.shape[0]
    small = entries <= max(TABLE_ENTRIES, GROWTH * (rows.size + columns.size))
    if not small or entries * space.size[node] > SUMS:
        return None
    one = rows[:, own_row] + space.costs_of(node)
    two = columns[:, own_column]
    table = np.empty((rows.shape[0], columns.shape[0]))
    choices = np.empty(table.shape, dtype=np.int64)
    for group in range(rows.shape[0]):
        totals = two + one[group]
        choices[group] = totals.argmin(axis=1)
        table[group] = totals[np.arange(columns.shape[0]), choices[group]]
    space.follow_pair(node, u, v, left, right, choices)
    return u, v, space.kinds.add(space.kinds.add_table(table), left, right)


def fold_twins(space: Workspace) -> bool:
    """Let nodes follow others that are in the same place: equal costs and links, no memory.

    Whatever their neighbours choose, the best choice of one is the best choice of the other.
    """
    able = (space.size > 1) & ~space.memory.has_usage(space.count)
    if not (able & space.unfolded).any():
        return False
    table, left, right = space.kinds.parts(space.kind)
    ends = np.concatenate([space.u, space.v])
    rows = np.stack([
        np.concatenate([space.v, space.u]),
        np.concatenate([table, table]),
        np.concatenate([left, right]),
        np.concatenate([right, left]),
        np.repeat([0, 1], space.u.size),
    ])  # fmt: skip
    inside = able[ends]
    order = np.lexsort((*rows[::-1, inside], ends[inside]))
    rows, ends = rows[:, inside][:, order], ends[inside][order]
    begin = starts_of(np.bincount(ends, minlength=space.count))
    first: dict[bytes, int] = {}
    nodes, leaders = [], []
    for node in np.flatnonzero(able).tolist():
        links = rows[:, begin[node] : begin[node + 1]]
        leader = first.setdefault(links.tobytes() + space.costs_of(node).tobytes(), node)
        if leader != node:
            nodes.append(node)
            leaders.append(leader)
    if nodes:
        maps = [space.maps.add(np.arange(size)) for size in space.size[nodes].tolist()]
        space.follow(np.array(nodes), np.array(leaders), np.array(maps))
    return bool(nodes)
