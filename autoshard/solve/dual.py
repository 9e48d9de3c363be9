"""The bound: message passing on the graph, prices on the memory rows, both at once.

For prices p >= 0 of the memory rows, relaxing the limits gives

    bound(p, messages) = dual of the graph with costs c + p . amounts   -   p . capacity,

which is concave in p and in the messages. Each step makes one pass of messages and moves the prices
along the expected overload of the rows (softened node marginals stand for the subgradient), with
Polyak's step (target - bound) / |overload|^2.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np

from autoshard.solve.flat import Flat, worst_cost
from autoshard.solve.kernels import appraise, priced_costs, sweep


@dataclass(slots=True, eq=False)
class DualAscent:
    """Messages and prices under way, and the best bound met (without the problem's offset).

    A bound above `worst`, which no plan can cost, proves that the limits cannot be kept.
    """

    flat: Flat
    prices: np.ndarray = field(init=False)
    messages: np.ndarray = field(init=False)
    best_prices: np.ndarray = field(init=False)
    best_messages: np.ndarray = field(init=False)
    bound: float = -np.inf
    passes: int = 0
    agility: float = 1.0
    worst: float = field(init=False)
    _forward: bool = True
    _direction: np.ndarray = field(init=False)
    _theta: np.ndarray = field(init=False)
    _total: np.ndarray = field(init=False)
    _held: np.ndarray = field(init=False)
    _best: np.ndarray = field(init=False)
    _stalled: int = 0

    def __post_init__(self) -> None:
        flat = self.flat
        self.worst = worst_cost(flat)
        self.prices = np.zeros(flat.capacity.size)
        self.messages = np.zeros(int(flat.message_start[-1]))
        self.best_prices = self.prices.copy()
        self.best_messages = self.messages.copy()
        self._direction = np.zeros(flat.capacity.size)
        self._theta = np.empty(flat.costs.size)
        self._total = np.empty(flat.capacity.size + 1)
        self._held = np.empty(flat.widest)
        self._best = np.empty(flat.widest)

    def run(self, upper: float, deadline: float, passes: int) -> None:
        """Up to `passes` passes, until `deadline` (time.monotonic); `upper` is the incumbent."""
        flat = self.flat
        expected = np.zeros(flat.capacity.size + 1)
        for _ in range(passes):
            if time.monotonic() > deadline:
                return
            priced_costs(flat, self.prices, self._total, self._theta)
            if self.bound > self.worst:
                return
            target = upper
            if not np.isfinite(upper):
                best = self.bound if np.isfinite(self.bound) else 0.0
                target = best + 0.03 * abs(best) + 0.01 * (self.worst - best)
            spread = 1e-3 * (target - self.bound) if np.isfinite(self.bound) else 1.0
            spread = max(spread, 1e-12 * abs(target), 1e-30)
            total = sweep(
                flat,
                self._theta,
                self.messages,
                self._forward,
                spread,
                expected,
                self._held,
                self._best,
            )
            self._forward = not self._forward
            self.passes += 1
            value = total - float(self.prices @ flat.capacity)
            if value > self.bound + 1e-9 * abs(self.bound):
                self._stalled = 0
            else:
                self._stalled += 1
                if self._stalled % 20 == 0:
                    self.agility *= 0.7
            if value > self.bound:
                self.bound = value
                self.best_prices[:] = self.prices
                self.best_messages[:] = self.messages
            if flat.capacity.size and self.passes > 4:
                self._move_prices(expected, target - value)

    def _move_prices(self, expected: np.ndarray, distance: float) -> None:
        overload = np.cumsum(expected[:-1]) - self.flat.capacity
        self._direction = 0.6 * self._direction + 0.4 * overload
        step = np.where((self.prices > 0) | (self._direction > 0), self._direction, 0.0)
        norm = float(step @ step)
        if norm > 0 and distance > 0:
            self.prices = np.maximum(0.0, self.prices + self.agility * distance / norm * step)

    def check(self) -> float:
        """The best bound, recomputed from its prices and messages."""
        return self.appraisal()[0]

    def appraisal(self) -> tuple[float, np.ndarray, np.ndarray]:
        """The best bound; what each choice costs in its node under the best messages; and by how
        much any plan with a given choice must exceed the bound."""
        held, extra = np.empty(self.flat.costs.size), np.empty(self.flat.costs.size)
        priced_costs(self.flat, self.best_prices, self._total, self._theta)
        value = appraise(self.flat, self._theta, self.best_messages, held, extra, self._best)
        return value - float(self.best_prices @ self.flat.capacity), held, extra
