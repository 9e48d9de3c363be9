"""What is known so far about one problem: the best plan, the bound, and the reduced problems.

Every plan is priced on the problem as given before it is believed. Bounds rest on what is left of
the problem; where choices were dropped because no plan with them beats the incumbent, a bound above
the incumbent only says that the incumbent is the best.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from autoshard.solve.evaluate import evaluate
from autoshard.solve.flat import Flat, flatten, row_times
from autoshard.solve.limit_hit import LimitHit
from autoshard.solve.problem import (
    Duals,
    Integers,
    Outcome,
    Problem,
    Progress,
    Report,
    Solution,
    Status,
    relative_gap,
)
from autoshard.solve.reduce.presolve import presolve
from autoshard.solve.reduce.trail import Trail
from autoshard.solve.reduce.workspace import Compared

OPTIMAL_GAP = 1e-9
"""A plan this close to the bound, relatively, is called optimal."""
FIXING_SLACK = 5e-10
"""Choices go that cannot improve the incumbent by more than this, relatively."""
GOOD_GAP = 0.01
"""Where a gap of this is wanted, a good plan and a bound are enough."""
DOMINANCE_CHOICES, FOR_GOOD_CHOICES = 300_000, 150_000
"""Above this many choices they are not compared with each other: reduced costs drop them sooner.
The second is for plans that are to be good."""


class DoneError(Exception):
    """Nothing is left to do, or the wanted gap or the time limit is reached."""


@dataclass(slots=True, eq=False)
class Level:
    """One reduced problem and its way back to the one before."""

    problem: Problem
    trail: Trail
    flat: Flat
    times: np.ndarray


@dataclass(slots=True, eq=False)
class Search:
    """What is known so far about one problem; `kept` are the choices left of some of its nodes."""

    problem: Problem
    deadline: float
    wanted_gap: float = 0.0
    seed: int = 0
    progress: Callable[[Progress], bool | None] | None = None
    started: float = field(default_factory=time.monotonic)
    kept: dict[int, Integers] = field(default_factory=dict)
    levels: list[Level] = field(default_factory=list)
    objective: float = np.inf
    bound: float = -np.inf
    choices: tuple[int, ...] | None = None
    prices: tuple[tuple[int, float], ...] = ()
    messages: np.ndarray | None = None
    limit_hit: LimitHit | None = None
    phase: str = "presolve"
    dropped: bool = False
    better_than: float = np.inf
    """What a plan must cost less than, because the caller has one that costs this."""
    compared: Compared | None = None
    """What comparing choices gave, for the reductions of nearly the same problems."""

    @property
    def upper(self) -> float:
        """What the best plan known costs, here or with the caller."""
        return min(self.objective, self.better_than)

    @property
    def enough(self) -> float:
        """A bound of this ends the search: the best plan known is within the wanted gap of it."""
        upper = self.upper
        if not np.isfinite(upper):
            return np.inf
        return upper - max(self.wanted_gap, OPTIMAL_GAP) * abs(upper)

    @property
    def gap(self) -> float:
        return relative_gap(self.upper, self.bound)

    @property
    def level(self) -> Level:
        return self.levels[-1]

    @property
    def cutoff(self) -> float:
        """Plans that are not cheaper than this are of no interest."""
        upper = self.upper
        return upper - FIXING_SLACK * abs(upper) if np.isfinite(upper) else np.inf

    @property
    def is_for_good(self) -> bool:
        """Whether a plan is wanted that is good, and need not be proven to be nearly the best."""
        return self.wanted_gap >= GOOD_GAP

    def left(self) -> float:
        """Seconds until the deadline."""
        return self.deadline - time.monotonic()

    def tell(self, nodes: int | None = None) -> None:
        """Report progress; `nodes` when it is not the number of nodes of the current level.

        Raises DoneError when the caller has heard enough.
        """
        if self.progress is None:
            return
        if nodes is None:
            nodes = self.level.flat.node_count if self.levels else len(self.problem.nodes)
        seconds = time.monotonic() - self.started
        news = Progress(self.phase, self.objective, self.bound, self.gap, seconds, nodes)
        if self.progress(news):
            self.limit_hit = LimitHit.CUTOFF
            raise DoneError

    def raise_bound(self, bound: float) -> None:
        """Take a bound that is proven for what is left; raises DoneError when it is enough."""
        if self.dropped:
            bound = min(bound, self.cutoff)
        if bound > self.bound:
            self.bound = bound
        self.check_done()

    def offer(self, picked: Sequence[int] | np.ndarray) -> bool:
        """Price a plan of the current level on the problem as given; keep it if it is better."""
        choices = tuple(int(choice) for choice in picked)
        for level in reversed(self.levels):
            choices = level.trail.expand(choices)
        return self.offer_original(choices)

    def offer_original(self, choices: Sequence[int]) -> bool:
        """Price a plan of the problem as given; keep it if it is better than the incumbent."""
        found = evaluate(self.problem, choices)
        if found.violations or found.objective >= self.objective:
            return False
        self.objective = found.objective
        self.choices = tuple(int(choice) for choice in choices)
        self.tell()
        return True

    def check_done(self) -> None:
        """Raises DoneError when the gap or the time limit is reached."""
        if self.gap <= max(OPTIMAL_GAP, self.wanted_gap):
            beaten = self.better_than < self.objective
            short = None if self.gap <= OPTIMAL_GAP else LimitHit.GAP
            self.limit_hit = LimitHit.CUTOFF if beaten else short
            raise DoneError
        if time.monotonic() >= self.deadline:
            self.limit_hit = LimitHit.TIME
            raise DoneError

    def keeps(self, choices: Sequence[int]) -> bool:
        """Whether a plan of the problem as given takes only choices that are left."""
        return all(choices[node] in left for node, left in self.kept.items())

    def drop(self, kept: Mapping[int, Integers]) -> None:
        """Keep only these choices of some nodes: no plan with the others beats the incumbent."""
        self.kept.update(kept)
        self.dropped = True

    def descend(self, kept: Mapping[int, Integers]) -> None:
        """Reduce the current problem further. Raises InfeasibleError when nothing is left."""
        above = self.levels[-1].problem if self.levels else self.problem
        count = sum(
            len(kept[number]) if number in kept else node.costs.size
            for number, node in enumerate(above.nodes)
        )
        dominance = count <= (FOR_GOOD_CHOICES if self.is_for_good else DOMINANCE_CHOICES)
        problem, trail = presolve(
            above, kept, dominance=dominance, deadline=self.deadline, compared=self.compared
        )
        self.levels.append(Level(problem, trail, flatten(problem), row_times(problem)))

    def read_prices(self, rows: np.ndarray) -> None:
        """Take the prices of the memory rows of the current level."""
        pairs = zip(self.level.times.tolist(), rows.tolist(), strict=True)
        self.prices = tuple((when, price) for when, price in pairs if price > 0)

    def project(self, choices: Sequence[int]) -> np.ndarray:
        """A plan of the problem as given at the current level; -1 where its choice was dropped."""
        plan = tuple(choices)
        for level in self.levels:
            plan = level.trail.project(plan)
        return np.array(plan, dtype=np.int64)

    def outcome(self, infeasible: bool) -> Outcome:
        """The answer as it stands."""
        seconds = time.monotonic() - self.started
        objective, bound = self.objective, min(self.bound, self.objective)
        if infeasible:
            status, bound = Status.INFEASIBLE, np.inf
        elif self.choices is None:
            status = Status.UNKNOWN
        elif relative_gap(objective, bound) <= OPTIMAL_GAP:
            status, self.limit_hit = Status.OPTIMAL, None
        else:
            status = Status.FEASIBLE
        found = relative_gap(objective, bound)
        report = Report(status, objective, bound, found, seconds, self.limit_hit, self.prices)
        solution = None if self.choices is None else Solution(self.choices)
        return Outcome(status, solution, report, Duals(self.prices, self.messages))
