"""A problem under reduction: flat arrays that are edited in place, and a trail of the edits.

Nodes are numbered as in the problem given; the choices of node i cost `costs[start[i] : start[i] +
size[i]]`, and a node that is gone has size 0. Link k joins nodes u[k] and v[k] and is of kind
kind[k] (`autoshard.solve.reduce.kinds`). Every edit works on many nodes or links at once.

Flags say what has to be looked at again: `fresh` links whose kind was not examined since it
changed, `determined` links one of whose ends follows from the other, `tangled` when links may have
become parallel, `priced` nodes that may have a choice of cost +inf; nodes about which something
changed since they were last folded (`unfolded`) or their choices compared (`uncompared`).

`compared` is what comparisons gave, here and in other reductions of nearly the same problem.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from autoshard.solve.problem import Floats, Integers, Problem
from autoshard.solve.reduce.interned import Interned, join, spans, starts_of
from autoshard.solve.reduce.kinds import Kinds
from autoshard.solve.reduce.memory_rows import Memory
from autoshard.solve.reduce.trail import (
    Fixed,
    Follow,
    FollowPair,
    InfeasibleError,
    Join,
    Restrict,
    Trail,
)

Compared = dict[bytes, tuple[np.ndarray, np.ndarray]]
"""What comparing the choices of nodes gave, by what it depends on: see `solve.dominance`."""


@dataclass(slots=True, eq=False)
class Workspace:
    """See the module; `offset` is the cost of all that is decided."""

    names: list[str]
    size: Integers
    start: Integers
    costs: Floats
    maps: Interned
    kinds: Kinds
    u: Integers
    v: Integers
    kind: Integers
    memory: Memory
    offset: float
    fresh: np.ndarray
    determined: np.ndarray
    priced: np.ndarray
    unfolded: np.ndarray
    uncompared: np.ndarray
    tangled: bool = True
    steps: list[tuple] = field(default_factory=list)
    compared: Compared | None = None

    @classmethod
    def of(cls, problem: Problem, compared: Compared | None = None) -> Workspace:
        count = len(problem.nodes)
        size = np.array([node.costs.size for node in problem.nodes], dtype=np.int64)
        maps = Interned(np.int64)
        kinds = Kinds(maps)
        return cls(
            names=[node.name for node in problem.nodes],
            size=size,
            start=starts_of(size)[:-1],
            costs=join([node.costs for node in problem.nodes], np.float64),
            maps=maps,
            kinds=kinds,
            u=np.array([edge.u for edge in problem.edges], dtype=np.int64),
            v=np.array([edge.v for edge in problem.edges], dtype=np.int64),
            kind=kinds.of_edges(problem.edges),
            memory=Memory.of(problem),
            offset=problem.offset,
            fresh=np.ones(len(problem.edges), dtype=bool),
            determined=np.zeros(len(problem.edges), dtype=bool),
            priced=np.zeros(count, dtype=bool),
            unfolded=np.ones(count, dtype=bool),
            uncompared=np.ones(count, dtype=bool),
            compared=compared,
        )

    @property
    def count(self) -> int:
        return self.size.size

    def costs_of(self, node: int) -> Floats:
        """The costs of the choices of one node, as a view."""
        return self.costs[self.start[node] : self.start[node] + self.size[node]]

    def degrees(self) -> Integers:
        """How many links every node has."""
        degree = np.bincount(self.u, minlength=self.count)
        return degree + np.bincount(self.v, minlength=self.count)

    def touch(self, nodes: Integers) -> None:
        """Something about these nodes changed."""
        self.unfolded[nodes] = True
        self.uncompared[nodes] = True

    # -- links --------------------------------------------------------------------------------

    def drop_links(self, gone: np.ndarray) -> None:
        """Take out the links of a mask."""
        self.touch(np.concatenate([self.u[gone], self.v[gone]]))
        left = ~gone
        self.u, self.v, self.kind = self.u[left], self.v[left], self.kind[left]
        self.fresh, self.determined = self.fresh[left], self.determined[left]

    def add_links(self, u: Sequence[int], v: Sequence[int], kind: Sequence[int]) -> None:
        """Put in links."""
        ends = np.concatenate([np.array(u, dtype=np.int64), np.array(v, dtype=np.int64)])
        self.touch(ends)
        self.u = np.append(self.u, ends[: len(u)])
        self.v = np.append(self.v, ends[len(u) :])
        self.kind = np.append(self.kind, np.array(kind, dtype=np.int64))
        self.fresh = np.append(self.fresh, np.ones(len(u), dtype=bool))
        self.determined = np.append(self.determined, np.zeros(len(u), dtype=bool))
        self.tangled = True

    def _remap(self, to: Integers, through: Integers) -> None:
        """Node i becomes node to[i] seen through map through[i] (-1: unchanged)."""
        self.memory.remap(to, through, self.maps)
        left, right = through[self.u], through[self.v]
        moved = np.flatnonzero((left >= 0) | (right >= 0))
        if moved.size:
            self.kind[moved] = self.kinds.moved(self.kind[moved], left[moved], right[moved])
            self.u[moved], self.v[moved] = to[self.u[moved]], to[self.v[moved]]
            self.touch(np.concatenate([self.u[moved], self.v[moved]]))
            self.fresh[moved] = True
            self.determined[moved] = False

    # -- nodes --------------------------------------------------------------------------------

    def add_costs(self, nodes: Integers, extra: Sequence[Floats]) -> None:
        """Add a vector of costs to every one of some nodes (repeats allowed)."""
        if nodes.size:
            np.add.at(self.costs, spans(self.start[nodes], self.size[nodes]), np.concatenate(extra))
            self.priced[nodes] = True
            self.touch(nodes)

    def restrict(self, nodes: Integers, keep: Sequence[Integers]) -> None:
        """Keep only the choices keep[k] (sorted) of nodes[k]; every node at most once."""
        numbers = self.maps.add_all(keep)
        sizes = np.array([chosen.size for chosen in keep], dtype=np.int64)
        less = np.flatnonzero(sizes < self.size[nodes])
        nodes, numbers, sizes = nodes[less], numbers[less], sizes[less]
        if nodes.size == 0:
            return
        empty = nodes[sizes == 0]
        if empty.size:
            named = ", ".join(self.names[node] for node in empty[:8].tolist())
            raise InfeasibleError(f"no choice is left for {named}")
        self.steps.append((Restrict, nodes, numbers, sizes))
        kept = self.maps.gather(numbers) + np.repeat(self.start[nodes], sizes)
        self.costs[spans(self.start[nodes], sizes)] = self.costs[kept]
        self.size[nodes] = sizes
        self.touch(nodes)
        through = np.full(self.count, -1, dtype=np.int64)
        through[nodes] = numbers
        self._remap(np.arange(self.count), through)

    def drop_forbidden(self) -> bool:
        """Drop the choices that cost +inf; True when there were any."""
        nodes = np.flatnonzero(self.priced & (self.size > 0))
        self.priced[:] = False
        places = spans(self.start[nodes], self.size[nodes])
        allowed = self.costs[places] < np.inf
        if allowed.all():
            return False
        ends = np.cumsum(self.size[nodes])
        hit = np.unique(np.searchsorted(ends, np.flatnonzero(~allowed), side="right"))
        keep = [
            np.flatnonzero(allowed[ends[k] - self.size[nodes[k]] : ends[k]]) for k in hit.tolist()
        ]
        self.restrict(nodes[hit], keep)
        return True

    def fix(self, nodes: Integers, choices: Integers) -> None:
        """Decide nodes without links."""
        self.steps.append((Fixed, nodes, choices))
        self.offset += float(self.costs[self.start[nodes] + choices].sum())
        alone = [self.maps.add(np.array([choice])) for choice in range(int(choices.max()) + 1)]
        through = np.full(self.count, -1, dtype=np.int64)
        through[nodes] = np.array(alone)[choices]
        self.memory.remap(np.arange(self.count), through, self.maps)
        self.size[nodes] = 0

    def follow(self, nodes: Integers, leaders: Integers, maps: Integers) -> None:
        """Let nodes take a map of the choice of their leader; leaders may follow others in turn.

        Costs and links of a node become those of its leader.
        """
        leaders, maps = self._resolve(nodes, leaders, maps)
        self.steps.append((Follow, nodes, leaders, maps))
        sizes = self.size[leaders]
        places = self.maps.gather(maps) + np.repeat(self.start[nodes], sizes)
        np.add.at(self.costs, spans(self.start[leaders], sizes), self.costs[places])
        self.priced[leaders] = True
        self.touch(leaders)
        self.size[nodes] = 0
        to, through = np.arange(self.count), np.full(self.count, -1, dtype=np.int64)
        to[nodes] = leaders
        through[nodes] = maps
        self._remap(to, through)
        self._fold_loops()

    def _resolve(
        self, nodes: Integers, leaders: Integers, maps: Integers
    ) -> tuple[Integers, Integers]:
        """Leaders that follow nobody, and the maps from their choices."""
        leaders, maps = leaders.copy(), maps.copy()
        place = np.full(self.count, -1, dtype=np.int64)
        place[nodes] = np.arange(nodes.size)
        while True:
            chained = np.flatnonzero(place[leaders] >= 0)
            if chained.size == 0:
                return leaders, maps
            ahead = place[leaders[chained]]
            new_leaders = leaders[ahead]
            new_maps = self.maps.compose(maps[chained], maps[ahead], self.maps)
            leaders[chained], maps[chained] = new_leaders, new_maps

    def _fold_loops(self) -> None:
        """Links of a node with itself are costs of its choices; others may be parallel now."""
        self.tangled = True
        loops = self.u == self.v
        if loops.any():
            extra = [self.kinds.diagonal(kind) for kind in self.kind[loops].tolist()]
            self.add_costs(self.u[loops], extra)
            self.drop_links(loops)

    def follow_pair(
        self, node: int, u: int, v: int, left: int, right: int, choices: Integers
    ) -> None:
        """Take out a node that follows two others, through maps and a matrix of choices."""
        self.steps.append((FollowPair, node, u, v, left, right, choices))
        self.size[node] = 0

    def join(
        self, nodes: Integers, leaders: Integers, pairs: Sequence[tuple[Integers, Integers]]
    ) -> None:
        """Make pairs (choice of node, choice of leader) the choices of the leaders; the nodes go.

        No node stands in two of the joins. The pairs ascend by the leader's choice, then the
        node's. Costs, links and usages become those of both.
        """
        sizes = np.array([of_leader.size for _, of_leader in pairs], dtype=np.int64)
        of_node = self.maps.add_all([pair[0] for pair in pairs])
        of_leader = self.maps.add_all([pair[1] for pair in pairs])
        places = [
            self.maps.gather(numbers) + np.repeat(self.start[ends], sizes)
            for numbers, ends in ((of_node, nodes), (of_leader, leaders))
        ]
        for node, leader, pair in zip(nodes.tolist(), leaders.tolist(), pairs, strict=True):
            self.steps.append((Join, node, leader, *pair))
        self.start[leaders] = self.costs.size + np.cumsum(sizes) - sizes
        self.costs = np.append(self.costs, self.costs[places[0]] + self.costs[places[1]])
        self.size[leaders] = sizes
        self.size[nodes] = 0
        self.touch(leaders)
        to, through = np.arange(self.count), np.full(self.count, -1, dtype=np.int64)
        to[nodes] = leaders
        through[nodes], through[leaders] = of_node, of_leader
        self._remap(to, through)
        self._fold_loops()

    # -- memory -------------------------------------------------------------------------------

    def refresh_rows(self) -> bool:
        """Find the memory rows that matter; drop choices that fit beside nothing; True on news."""
        before = self._vector_counts()
        heavy = self.memory.refresh()
        self.restrict(
            np.array([node for node, _ in heavy], dtype=np.int64),
            [np.flatnonzero(fits) for _, fits in heavy],
        )
        lighter = self._vector_counts() < before
        self.touch(np.flatnonzero(lighter))
        return bool(heavy) or bool(lighter.any())

    def _vector_counts(self) -> Integers:
        _, begins = self.memory.vectors_by_node(self.count)
        return np.diff(begins)


__all__ = ["InfeasibleError", "Trail", "Workspace"]
