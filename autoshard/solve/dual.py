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

from autoshard.solve.flat import Flat, worst_cost
from autoshard.solve.kernels import GONE, Standing, appraise, ascend, priced_costs, scratch_size
from autoshard.solve.problem import Floats, Integers

# The temperature of node marginals, as a part of the gap, unless the caller says otherwise.
SPREAD = 1e-4
# Softness and agility, in turn, of an ascent that goes on after it has stalled: what one has left
# out of reach another finds.
TURNS = ((1e-4, 0.05), (3e-3, 0.3), (1e-3, 0.05))
# Passes, or a round of turns, gain little if it is less than this part of the bound, or of the gap.
LITTLE, LITTLE_OF_GAP = 1e-5, 0.01
# Prices move after so many passes.
LED_IN = 5
# Table entries that passes may go through between two looks at the clock.
ENTRIES_AT_ONCE = 3e7


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
    _forward: bool = True
    _at_once: int = field(init=False)
    _usual: np.ndarray = field(init=False)
    _active: np.ndarray = field(init=False)
    _scratch: np.ndarray = field(init=False)

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
        self._scratch = np.empty(scratch_size(flat))
        entries = float((flat.rows * flat.columns).sum()) + flat.costs.size
        self._at_once = max(1, int(ENTRIES_AT_ONCE / max(entries, 1.0)))

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
        while passes > 0 and not self.stopped and time.monotonic() <= deadline:
            some = min(passes, self._at_once)
            if self._pass(upper, enough, some) < some:
                return
            passes -= some

    def _pass(self, upper: float, enough: float, passes: int) -> int:
        """So many passes, or fewer where the bound is enough; returns how many."""
        at = Standing(
            bound=self.bound,
            agility=self.agility,
            softness=self.softness,
            upper=upper,
            enough=enough,
            worst=self.worst,
            passes=self.passes,
            stalled=self._stalled,
            forward=self._forward,
            still=self.still,
        )
        made = ascend(
            self.flat,
            at,
            self.alive,
            self.prices,
            self.messages,
            self.best_prices,
            self.best_messages,
            self._usual,
            self._active,
            self._scratch,
            passes,
        )
        self.bound, self.agility, self.passes = at.bound, at.agility, at.passes
        self._stalled, self._forward = at.stalled, bool(at.forward)
        return made

    def priced_usage(self) -> Floats:
        """What the usage of each choice costs at the best prices."""
        return self._priced() - self.flat.costs

    def _priced(self) -> Floats:
        """What each choice costs at the best prices."""
        flat, priced = self.flat, np.empty(self.flat.costs.size)
        total = np.concatenate([[0.0], np.cumsum(self.best_prices)])
        priced_costs(flat, total, np.arange(flat.node_count), priced)
        return priced

    def check(self) -> float:
        """The best bound, recomputed from its prices and messages."""
        return self.appraisal()[0]

    def appraisal(self) -> tuple[float, np.ndarray, np.ndarray]:
        """The best bound; what each choice costs in its node under the best messages; and by how
        much any plan with a given choice must exceed the bound."""
        flat, priced = self.flat, self._priced()
        held, extra = np.empty_like(priced), np.empty_like(priced)
        best = np.empty(flat.widest)
        value = appraise(flat, priced, self.alive, self.best_messages, held, extra, best)
        return value - float((self.best_prices * flat.capacity).sum()), held, extra
