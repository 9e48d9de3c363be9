"""Plans: a start read off the dual, then forest moves.

Forbidden pairs are priced here at `conflict_cost`, more than any two plans can differ by, so that a
plan with conflicts is merely bad and the same moves that lower the cost also remove conflicts.

Memory enters through prices per row. A move that breaks a limit is tried again on the same forest
with dearer rows; one that keeps all limits but costs more, with cheaper rows. A plan is accepted
when its penalised cost (cost + `overload_price` * bytes over the limits) does not grow.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np

from autoshard.solve.dual import DualAscent
from autoshard.solve.flat import Flat, edge_spans
from autoshard.solve.forest import choose_forest, solve_forest
from autoshard.solve.kernels import plan_price, priced_costs

SIZES = (0, 0, 300, 60)
TRIES = 5


@dataclass(slots=True, eq=False)
class ForestSearch:
    """A plan under improvement; `cost` is without the problem's offset."""

    flat: Flat
    picked: np.ndarray
    seed: int
    cost: float = np.inf
    excess: float = np.inf
    rounds: int = 0
    tables: np.ndarray = field(init=False)
    spread: float = field(init=False)
    conflict_cost: float = field(init=False)
    overload_price: float = field(init=False)
    _random: np.random.Generator = field(init=False)
    _load: np.ndarray = field(init=False)
    _price: np.ndarray = field(init=False)
    _total: np.ndarray = field(init=False)
    _theta: np.ndarray = field(init=False)
    _held: np.ndarray = field(init=False)
    _best: np.ndarray = field(init=False)
    _inside: np.ndarray = field(init=False)
    _parent: np.ndarray = field(init=False)
    _up_edge: np.ndarray = field(init=False)
    _queue: np.ndarray = field(init=False)
    _trial: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        flat = self.flat
        self._random = np.random.default_rng(self.seed)
        self._load, self._total = (np.zeros(flat.capacity.size + 1) for _ in range(2))
        self._theta, self._held = (np.zeros(flat.costs.size) for _ in range(2))
        self._best = np.zeros(2 * flat.widest)
        self._price = np.zeros(2)
        self._inside = np.zeros(flat.node_count, dtype=np.bool_)
        self._parent, self._up_edge, self._queue, self._trial = (
            np.zeros(flat.node_count, dtype=np.int64) for _ in range(4)
        )
        self.spread = _typical(flat)
        self.conflict_cost = 2.0 * self.spread + 1e-30
        self.tables = np.where(self.flat.tables < np.inf, self.flat.tables, self.conflict_cost)
        capacity = float(np.abs(self.flat.capacity).max(initial=1.0)) or 1.0
        self.overload_price = self.conflict_cost / capacity * 1e3

    @property
    def feasible(self) -> bool:
        """No limit is broken and no forbidden pair is taken."""
        return self.excess == 0.0 and not self.conflicts()

    def conflicts(self) -> bool:
        flat = self.flat
        g = flat.groups[flat.left_start + self.picked[flat.u]]
        h = flat.groups[flat.right_start + self.picked[flat.v]]
        return bool((flat.tables[flat.table_start + g * flat.columns + h] == np.inf).any())

    def run_until(self, prices: np.ndarray, deadline: float) -> None:
        """Moves of varied size until `deadline` (time.monotonic)."""
        self._appraise(self.picked)
        while time.monotonic() < deadline:
            self.move(prices, SIZES[self.rounds % len(SIZES)])
            self.rounds += 1

    def _appraise(self, picked: np.ndarray) -> None:
        plan_price(self.flat, self.tables, picked, self._load, self._price)
        self.cost, self.excess = self._price.tolist()

    def move(self, base_prices: np.ndarray, size: int) -> bool:
        """Re-decide one random forest within a region of `size` nodes (0: all); True if accepted."""
        order = self._order(size)
        if choose_forest(self.flat, order, self._inside, self._parent) == 0:
            return False
        prices = base_prices * float(np.exp(0.3 * self._random.standard_normal()))
        low, high, factor = 0.0, np.inf, 1.0
        for _ in range(TRIES if self.flat.capacity.size else 1):
            priced_costs(self.flat, prices * factor, self._total, self._theta)
            solve_forest(
                self.flat,
                self.tables,
                self.conflict_cost,
                self._theta,
                self._inside,
                order,
                self.picked,
                self._held,
                self._up_edge,
                self._queue,
                self._best,
                self._trial,
            )
            plan_price(self.flat, self.tables, self._trial, self._load, self._price)
            cost, excess = self._price.tolist()
            price = self.overload_price
            if cost + price * excess <= self.cost + price * self.excess:
                self.picked[:] = self._trial
                self.cost, self.excess = cost, excess
                return True
            if excess > self.excess:
                low = factor
                over = self._load[:-1] > self.flat.capacity
                prices = np.where(over, 1.5 * prices + self._price_step(base_prices), prices)
                factor = 1.5 * factor if high == np.inf else 0.5 * (low + high)
            else:
                high = factor
                factor = 0.5 * (low + high)
        return False

    def _price_step(self, prices: np.ndarray) -> float:
        """What to add to the price of a row that is over its limit."""
        usual = 0.2 * float(prices.max(initial=0.0))
        return usual or 0.01 * self.spread / float(np.abs(self.flat.capacity).mean() or 1.0)

    def _order(self, size: int) -> np.ndarray:
        """A random order of all nodes, or of about `size` nodes around a random one."""
        count = self.flat.node_count
        if size == 0 or size >= count:
            return self._random.permutation(count)
        flat, met = self.flat, [int(self._random.integers(count))]
        known = set(met)
        for node in met:
            near = flat.near_edge[flat.near_start[node] : flat.near_start[node + 1]]
            others = flat.u[near] + flat.v[near] - node
            for other in self._random.permutation(others).tolist():
                if other not in known:
                    known.add(other)
                    met.append(other)
            if len(met) >= size:
                break
        return self._random.permutation(np.array(met[:size]))


def _typical(flat: Flat) -> float:
    """The sum over nodes and edges of the spread of their costs: more than plans differ by."""
    if flat.node_count == 0:
        return 0.0
    low = np.minimum.reduceat(flat.costs, flat.node_start[:-1])
    high = np.maximum.reduceat(flat.costs, flat.node_start[:-1])
    least, most = edge_spans(flat)
    return float((high - low).sum() + (most - least).sum())


def first_choices(flat: Flat, dual: DualAscent) -> np.ndarray:
    """The choice of each node that its reparametrised costs like best."""
    _, held, _ = dual.appraisal()
    starts = flat.node_start.tolist()
    pairs = zip(starts[:-1], starts[1:], strict=True)
    return np.array([int(held[start:stop].argmin()) for start, stop in pairs], dtype=np.int64)
