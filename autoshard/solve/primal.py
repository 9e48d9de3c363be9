"""Plans: a start read off the dual, then forest moves.

Forbidden pairs are priced here at `conflict_cost`, more than any two plans can differ by, so that a
plan with conflicts is merely bad and the same moves that lower the cost also remove conflicts.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np

from autoshard.solve.dual import DualAscent
from autoshard.solve.flat import Flat, edge_spans
from autoshard.solve.forest import improve
from autoshard.solve.kernels import held_costs, priced_costs


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
    conflict_cost: float = field(init=False)
    overload_price: float = field(init=False)

    def __post_init__(self) -> None:
        finite = self.flat.tables[self.flat.tables < np.inf]
        span = sum(
            float(np.abs(part).max(initial=0.0)) for part in (self.flat.costs, finite)
        ) * (self.flat.node_count + self.flat.u.size)
        self.conflict_cost = min(4.0 * span, 1e6 * _typical(self.flat)) + 1e-30
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

    def run(self, prices: np.ndarray, moves: int, local_size: int, jitter: float) -> None:
        """Some moves under the given row prices."""
        capacity = float(np.abs(self.flat.capacity).mean()) if self.flat.capacity.size else 1.0
        usual = float(prices.max(initial=0.0)) * 0.2
        step = usual or _typical(self.flat) / max(capacity, 1e-30)
        self.cost, self.excess = improve(
            self.flat,
            self.tables,
            prices,
            self.picked,
            moves,
            5 if self.flat.capacity.size else 1,
            local_size,
            jitter,
            self.seed * 1_000_003 + self.rounds,
            self.overload_price,
            step,
        )
        self.rounds += 1

    def run_until(self, prices: np.ndarray, deadline: float) -> None:
        """Moves of varied size, in short batches, until `deadline` (time.monotonic)."""
        sizes = (0, 0, 300, 60)
        while time.monotonic() < deadline:
            local = sizes[self.rounds % len(sizes)]
            self.run(prices, 5 if local == 0 else 20, local, 0.3)


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
    theta = np.empty(flat.costs.size)
    priced_costs(flat, dual.best_prices, theta)
    held_costs(flat, theta, dual.best_messages)
    starts = flat.node_start
    return np.array(
        [int(theta[starts[i] : starts[i + 1]].argmin()) for i in range(flat.node_count)],
        dtype=np.int64,
    )
