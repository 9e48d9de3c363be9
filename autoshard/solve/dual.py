"""The bound: message passing on the graph, prices on the memory rows, both at once.

For prices p >= 0 of the memory rows, relaxing the limits gives

    bound(p, messages) = dual of the graph with costs c + p . amounts   -   p . capacity,

which is concave in p and in the messages. Each step makes one pass of messages and moves the prices
along the expected overload of the rows (softened node marginals stand for the subgradient), with
Polyak's step (target - bound) / |overload|^2. Neighbouring rows say nearly the same, so only rows
that were the worst of their neighbourhood for a while take part.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np

from autoshard.solve.flat import Flat, worst_cost, worst_rows
from autoshard.solve.kernels import GONE, appraise, priced_costs, sweep
from autoshard.solve.problem import Floats, Integers

# The temperature of node marginals, as a part of the gap, unless the caller says otherwise.
SPREAD = 1e-4
# The bound steps toward the incumbent, but never further up than this part of itself.
REACH = 0.08
# How the steps of the prices grow with a better bound, and shrink without.
BOLDER = 1.05
SHYER = 0.98
# After so many passes far below the best bound, go back to where it was.
PATIENCE = 40
# Softness and agility, in turn, of an ascent that goes on after it has stalled: what one has left
# out of reach another finds.
TURNS = ((1e-4, 0.05), (3e-3, 0.3), (1e-3, 0.05))
# Passes, or a round of turns, gain little if it is less than this part of the bound, or of the gap.
LITTLE, LITTLE_OF_GAP = 1e-5, 0.01
# Prices move after so many passes.
LED_IN = 5


def _inner(one: np.ndarray, other: np.ndarray) -> float:
    """The inner product in this thread; BLAS would wake its own, which costs more than it saves."""
    return float((one * other).sum())


@dataclass(slots=True, eq=False)
class DualAscent:
    """Messages and prices under way, and the best bound met (without the problem's offset).

    `alive` marks the choices that are left. A bound above `worst`, which no plan can
    cost, proves that the limits cannot be kept. `softness` is the temperature of node marginals, as
    a part of the gap; prices take steps of `agility` at first, and none while they are `still`.
    `settled` says that turns no longer gain.
    """

    flat: Flat
    alive: np.ndarray = field(init=False)
    prices: np.ndarray = field(init=False)
    messages: np.ndarray = field(init=False)
    best_prices: np.ndarray = field(init=False)
    best_messages: np.ndarray = field(init=False)
    bound: float = -np.inf
    passes: int = 0
    stopped: bool = False
    agility: float = 0.3
    softness: float = SPREAD
    still: bool = False
    settled: bool = False
    worst: float = field(init=False)
    _turn: int = 0
    _turned_at: float = -np.inf
    _stalled: int = 0
    _priced: bool = False
    _forward: bool = True
    _usual: np.ndarray = field(init=False)
    _active: np.ndarray = field(init=False)
    _theta: np.ndarray = field(init=False)
    _total: np.ndarray = field(init=False)
    _held: np.ndarray = field(init=False)
    _nodes: np.ndarray = field(init=False)
    _best: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        flat = self.flat
        self.worst = worst_cost(flat)
        self.alive = np.ones(flat.costs.size, dtype=np.bool_)
        self.prices = np.zeros(flat.capacity.size)
        self.messages = np.zeros(int(flat.message_start[-1]))
        self.best_prices = self.prices.copy()
        self.best_messages = self.messages.copy()
        self._usual = np.zeros(flat.capacity.size)
        self._active = np.zeros(flat.capacity.size, dtype=np.bool_)
        self._theta = np.empty(flat.costs.size)
        self._nodes = np.arange(flat.node_count)
        self._total = np.zeros(flat.capacity.size + 1)
        self._held = np.empty(flat.widest)
        self._best = np.empty(flat.widest)

    def begin_with(self, prices: np.ndarray, messages: np.ndarray) -> None:
        """Begin where an earlier ascent stood; what choices then gone had pushed is forgotten."""
        self.prices[:] = self.best_prices[:] = prices
        self.messages[:] = np.where(np.abs(messages) < GONE, messages, 0.0)
        self.best_messages[:] = self.messages

    def take_up(self, rows: Integers) -> None:
        """Move the prices of these rows from the first pass on: others have been passed before."""
        self._active[rows] = True
        self.passes = LED_IN

    def has_gained(self, before: float, upper: float) -> bool:
        """Whether the bound is more than a little above what it was; `upper` as in `run`."""
        least = min(LITTLE * abs(self.bound), LITTLE_OF_GAP * max(upper - self.bound, 0.0))
        return self.bound - before > least

    def turn(self, upper: float) -> None:
        """Go on from the best prices and messages in another way; `settled` once none gains."""
        if self._turn % len(TURNS) == 0:
            self.settled = not self.has_gained(self._turned_at, upper)
            self._turned_at = self.bound
        self.softness, self.agility = TURNS[self._turn % len(TURNS)]
        self._turn += 1
        self.prices[:] = self.best_prices
        self.messages[:] = self.best_messages

    def run(self, upper: float, deadline: float, passes: int, enough: float = np.inf) -> None:
        """Up to `passes` passes, until `deadline` (time.monotonic) or until `stopped` is set.

        `upper` is the cost of the incumbent; a bound of `enough` ends the passes too.
        """
        flat = self.flat
        expected = np.zeros(flat.capacity.size + 1)
        for _ in range(passes):
            if self.stopped or time.monotonic() > deadline or self.bound > self.worst:
                return
            if self.bound >= enough:
                return
            target = self._target(upper)
            spread = self.softness * (target - self.bound) if np.isfinite(self.bound) else 1.0
            self._price(self.prices)
            total = sweep(
                flat,
                self._theta,
                self.alive,
                self.messages,
                self._forward,
                max(spread, 1e-12 * abs(target), 1e-30),
                expected,
                self._held,
                self._best,
            )
            self._forward = not self._forward
            self.passes += 1
            value = total - _inner(self.prices, flat.capacity)
            self._judge(value)
            if flat.capacity.size and self.passes >= LED_IN and not self.still:
                self._move_prices(np.cumsum(expected[:-1]) - flat.capacity, target - value)

    def _price(self, prices: np.ndarray) -> None:
        if not self.flat.capacity.size and self._priced:
            return  # without memory rows there are no prices, and costs stay what they are
        self._priced = True
        np.cumsum(prices, out=self._total[1:])
        priced_costs(self.flat, self._total, self._nodes, self._theta)

    def priced_usage(self) -> Floats:
        """What the usage of each choice costs at the best prices."""
        self._price(self.best_prices)
        return self._theta - self.flat.costs

    def _target(self, upper: float) -> float:
        """What the bound steps toward: the incumbent, or somewhat above the bound."""
        best = self.bound if np.isfinite(self.bound) else 0.0
        near = best + REACH * abs(best) + 1e-4 * (self.worst - best)
        return min(upper, near)

    def _judge(self, value: float) -> None:
        """Keep the best; step more boldly after progress, more shyly without."""
        if value > self.bound:
            self.bound = value
            self.best_prices[:] = self.prices
            self.best_messages[:] = self.messages
            self.agility = min(BOLDER * self.agility, 2.0)
            self._stalled = 0
            return
        self.agility = max(SHYER * self.agility, 1e-3)
        self._stalled += 1
        if self._stalled == PATIENCE and value < self.bound - REACH * abs(self.bound):
            self.prices[:] = self.best_prices
            self.messages[:] = self.best_messages
            self._stalled = 0

    def _move_prices(self, overload: np.ndarray, distance: float) -> None:
        """A step along the overload of the rows that have ever been among the worst."""
        self._usual += 0.05 * (overload - self._usual)
        if self.passes % 10 == 0:
            idle = np.where(self._active, 0.0, self._usual)
            self._active[worst_rows(idle, 4, overload.size // 100)] = True
        step = np.where(self._active & ((self.prices > 0) | (overload > 0)), overload, 0.0)
        norm = _inner(step, step)
        if norm > 0 and distance > 0:
            self.prices = np.maximum(0.0, self.prices + self.agility * distance / norm * step)

    def check(self) -> float:
        """The best bound, recomputed from its prices and messages."""
        return self.appraisal()[0]

    def appraisal(self) -> tuple[float, np.ndarray, np.ndarray]:
        """The best bound; what each choice costs in its node under the best messages; and by how
        much any plan with a given choice must exceed the bound."""
        held, extra = np.empty(self.flat.costs.size), np.empty(self.flat.costs.size)
        self._price(self.best_prices)
        value = appraise(
            self.flat, self._theta, self.alive, self.best_messages, held, extra, self._best
        )
        return value - _inner(self.best_prices, self.flat.capacity), held, extra
