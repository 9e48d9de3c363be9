"""Choices and pairs of choices that others replace at no loss (dead-end elimination).

With the *regret* R_e[y, x] = max over the neighbour's choices j of T_e[y, j] - T_e[x, j] of every
link e of a node, a choice y that takes no more memory than x replaces x

* in every plan, if   c[y] - c[x] + sum_e R_e[y, x]  <=  0;
* in the plans where the neighbour of link f takes j, if that holds with T_f[y, j] - T_f[x, j] in
  place of R_f[y, x]: the pair (x, j) is *dead*.

A choice goes when all its pairs with one neighbour are dead, each perhaps for another y (split
dead-end elimination, Pierce, Spriet, Desmet, Mayo 2000, https://doi.org/10.1002/(SICI)1096-987X
(200008)21:11<999::AID-JCC9>3.0.CO;2-A, with memory). All of this is found at once from one state:
replacing lowers the cost, or leaves it and lowers the number of the choice, so it never leads in
a circle.

Pairs that are alive can become the choices of one node in place of two. That is done where it makes
a pass over all links no dearer and the choices not many more; a node that follows its neighbour
although it takes memory is the simplest case.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np

from autoshard.solve.problem import Integers
from autoshard.solve.reduce.dominance_loops import FORBIDDEN, Compared, compare
from autoshard.solve.reduce.interned import distinct, join, spans, starts_of
from autoshard.solve.reduce.trail import InfeasibleError
from autoshard.solve.reduce.workspace import Workspace

# A node is compared when that takes at most so many steps.
STEPS = 50_000_000
# Nodes are compared at once as long as their answers and regrets take so many bytes.
BYTES = 200_000_000
# A loss of less than this much of the terms it is summed from may be rounding.
ROUNDING = 1e-12
# Where all terms are 0, a loss of 0 is still no gain: else equal choices would replace each other.
TINY = float(np.finfo(np.float64).tiny)
# Nodes that join may have so many times as many choices as before, up to a number of choices.
GROWTH = 2
GROWN = 128


def drop_dominated(space: Workspace) -> bool:
    """Drop replaceable choices of the nodes that changed, join nodes; True on any change."""
    changed = False
    while space.uncompared.any():
        sides = _Sides(space, _able(space))
        if sides.nodes.size == 0:
            continue
        _compare(space, sides)
        joins = sides.joins(space)
        before = space.size.copy()
        hit = np.flatnonzero(np.add.reduceat(sides.dropped, sides.node_start[:-1]))
        nodes = sides.nodes[hit]
        space.restrict(nodes, [np.flatnonzero(sides.kept(node, 0)) for node in nodes.tolist()])
        changed |= _join(space, sides, joins, before) or hit.size > 0
    return changed


def _able(space: Workspace) -> np.ndarray:
    """The changed nodes that are compared next, as a mask; they no longer count as changed."""
    wanted = space.uncompared & (space.size > 1)
    ends = np.concatenate([space.u, space.v])
    numbers = np.flatnonzero(wanted[ends])
    turned = numbers >= space.u.size
    tables, _, _ = space.kinds.parts(space.kind[numbers - space.u.size * turned])
    rows, columns = _shapes(space, tables, turned)
    owner = ends[numbers]
    degree = np.bincount(owner, minlength=space.count)
    steps = np.bincount(owner, rows * rows * columns, minlength=space.count)
    steps = steps + space.size**2 * np.maximum(degree, 1)
    size = np.bincount(owner, 8 * rows * rows + space.size[owner] * columns, space.count)
    able = wanted & (steps <= STEPS)
    filled = np.cumsum(np.where(able, size, 0.0))
    taken = filled <= max(BYTES, filled[able][0] if able.any() else 0.0)
    space.uncompared &= ~taken
    return able & taken


def _shapes(space: Workspace, tables: Integers, turned: np.ndarray) -> tuple[Integers, Integers]:
    """Rows and columns of tables, seen from the sides that are `turned` or not."""
    used, place = np.unique(tables, return_inverse=True)
    shapes = [space.kinds.tables[number].shape for number in used.tolist()]
    heights, widths = np.array(shapes, dtype=np.int64).reshape(-1, 2)[place].T
    return np.where(turned, widths, heights), np.where(turned, heights, widths)


def _compare(space: Workspace, sides: _Sides) -> None:
    """Fill in `dropped` and `dead`, from what is known of nodes that look just like these."""
    if space.compared is None:
        sides.compare(space)
        return
    keys = sides.keys(space)
    new = np.zeros(space.count, dtype=bool)
    new[sides.nodes[[key not in space.compared for key in keys]]] = True
    if new.any():
        part = _Sides(space, new)
        part.compare(space)
        for key, answers in zip(part.keys(space), part.answers(), strict=True):
            space.compared[key] = answers[0].copy(), answers[1].copy()
    for key, (dropped, dead) in zip(keys, sides.answers(), strict=True):
        dropped[:], dead[:] = space.compared[key]


class _Sides:
    """Changed nodes, and every link of theirs seen from their side; see `Compared`.

    `other` is the node across, `table` its number, `rows` and `columns` its shape seen from here,
    `own` and `theirs` are the maps of both ends, `turned` says that the node is v of the link.
    """

    def __init__(self, space: Workspace, able: np.ndarray) -> None:
        ends = np.concatenate([space.u, space.v])
        numbers = np.flatnonzero(able[ends])
        numbers = numbers[np.argsort(ends[numbers], kind="stable")]
        count = space.u.size
        self.nodes = np.flatnonzero(able)
        self.owner, self.turned = ends[numbers], numbers >= count
        self.link = numbers - count * self.turned
        self.table, left, right = space.kinds.parts(space.kind[self.link])
        self.rows, self.columns = _shapes(space, self.table, self.turned)
        self.own, self.theirs = np.where(self.turned, (right, left), (left, right))
        self.other = np.where(self.turned, space.u[self.link], space.v[self.link])
        self.size = space.size[self.nodes]
        self.node_start = starts_of(self.size)
        degree = np.bincount(self.owner, minlength=space.count)
        self.near_start = starts_of(degree[self.nodes])
        self.pair_start = starts_of(space.size[self.owner] * self.columns)
        self.dropped = np.zeros(int(self.node_start[-1]), dtype=bool)
        self.dead = np.zeros(int(self.pair_start[-1]), dtype=bool)

    def keys(self, space: Workspace) -> list[bytes]:
        """By node, what says all that its answers depend on."""
        vectors, vector_start = self._vectors(space)
        items, tables, maps = space.memory.vectors.items, space.kinds.digests, space.maps.items
        found = []
        for position, node in enumerate(self.nodes.tolist()):
            hashed = hashlib.blake2b(space.costs_of(node).tobytes(), digest_size=16)
            for side in range(self.near_start[position], self.near_start[position + 1]):
                hashed.update(tables[self.table[side]] + (b"v" if self.turned[side] else b"u"))
                hashed.update(maps[self.own[side]].tobytes())
            for number in vectors[vector_start[position] : vector_start[position + 1]].tolist():
                hashed.update(b"takes" + items[number].tobytes())
            found.append(hashed.digest())
        return found

    def answers(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """By node, its part of `dropped` and of `dead`."""
        pairs = self.pair_start[self.near_start]
        for position in range(self.nodes.size):
            begin, end = self.node_start[position : position + 2]
            yield self.dropped[begin:end], self.dead[pairs[position] : pairs[position + 1]]

    def compare(self, space: Workspace) -> None:
        """Fill in `dropped` and `dead`."""
        parts, place = distinct(self.table, self.turned.astype(np.int64))
        tables = [space.kinds.tables[t].T if turn else space.kinds.tables[t] for t, turn in parts]
        heights = np.array([t.shape[0] for t in tables], dtype=np.int64)
        widths = np.array([t.shape[1] for t in tables], dtype=np.int64)
        flat = join([table.ravel() for table in tables], np.float64)
        finite = flat < np.inf
        begins = starts_of(heights * widths)[:-1]
        groups, group_start = space.maps.laid_out(self.own)
        costs = space.costs[spans(space.start[self.nodes], self.size)]
        node = np.repeat(np.arange(self.nodes.size), np.diff(self.near_start))
        scale = np.maximum.reduceat(np.abs(costs), self.node_start[:-1])
        barred, usual = np.zeros(costs.size), costs.copy()
        if flat.size:
            largest = np.maximum.reduceat(np.abs(np.where(finite, flat, 0.0)), begins)[place]
            scale += np.bincount(node, largest, minlength=self.nodes.size)
            row = spans(np.zeros(heights.size, np.int64), heights)
            row_begins = np.repeat(begins, heights) + row * np.repeat(widths, heights)
            sizes = self.size[node]
            first_row = np.repeat(starts_of(heights)[:-1][place], sizes)
            row = groups[spans(group_start, sizes)] + first_row
            choice = spans(self.node_start[node], sizes)
            width = np.repeat(self.columns, sizes)
            for total, values in ((barred, ~finite), (usual, np.where(finite, flat, 0.0))):
                sums = np.add.reduceat(values, row_begins, dtype=np.float64)
                np.add.at(total, choice, sums[row] / width)
        # Of two choices that are as good the earlier one stays: the one with fewer forbidden pairs,
        # then with the lower mean beside all neighbours. No regret is below the mean excess, so a
        # choice that another one replaces at no loss comes after it.
        order = np.lexsort((usual, barred, np.repeat(self.nodes, self.size)))
        order -= np.repeat(self.node_start[:-1], self.size)
        vectors, vector_start = self._vectors(space)
        amounts, places = space.memory.vectors.laid_out(vectors)
        regret_start = starts_of(heights**2)
        compared = Compared(
            node_start=self.node_start,
            costs=costs,
            order=order,
            rounding=np.maximum(ROUNDING * scale, TINY),
            vector_start=vector_start,
            vectors=places,
            amounts=amounts,
            near_start=self.near_start,
            table=place,
            group_start=group_start,
            groups=groups,
            pair_start=self.pair_start,
            rows=heights,
            columns=widths,
            table_start=begins,
            regret_start=regret_start,
            tables=np.where(finite, flat, FORBIDDEN),
        )
        left = np.zeros(self.link.size, dtype=np.int64)
        compare(compared, np.zeros(int(regret_start[-1])), left, self.dropped, self.dead)

    def _vectors(self, space: Workspace) -> tuple[Integers, Integers]:
        """The usage vectors of the nodes, and where those of each begin."""
        vectors, begins = space.memory.vectors_by_node(space.count)
        chosen = np.zeros(space.count, dtype=bool)
        chosen[self.nodes] = True
        owners = np.repeat(np.arange(space.count), np.diff(begins))
        return vectors[chosen[owners]], starts_of(np.diff(begins)[self.nodes])

    def joins(self, space: Workspace) -> Integers:
        """The sides whose live pairs may become the choices of one node, best first."""
        if self.link.size == 0:
            return np.zeros(0, dtype=np.int64)
        degree = space.degrees()
        size, theirs = space.size[self.owner], space.size[self.other]
        together = degree[self.owner] + degree[self.other]
        work = size * degree[self.owner] + theirs * degree[self.other] + self.rows * self.columns
        most = np.maximum(size + theirs, np.minimum(GROWTH * (size + theirs), GROWN))
        room = np.minimum(most, work // np.maximum(together - 2, 1))
        # Every group stands for one choice at least, so this is the least that there can be.
        least = np.add.reduceat(~self.dead, self.pair_start[:-1], dtype=np.int64)
        pairs = np.full(self.link.size, np.iinfo(np.int64).max)
        for side in np.flatnonzero(least <= room).tolist():
            times = np.bincount(space.maps.items[self.theirs[side]], minlength=self.columns[side])
            pairs[side] = times @ self._alive_beside(side).sum(axis=0)
        able = np.flatnonzero(pairs <= room)
        return able[np.argsort((pairs - size - theirs)[able], kind="stable")]

    def alive(self, space: Workspace, side: int) -> np.ndarray:
        """Which pairs (choice of the neighbour, choice of the node) are alive."""
        return self._alive_beside(side).T[space.maps.items[self.theirs[side]]]

    def _alive_beside(self, side: int) -> np.ndarray:
        """Which choices of the node are alive beside which groups of the neighbour's."""
        begin, end = self.pair_start[side], self.pair_start[side + 1]
        dead = self.dead[begin:end].reshape(-1, int(self.columns[side]))
        position = int(np.searchsorted(self.nodes, self.owner[side]))
        first, last = self.node_start[position], self.node_start[position + 1]
        return ~dead & ~self.dropped[first:last, None]

    def kept(self, node: int, size: int) -> np.ndarray:
        """Mask of the choices of any node that stay."""
        position = int(np.searchsorted(self.nodes, node))
        if position == self.nodes.size or self.nodes[position] != node:
            return np.ones(size, dtype=bool)
        return ~self.dropped[self.node_start[position] : self.node_start[position + 1]]


def _join(space: Workspace, sides: _Sides, order: Integers, size: Integers) -> bool:
    """Join nodes along these sides, in this order, each node once; True when there were any.

    `size` are the sizes of all nodes when the sides were compared.
    """
    if order.size == 0:
        return False
    taken = np.zeros(space.count, dtype=bool)
    couples = np.minimum(space.u, space.v) * space.count + np.maximum(space.u, space.v)
    _, place, several = np.unique(couples, return_inverse=True, return_counts=True)
    nodes, leaders, pairs = [], [], []
    for side in order.tolist():
        node, leader = int(sides.owner[side]), int(sides.other[side])
        if taken[node] or taken[leader] or several[place[sides.link[side]]] > 1:
            continue
        taken[[node, leader]] = True
        alive = sides.alive(space, side)[sides.kept(leader, int(size[leader]))]
        of_leader, of_node = np.nonzero(alive[:, sides.kept(node, int(size[node]))])
        if of_node.size == 0:
            # Replacing ends in a pair that is alive, wherever there is a plan to begin with.
            names = space.names[node], space.names[leader]
            raise InfeasibleError(f"no choice is left for {names[0]} beside {names[1]}")
        nodes.append(node)
        leaders.append(leader)
        pairs.append((of_node, of_leader))
    if nodes:
        space.join(np.array(nodes), np.array(leaders), pairs)
    return bool(nodes)
