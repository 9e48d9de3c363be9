"""A problem under reduction: a graph that is edited in place, and a trail that undoes the edits.

Every edit that removes a choice or a node leaves one step on the trail. A plan of what is left
becomes a plan of the original by reading the trail backwards (`Trail.expand`), and a plan of the
original becomes one of what is left by reading it forwards (`Trail.project`).

Memory: `rows` are the times whose limit could still be broken, namely where the sum of the largest
amounts exceeds the limit. Usages are clipped to those rows, their smallest amount is moved into the
fixed `base` load, and rows that another row covers are dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from autoshard.solve.evaluate import LOAD_TOLERANCE
from autoshard.solve.problem import Edge, Floats, Integers, Node, Problem, Usage
from autoshard.solve.tables import TableMemo

Interval = tuple[int, int]


class InfeasibleError(Exception):
    """Raised inside the solver when a node is left without choices or memory cannot fit."""


@dataclass(frozen=True, slots=True, eq=False)
class Restrict:
    """Node `node` kept only the choices `keep`, of `size` choices."""

    node: int
    keep: Integers
    size: int


@dataclass(frozen=True, slots=True, eq=False)
class Follow:
    """Node `node` follows node `leader`: its choice is `choices[choice of the leader]`."""

    node: int
    leader: int
    choices: Integers


@dataclass(frozen=True, slots=True, eq=False)
class FollowPair:
    """Node `node` takes `choices[left[x_u], right[x_v]]`."""

    node: int
    u: int
    v: int
    left: Integers
    right: Integers
    choices: Integers


@dataclass(frozen=True, slots=True, eq=False)
class Fixed:
    """Node `node` takes its choice number `choice`."""

    node: int
    choice: int


Step = Restrict | Follow | FollowPair | Fixed


@dataclass(frozen=True, slots=True, eq=False)
class Trail:
    """The inverse of a reduction.

    `kept` are the original numbers of the nodes that are left, of `count` nodes; the number `count`
    itself stands for a node added to carry fixed load.
    """

    steps: tuple[Step, ...]
    kept: tuple[int, ...]
    count: int

    @property
    def size(self) -> int:
        return self.count + 1

    def expand(self, choices: Sequence[int]) -> tuple[int, ...]:
        """A plan of the original problem from a plan of the reduced one."""
        picked = [0] * self.size
        for node, choice in zip(self.kept, choices, strict=True):
            picked[node] = int(choice)
        for step in reversed(self.steps):
            if isinstance(step, Restrict):
                picked[step.node] = int(step.keep[picked[step.node]])
            elif isinstance(step, Follow):
                picked[step.node] = int(step.choices[picked[step.leader]])
            elif isinstance(step, FollowPair):
                row, column = step.left[picked[step.u]], step.right[picked[step.v]]
                picked[step.node] = int(step.choices[row, column])
            else:
                picked[step.node] = step.choice
        return tuple(picked[: self.count])

    def project(self, choices: Sequence[int]) -> tuple[int, ...]:
        """The reduced plan nearest to an original one; -1 where its choice was dropped."""
        picked = [int(choice) for choice in choices] + [0] * (self.size - len(choices))
        for step in self.steps:
            if isinstance(step, Restrict) and picked[step.node] >= 0:
                at = int(np.searchsorted(step.keep, picked[step.node]))
                hit = at < step.keep.size and step.keep[at] == picked[step.node]
                picked[step.node] = at if hit else -1
        return tuple(picked[node] for node in self.kept)


@dataclass(slots=True, eq=False)
class Link:
    """An edge under edit: the weight is already in the table."""

    u: int
    v: int
    table: Floats
    left: Integers
    right: Integers

    def side(self, node: int) -> Integers:
        return self.left if node == self.u else self.right

    def toward(self, node: int) -> Floats:
        """The table with the rows on the side of `node`."""
        return self.table if node == self.u else self.table.T


@dataclass(slots=True, eq=False)
class Workspace:
    """The graph: costs (None once a node is gone), links, usages, base load, rows, trail."""

    names: list[str]
    costs: list[Floats | None]
    links: dict[int, Link]
    near: list[dict[int, list[int]]]
    usages: list[dict[Interval, Floats]]
    limit: float | None
    offset: float
    base: dict[Interval, float] = field(default_factory=dict)
    rows: Integers = field(default_factory=lambda: np.zeros(0, np.int64))
    steps: list[Step] = field(default_factory=list)
    memo: TableMemo = field(default_factory=TableMemo)
    next_link: int = 0
    stale_links: set[int] = field(default_factory=set)
    queue: deque[int] = field(default_factory=deque)
    queued: set[int] = field(default_factory=set)
    changed: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, problem: Problem) -> Workspace:
        count = len(problem.nodes)
        space = cls(
            names=[node.name for node in problem.nodes],
            costs=[node.costs for node in problem.nodes],
            links={},
            near=[{} for _ in range(count)],
            usages=[{} for _ in range(count)],
            limit=problem.limit,
            offset=problem.offset,
        )
        for edge in problem.edges:
            table = space.memo.scaled(edge.table, edge.weight)
            space.add_link(Link(edge.u, edge.v, table, edge.left, edge.right))
        if problem.limit is not None:
            for usage in problem.usages:
                if usage.start < usage.stop:
                    space.add_usage(usage.node, (usage.start, usage.stop), usage.amounts)
        for node in range(count):
            space.touch(node)
        return space

    # -- bookkeeping --------------------------------------------------------------------------

    def touch(self, node: int) -> None:
        """Queue a node for another look."""
        if node not in self.queued and self.costs[node] is not None:
            self.queued.add(node)
            self.queue.append(node)
        self.changed.add(node)

    def size(self, node: int) -> int:
        return self.cost_of(node).size

    def cost_of(self, node: int) -> Floats:
        costs = self.costs[node]
        assert costs is not None, f"node {self.names[node]} is gone"
        return costs

    def add_usage(self, node: int, interval: Interval, amounts: Floats) -> None:
        usages = self.usages[node]
        usages[interval] = usages[interval] + amounts if interval in usages else amounts

    def add_base(self, interval: Interval, amount: float) -> None:
        if amount:
            self.base[interval] = self.base.get(interval, 0.0) + amount

    def add_link(self, link: Link) -> None:
        number = self.next_link
        self.next_link += 1
        self.links[number] = link
        self.near[link.u].setdefault(link.v, []).append(number)
        self.near[link.v].setdefault(link.u, []).append(number)
        self.stale_links.add(number)

    def drop_link(self, number: int) -> Link:
        link = self.links.pop(number)
        self.stale_links.discard(number)
        for one, other in ((link.u, link.v), (link.v, link.u)):
            numbers = self.near[one][other]
            numbers.remove(number)
            if not numbers:
                del self.near[one][other]
        return link

    # -- edits --------------------------------------------------------------------------------

    def restrict(self, node: int, keep: Integers) -> None:
        """Keep only the choices `keep` (sorted) of a node."""
        costs = self.cost_of(node)
        if keep.size == costs.size:
            return
        if keep.size == 0:
            raise InfeasibleError(f"no choice is left for {self.names[node]}")
        self.steps.append(Restrict(node, keep, costs.size))
        self.costs[node] = costs[keep]
        usages = self.usages[node]
        sliced: dict[int, Floats] = {}
        for interval, amounts in usages.items():
            kept = sliced.get(id(amounts))
            if kept is None:
                kept = sliced[id(amounts)] = amounts[keep]
            usages[interval] = kept
        for other, numbers in self.near[node].items():
            for number in numbers:
                link = self.links[number]
                if node == link.u:
                    link.left = link.left[keep]
                else:
                    link.right = link.right[keep]
                self.stale_links.add(number)
            self.touch(other)
        self.touch(node)

    def add_costs(self, node: int, extra: Floats) -> None:
        """Add costs to the choices of a node; +inf drops the choice."""
        total = self.cost_of(node) + extra
        allowed = total < np.inf
        if allowed.all():
            self.costs[node] = total
            self.touch(node)
        else:
            self.costs[node] = np.where(allowed, total, 0.0)
            self.restrict(node, np.flatnonzero(allowed))

    def fix(self, node: int, choice: int) -> None:
        """Give a node its final choice; its links become costs, its usages base load."""
        self.offset += float(self.cost_of(node)[choice])
        self.steps.append(Fixed(node, choice))
        for other in list(self.near[node]):
            extra = np.zeros(self.size(other))
            for number in list(self.near[node][other]):
                link = self.drop_link(number)
                extra = extra + link.toward(node)[link.side(node)[choice]][link.side(other)]
            self.add_costs(other, extra)
        for interval, amounts in self.usages[node].items():
            self.add_base(interval, float(amounts[choice]))
        self._remove(node)

    def follow(self, node: int, leader: int, choices: Integers) -> None:
        """Remove a node whose choice is a function of the leader's choice."""
        extra = self.cost_of(node)[choices]
        for number in list(self.near[node].get(leader, ())):
            link = self.drop_link(number)
            extra = extra + link.toward(leader)[link.side(leader), link.side(node)[choices]]
        self.steps.append(Follow(node, leader, choices))
        for other in list(self.near[node]):
            for number in list(self.near[node][other]):
                link = self.drop_link(number)
                if node == link.u:
                    moved = Link(leader, other, link.table, link.left[choices], link.right)
                else:
                    moved = Link(other, leader, link.table, link.left, link.right[choices])
                self.add_link(moved)
            self.touch(other)
        moved_amounts: dict[int, Floats] = {}
        for interval, amounts in self.usages[node].items():
            moved_here = moved_amounts.get(id(amounts))
            if moved_here is None:
                moved_here = moved_amounts[id(amounts)] = amounts[choices]
            self.add_usage(leader, interval, moved_here)
        self._remove(node)
        self.add_costs(leader, extra)

    def follow_pair(self, node: int, u: int, v: int, table: Floats, choices: Integers) -> None:
        """Remove a node between two others: `table` and `choices` over their link groups."""
        (first,) = self.near[node][u]
        (second,) = self.near[node][v]
        left = self.drop_link(first).side(u)
        right = self.drop_link(second).side(v)
        self.steps.append(FollowPair(node, u, v, left, right, choices))
        self._remove(node)
        self.add_link(Link(u, v, table, left, right))
        self.touch(u)
        self.touch(v)

    def _remove(self, node: int) -> None:
        self.costs[node] = None
        self.usages[node] = {}
        self.queued.discard(node)
        self.changed.discard(node)

    # -- the way back -------------------------------------------------------------------------

    def finish(self) -> tuple[Problem, Trail]:
        """What is left, as a problem; a fixed base load becomes a last node with one choice."""
        kept = [i for i, costs in enumerate(self.costs) if costs is not None]
        number = {node: position for position, node in enumerate(kept)}
        nodes = [Node(self.names[i], self.cost_of(i)) for i in kept]
        edges = [
            Edge(number[link.u], number[link.v], link.table, link.left, link.right)
            for _, link in sorted(self.links.items())
        ]
        usages = [
            Usage(number[i], amounts, *interval)
            for i in kept
            for interval, amounts in self.usages[i].items()
        ]
        if self.base and self.rows.size:
            fixed = len(nodes)
            nodes.append(Node("(fixed)", np.zeros(1)))
            load = self._base_load()
            turns = np.flatnonzero(np.diff(load, prepend=np.nan))
            stops = np.append(self.rows[turns[1:]], self.rows[-1] + 1)
            usages += [
                Usage(fixed, np.array([load[turn]]), int(self.rows[turn]), int(stop))
                for turn, stop in zip(turns.tolist(), stops.tolist(), strict=True)
                if load[turn]
            ]
            kept.append(len(self.names))
        limit = self.limit if self.rows.size else None
        problem = Problem(tuple(nodes), tuple(edges), tuple(usages), limit, self.offset)
        return problem, Trail(tuple(self.steps), tuple(kept), len(self.names))

    # -- memory rows --------------------------------------------------------------------------

    def refresh_rows(self) -> None:
        """Find the rows that can still bind; clip the usages to them; drop covered rows."""
        if self.limit is None:
            return
        starts, stops, low, high = self._ranges()
        if starts.size == 0:
            self.rows = np.zeros(0, np.int64)
            return
        times = np.unique(starts)
        lowest = _loads(times, starts, stops, low)
        highest = _loads(times, starts, stops, high)
        allowed = self.limit * (1 + LOAD_TOLERANCE)
        if (lowest > allowed).any():
            worst = int(lowest.argmax())
            raise InfeasibleError(
                f"memory: at time {times[worst]} even the smallest choices take "
                f"{lowest[worst]:.0f} bytes, limit {self.limit:.0f}"
            )
        self.rows = times[highest > allowed]
        self._clip()
        self._drop_covered_rows()
        self._clip()

    def _ranges(self) -> tuple[Integers, Integers, Floats, Floats]:
        intervals = [key for usage in self.usages for key in usage] + list(self.base)
        low = [float(amounts.min()) for usage in self.usages for amounts in usage.values()]
        high = [float(amounts.max()) for usage in self.usages for amounts in usage.values()]
        fixed = list(self.base.values())
        pairs = np.array(intervals, dtype=np.int64).reshape(-1, 2)
        return pairs[:, 0], pairs[:, 1], np.array(low + fixed), np.array(high + fixed)

    def _clip(self) -> None:
        """Move every usage to the rows it covers; equal intervals add up."""
        rows = self.rows
        memo: dict[Interval, Interval | None] = {}

        def clipped(interval: Interval) -> Interval | None:
            if interval not in memo:
                first, last = np.searchsorted(rows, interval)
                memo[interval] = (
                    (int(rows[first]), int(rows[last - 1]) + 1) if first < last else None
                )
            return memo[interval]

        for node, usages in enumerate(self.usages):
            if not usages:
                continue
            self.usages[node] = {}
            for interval, amounts in usages.items():
                short = clipped(interval)
                if short is None:
                    continue
                least = float(amounts.min())
                self.add_usage(node, short, amounts - least if least else amounts)
                self.add_base(short, least)
            merged = self.usages[node]
            for interval in [key for key, amounts in merged.items() if not amounts.any()]:
                del merged[interval]
            if len(merged) < len(usages):
                self.touch(node)
        base, self.base = self.base, {}
        for interval, amount in base.items():
            short = clipped(interval)
            if short is not None:
                self.add_base(short, amount)

    def _drop_covered_rows(self) -> None:
        """Of neighbouring rows with nested sets of live usages, keep the fuller one."""
        rows = self.rows
        if rows.size < 2:
            return
        free = [key for usage in self.usages for key in usage]
        if not free:
            self.rows = np.zeros(0, np.int64)
            return
        begins = np.zeros(rows.size + 1, dtype=np.int64)
        ends = np.zeros(rows.size + 1, dtype=np.int64)
        pairs = np.array(free, dtype=np.int64)
        np.add.at(begins, np.searchsorted(rows, pairs[:, 0]), 1)
        np.add.at(ends, np.searchsorted(rows, pairs[:, 1]), 1)
        base = self._base_load()
        begun, ended = np.cumsum(begins), np.cumsum(ends)
        kept: list[int] = []
        for row in range(rows.size):
            covered = False
            while kept:
                last = kept[-1]
                if begun[row] == begun[last] and base[row] <= base[last]:
                    covered = True
                    break
                if ended[row] == ended[last] and base[last] <= base[row]:
                    kept.pop()
                    continue
                break
            if not covered:
                kept.append(row)
        self.rows = rows[kept]

    def _base_load(self) -> Floats:
        """The fixed bytes at every row."""
        spans = np.array(list(self.base), dtype=np.int64).reshape(-1, 2)
        return _loads(self.rows, spans[:, 0], spans[:, 1], np.array(list(self.base.values())))


def _loads(times: Integers, starts: Integers, stops: Integers, amounts: Floats) -> Floats:
    """The sum of the amounts alive at each of the sorted times."""
    jumps = np.zeros(times.size + 1)
    np.add.at(jumps, np.searchsorted(times, starts), amounts)
    np.subtract.at(jumps, np.searchsorted(times, stops), amounts)
    return np.cumsum(jumps[:-1])
