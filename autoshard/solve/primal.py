"""Plans: rounding by exact forests under prices, region by region.

One move un-decides a region of the graph and decides it again, forest by forest. In the first
forest the neighbours that are still open speak through the messages of the dual (what they will
cost at best); later forests see more and more decided neighbours; a last forest over the region and
its surroundings sees only decided ones. The first move takes the whole graph: that is the rounding
of the dual. All forests are solved for

    cost  +  (prices + extra) . load,

with the prices of the dual and an `extra` price that grows on the rows most over their limit and
fades on the others, so the search swings about the border of what fits. A move is kept when it does
not raise that sum. Every plan met that fits is a candidate; the best one is kept aside.

Forbidden pairs are priced at `conflict_cost`, more than any two plans can differ by, so that a plan
with conflicts is merely bad and the same moves that lower the cost also remove conflicts.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np

from autoshard.solve.flat import Flat, edge_spans, worst_rows
from autoshard.solve.forest import choose_forest, solve_forest
from autoshard.solve.kernels import grow_region, plan_change, priced_costs

# The smallest region of a move; sizes are drawn between it and the whole graph, log-uniformly.
SMALLEST = 8
# Extra price of a row, as a part of the largest price, per move while 2 % over; its fading else.
RISE = 0.1
FADE = 0.95
# How the rise grows with every move that leaves a limit broken, until all limits hold again.
URGENCY = 1.02


@dataclass(slots=True, eq=False)
class ForestSearch:
    """A plan on the move, and the best one met that fits (`best_cost` is without offset)."""

    flat: Flat
    prices: np.ndarray
    messages: np.ndarray
    seed: int = 0
    picked: np.ndarray = field(init=False)
    best: np.ndarray | None = None
    best_cost: float = np.inf
    moves: int = 0
    stopped: bool = False
    stale: int = 0
    tables: np.ndarray = field(init=False)
    spread: float = field(init=False)
    conflict_cost: float = field(init=False)
    _started: bool = False
    _cost: float = np.inf
    _urgency: float = 1.0
    _load: np.ndarray = field(init=False)
    _extra: np.ndarray = field(init=False)
    _total: np.ndarray = field(init=False)
    _jumps: np.ndarray = field(init=False)
    _random: np.random.Generator = field(init=False)
    _theta: np.ndarray = field(init=False)
    _held: np.ndarray = field(init=False)
    _side: np.ndarray = field(init=False)
    _open: np.ndarray = field(init=False)
    _inside: np.ndarray = field(init=False)
    _several: np.ndarray = field(init=False)
    _nodes: tuple[np.ndarray, ...] = field(init=False)
    _trial: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        flat, rows = self.flat, self.flat.capacity.size
        self.spread = _spread(flat)
        self.conflict_cost = 2.0 * self.spread + 1e-30
        self.tables = np.where(flat.tables < np.inf, flat.tables, self.conflict_cost)
        self._random = np.random.default_rng(self.seed)
        self._load, self._extra = np.zeros(rows), np.zeros(rows)
        self._total, self._jumps = np.zeros(rows + 1), np.zeros(rows + 1)
        self._theta, self._held = np.zeros(flat.costs.size), np.zeros(flat.costs.size)
        self._side = np.zeros(2 * flat.widest)
        self._open, self._inside = (np.zeros(flat.node_count, dtype=np.bool_) for _ in range(2))
        self._several = np.diff(flat.node_start) > 1
        self._nodes = tuple(np.zeros(flat.node_count, dtype=np.int64) for _ in range(5))
        self.picked, self._trial = (np.zeros(flat.node_count, dtype=np.int64) for _ in range(2))

    def begin_with(self, picked: np.ndarray) -> None:
        """Take a plan to improve, instead of rounding the dual; -1 where it says nothing."""
        self.picked = np.maximum(picked, 0)
        self._appraise()
        self._started = True
        self._keep_best()
        unknown = np.flatnonzero((picked < 0) & self._several)
        if unknown.size:
            self._try(unknown, unknown)

    def begin_afresh(self) -> None:
        """Round the dual again in the next run; the best plan stays aside."""
        self._started = False
        self.stale = 0
        self._extra[:] = 0.0
        self._urgency = 1.0

    def conflicts(self, picked: np.ndarray) -> bool:
        """Whether a plan takes a forbidden pair."""
        flat = self.flat
        g = flat.groups[flat.left_start + picked[flat.u]]
        h = flat.groups[flat.right_start + picked[flat.v]]
        return bool((flat.tables[flat.table_start + g * flat.columns + h] == np.inf).any())

    def run(self, work: float, deadline: float) -> None:
        """Moves until `deadline` (time.monotonic), or until `work` nodes were decided again."""
        if not self._started:
            self._appraise()
            self._started = True
            everything = self._random.permutation(self.flat.node_count)
            self._try(everything, everything, at_any_cost=True)
        count = self.flat.node_count
        while work > 0 and time.monotonic() < deadline and not self.stopped:
            size = int(SMALLEST * (count / SMALLEST) ** self._random.random()) + 1
            region, around = self._regions(size)
            self._try(region, around)
            self.moves += 1
            work -= 3 * size + 0.02 * count
            if self.moves % 500 == 0:
                self._appraise()

    def _regions(self, size: int) -> tuple[np.ndarray, np.ndarray]:
        """A random connected region, and one twice its size around it, both in random order."""
        count = self.flat.node_count
        if size >= count:
            everything = self._random.permutation(count)
            return everything, everything
        turns = self._random.integers(count, size=min(2 * size, count))
        order = self._nodes[4]
        got = grow_region(self.flat, turns, turns.size, self._inside_clear(), order)
        region = self._random.permutation(order[: min(size, got)])
        return region, self._random.permutation(order[:got])

    def _inside_clear(self) -> np.ndarray:
        self._inside[:] = False
        return self._inside

    def _try(self, region: np.ndarray, around: np.ndarray, at_any_cost: bool = False) -> None:
        """Decide a region again, and its surroundings once more; keep it if it is no worse."""
        prices = self.prices + self._extra
        np.cumsum(prices, out=self._total[1:])
        priced_costs(self.flat, self._total, around, self._theta)
        trial = self._trial
        trial[:] = self.picked
        rest = region[self._several[region]]
        self._open[rest] = True
        while rest.size:
            self._decide(rest)
            done = self._inside[rest]
            self._open[rest[done]] = False
            rest = rest[~done]
        self._decide(around)
        cost = plan_change(self.flat, self.tables, around, self.picked, trial, self._jumps)
        change = np.cumsum(self._jumps[:-1])
        if not at_any_cost and cost + float((prices * change).sum()) > 0:
            return
        self.picked[:] = trial
        self._cost += cost
        self._load += change
        self._keep_best()
        self._swing()

    def _decide(self, order: np.ndarray) -> None:
        """Choose a forest among the nodes of `order` and solve it into the trial plan."""
        parent, up_edge, queue, out, _ = self._nodes
        choose_forest(self.flat, order, self._inside, parent)
        solve_forest(
            self.flat,
            self.tables,
            self.conflict_cost,
            self._theta,
            self.messages,
            self._open,
            self._inside,
            order,
            self._trial,
            self._held,
            up_edge,
            queue,
            self._side,
            out,
        )
        self._trial[:] = out

    def _keep_best(self) -> None:
        if self._cost >= self.best_cost or (self._load > self.flat.capacity).any():
            return
        if not self.conflicts(self.picked):
            self.best, self.best_cost = self.picked.copy(), self._cost

    def _swing(self) -> None:
        """Raise the extra price of the rows most over their limit, let all others fade."""
        if self._load.size == 0:
            return
        capacity = np.maximum(np.abs(self.flat.capacity), 1.0)
        highest = float(self.prices.max()) or 0.01 * self.spread / float(capacity.mean())
        over = self._load - self.flat.capacity
        rows = worst_rows(over, 4, over.size // 100)
        self._urgency = 1.0 if not rows else min(URGENCY * self._urgency, 1e6)
        self._extra *= FADE
        part = np.minimum(1.0, over[rows] / (0.02 * capacity[rows]))
        self._extra[rows] += self._urgency * RISE * highest * part

    def _appraise(self) -> None:
        """Cost and load of the current plan, from nothing."""
        flat = self.flat
        where = flat.node_start[:-1] + self.picked
        self._cost = float(flat.costs[where].sum())
        g = flat.groups[flat.left_start + self.picked[flat.u]]
        h = flat.groups[flat.right_start + self.picked[flat.v]]
        self._cost += float(self.tables[flat.table_start + g * flat.columns + h].sum())
        owner = np.repeat(np.arange(flat.node_count), np.diff(flat.use_start))
        amounts = flat.amounts[flat.use_amounts + self.picked[owner]]
        rows = self._load.size + 1
        jumps = np.bincount(flat.use_from, amounts, rows) - np.bincount(flat.use_to, amounts, rows)
        self._load = np.cumsum(jumps[:-1], dtype=np.float64)


def _spread(flat: Flat) -> float:
    """The sum over nodes and edges of the spread of their costs: more than plans differ by."""
    if flat.node_count == 0:
        return 0.0
    low = np.minimum.reduceat(flat.costs, flat.node_start[:-1])
    high = np.maximum.reduceat(flat.costs, flat.node_start[:-1])
    least, most = edge_spans(flat)
    return float((high - low).sum() + (most - least).sum())
