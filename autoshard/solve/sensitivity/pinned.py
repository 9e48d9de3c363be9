"""One problem solved many times, each time with another node pinned.

What every solve would find anew is found once: the problem laid flat, its memory rows, the messages
of the first solve and the choices without support. From there

1. messages pass with the pinned node cut down, a few at a time. They bound what a plan with any
   choice costs at least;
2. the cheapest plan among some choices of the least such bounds is found by exact elimination, with
   choices of the plan before where others are as good. No plan with another choice costs less than
   the least bound among those, so that a plan that is below it is optimal. Else it is looked among
   more choices, after more messages: all that may belong to a better plan than that found, where
   they are few enough;
3. where all of this leaves a gap, the solve is an ordinary one that begins with the messages and
   the plan.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from autoshard.solve.conflict import memory_conflict
from autoshard.solve.dual import DualAscent
from autoshard.solve.evaluate import evaluate
from autoshard.solve.kernels import GONE
from autoshard.solve.limit_hit import LimitHit
from autoshard.solve.pipeline import solve
from autoshard.solve.problem import Duals, Outcome, Problem, Report, Solution, Status, relative_gap
from autoshard.solve.reduce.elimination import cheapest
from autoshard.solve.reduce.presolve import presolve
from autoshard.solve.reduce.trail import InfeasibleError
from autoshard.solve.reduce.workspace import Compared
from autoshard.solve.sensitivity.neighbourhood import Neighbourhoods
from autoshard.solve.state import DOMINANCE_CHOICES, OPTIMAL_GAP
from autoshard.solve.whole import ascent_of

PASSES = 10
"""Passes of messages between two looks at the bound."""
SETTLED = 1e-3
"""A look for a plan pays once the passes raise the bound by less than this part of its rise."""
CLOSES = 20.0
"""The same of the gap to the plan that is known: so many times as large a part."""
ROUNDS = 5
"""A look is taken after so many times as many passes in any case."""
HAIR = 1e-9
"""Choices this close to the bound, relatively, are always looked among."""
LOOKS = (6, 10, 20, 40, 60, 90)
"""So many choices a node are looked among, look by look."""
ROUNDING = 1e-12
"""What sums of costs may be off by, relatively."""


@dataclass(slots=True, eq=False)
class PinnedSolves:
    """Solves of `problem` with one node pinned at a time; `outcome` is that without pins."""

    problem: Problem
    outcome: Outcome
    _ascent: DualAscent | None
    _times: np.ndarray
    near: Neighbourhoods
    compared: Compared = field(default_factory=dict)
    """What comparing choices gave, for the reductions of this problem."""

    @classmethod
    def of(cls, problem: Problem, outcome: Outcome) -> PinnedSolves:
        """Prepare; `tightened` makes the outcome worth more here."""
        warm = outcome.duals.messages is not None
        ascent, times = ascent_of(problem, outcome.duals) if warm else (None, np.zeros(0))
        return cls(problem, outcome, ascent, times, Neighbourhoods.of(problem))

    def ready(self) -> PinnedSolves:
        """Compare choices now, and not in the first ordinary solve that is asked for."""
        if sum(node.costs.size for node in self.problem.nodes) <= DOMINANCE_CHOICES:
            with contextlib.suppress(InfeasibleError):
                presolve(self.problem, compared=self.compared)
        return self

    def solve(
        self,
        node: int,
        choices: np.ndarray,
        before: Sequence[int],
        *,
        time_limit: float = 60.0,
        gap: float = 0.0,
    ) -> Outcome:
        """The cheapest plan in which a node takes one of some choices.

        Args:
          node, choices: what is pinned.
          before: a plan without the pin, to which an equally good one is close.
          time_limit, gap: as in `autoshard.solve.pipeline.solve`.
        """
        started = time.monotonic()
        until = started + time_limit
        if self._ascent is None:
            return self.search(node, choices, until=until, gap=gap)
        looks = _Looks(self.near, self._begun(node, choices), tuple(before))
        try:
            looks.run(until, max(OPTIMAL_GAP, gap))
        except InfeasibleError:
            return _outcome(None, np.inf, np.inf, started)
        if looks.plan is not None and looks.gap <= max(OPTIMAL_GAP, gap):
            return _outcome(looks.plan, looks.cost, looks.bound, started)
        return self.search(
            node,
            choices,
            until=until,
            gap=gap,
            bound=looks.bound,
            duals=_duals(looks.ascent, self._times),
            plans=() if looks.plan is None else (looks.plan,),
        )

    def search(
        self,
        node: int,
        choices: np.ndarray,
        *,
        until: float,
        gap: float = 0.0,
        bound: float = -np.inf,
        duals: Duals | None = None,
        plans: Sequence[tuple[int, ...]] = (),
    ) -> Outcome:
        """The same by an ordinary solve.

        Args:
          node, choices: what is pinned.
          until: when to stop, on the clock of `time.monotonic`.
          gap: as in `autoshard.solve.pipeline.solve`.
          bound: no such plan is known to cost less.
          duals, plans: to begin with; by default those without pins, and none.
        """
        return solve(
            self.problem,
            pins={node: choices},
            warm_start=plans,
            warm_duals=self.outcome.duals if duals is None else duals,
            known_bound=max(self.outcome.report.bound, bound),
            time_limit=max(until - time.monotonic(), 0.1),
            gap=gap,
            compared=self.compared,
        )

    def _begun(self, node: int, choices: np.ndarray) -> DualAscent:
        """An ascent where that without pins ended."""
        base = self._ascent
        assert base is not None
        ascent = DualAscent(base.flat)
        start, stop = base.flat.node_start[node], base.flat.node_start[node + 1]
        ascent.alive[:] = base.alive
        ascent.alive[start:stop] = False
        ascent.alive[start + choices] = base.alive[start + choices]
        ascent.begin_with(base.best_prices, base.best_messages)
        gone = np.abs(base.best_messages) >= GONE
        ascent.messages[gone] = ascent.best_messages[gone] = base.best_messages[gone]
        ascent.bound = ascent.check()
        return ascent


@dataclass(slots=True, eq=False)
class _Looks:
    """Passes of messages and looks for a plan, of one solve.

    `plan` is the best one met, which costs `cost`; no plan costs less than `bound`.
    """

    near: Neighbourhoods
    ascent: DualAscent
    before: tuple[int, ...]
    plan: tuple[int, ...] | None = None
    cost: float = np.inf
    bound: float = -np.inf

    @property
    def gap(self) -> float:
        return relative_gap(self.cost, self.bound)

    def run(self, until: float, enough: float) -> None:
        """Look until the gap is small enough, or no look helps; raises InfeasibleError."""
        first = self.ascent.bound
        for number, choices in enumerate(LOOKS):
            self._pass(first, until)
            value, _, extra = self.ascent.appraisal()
            if value > self.ascent.worst:
                raise InfeasibleError("the bound exceeds what any plan costs")
            if number == 0:
                self._check_memory(extra)
            value += self.near.problem.offset
            self.bound = max(self.bound, value)
            most = min(choices * len(self.before), extra.size - 1)
            width = max(float(np.partition(extra, most)[most]), HAIR * abs(value))
            if not self._look_within(extra, value, min(width, self.cost - value)):
                return
            if enough < self.gap and self.cost - value <= width:
                self._look_within(extra, value, self.cost - value)
            if self.gap <= enough or time.monotonic() >= until:
                return

    def _pass(self, first: float, until: float) -> None:
        """Passes until they gain little, of what they gained so far or of the gap that is left."""
        ascent, offset = self.ascent, self.near.problem.offset
        for _ in range(ROUNDS):
            bound = ascent.bound
            ascent.run(np.inf, until, PASSES)
            left = min(ascent.bound - first, CLOSES * max(self.cost - offset - bound, 0.0))
            if ascent.bound - bound <= SETTLED * left:
                return

    def _check_memory(self, extra: np.ndarray) -> None:
        """Raises InfeasibleError where all choices that still have partners are too large."""
        if self.near.problem.limit is not None:
            start = self.ascent.flat.node_start
            allowed = [extra[a:b] < GONE for a, b in pairwise(start.tolist())]
            if not all(one.any() for one in allowed):
                raise InfeasibleError("no choice is left")
            if reason := memory_conflict(self.near.problem, allowed):
                raise InfeasibleError(reason)

    def _look_within(self, extra: np.ndarray, value: float, width: float) -> bool:
        """For the cheapest plan of all that cost at most so much more than the bound `value`.

        False where they are too many to be told apart by elimination.
        """
        good = extra <= min(width + ROUNDING * abs(value), GONE)
        starts = self.ascent.flat.node_start.tolist()
        kept = {n: np.flatnonzero(good[a:b]) for n, (a, b) in enumerate(pairwise(starts))}
        for n, one in enumerate(self.before):  # of choices that are as good the first is taken
            if good[starts[n] + one]:
                kept[n] = np.concatenate([[one], kept[n][kept[n] != one]])
        least = np.inf
        if all(left.size for left in kept.values()):
            plan = [int(left[0]) for left in kept.values()]
            cut = self.near.cut({n: left for n, left in kept.items() if left.size > 1}, plan)
            if cut is not None:
                found = _cheapest(cut.problem)
                if found is None:
                    return False
                least = self._take(cut.expand(found, plan))
        self.bound = max(self.bound, min(least, value + width))
        return True

    def _take(self, plan: tuple[int, ...]) -> float:
        """Keep a plan if it is the best; what it costs, its memory left aside."""
        found = evaluate(self.near.problem, plan)
        if not found.violations and found.objective < self.cost:
            self.plan, self.cost = plan, found.objective
        return found.objective


def _cheapest(problem: Problem) -> tuple[int, ...] | None:
    """The cheapest plan of a problem without a limit, if elimination finds it."""
    found = cheapest(problem)
    if found is None:
        with contextlib.suppress(InfeasibleError):
            reduced, trail = presolve(problem)
            return None if reduced.nodes else trail.expand(())
    return found


def _duals(ascent: DualAscent, times: np.ndarray) -> Duals:
    """What an ascent has found, for a solve that begins with it."""
    pairs = zip(times.tolist(), ascent.best_prices.tolist(), strict=True)
    messages = np.where(np.abs(ascent.best_messages) < GONE, ascent.best_messages, 0.0)
    return Duals(tuple((when, price) for when, price in pairs if price > 0), messages)


def _outcome(
    plan: tuple[int, ...] | None, objective: float, bound: float, started: float
) -> Outcome:
    seconds = time.monotonic() - started
    if plan is None:
        report = Report(Status.INFEASIBLE, np.inf, np.inf, np.inf, seconds)
        return Outcome(Status.INFEASIBLE, None, report, Duals())
    bound = min(bound, objective)
    gap = relative_gap(objective, bound)
    status = Status.OPTIMAL if gap <= OPTIMAL_GAP else Status.FEASIBLE
    hit = None if status is Status.OPTIMAL else LimitHit.GAP
    report = Report(status, objective, bound, gap, seconds, hit, ())
    return Outcome(status, Solution(plan), report, Duals())
