"""One end of the range of scales in which a plan stays optimal: Newton's method from outside.

See `autoshard.solve.sensitivity.scales` for the mathematics.
"""

from __future__ import annotations

import enum
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from autoshard.interrupts import acknowledge
from autoshard.solve.evaluate import evaluate
from autoshard.solve.limit_hit import LimitHit
from autoshard.solve.pipeline import solve
from autoshard.solve.problem import Duals, Problem, Progress, Solution
from autoshard.solve.sensitivity.nearby import Pins
from autoshard.solve.sensitivity.part import Part, part_cost, scaled
from autoshard.solve.state import OPTIMAL_GAP

NEAR = 2.0
"""The first scales tried are this and one over it; then their squares, as long as they are proven.
"""
FAR = 1000.0
"""Beyond this scale the next one tried is the last."""
TOLERANCE = 4 * OPTIMAL_GAP
"""Costs that differ by no more than this part of them count as equal."""
TRIED = 0.5
"""A solve may take this part of the time that is left for its end."""
RESOLVED = 0.01
"""Scales between what is proven and what is not are tried down to this part of themselves."""
REFUTED = 0.5
"""A solve ends with a plan that is cheaper by this part of what is possible."""


@dataclass(frozen=True, slots=True, eq=False)
class ScaleEnd:
    """One end of the range of scales in which a plan stays optimal.

    Up to `proven` it is proven to be; beyond `scale` it is not, if there is a `successor`: a plan
    that costs `successor_fixed` + s `successor_part` at scale s, as much as the plan at `scale`,
    and less beyond. Without one `scale` is the end of the scales asked for, infinity included.
    Where `proven` and `scale` agree the end is exact.
    """

    proven: float
    scale: float
    successor: Solution | None = None
    successor_fixed: float = math.nan
    successor_part: float = math.nan

    @property
    def exact(self) -> bool:
        return self.proven == self.scale

    def __str__(self) -> str:
        if self.successor is not None:
            after = "another plan takes over"
        elif math.isfinite(self.scale):
            after = "the end of the scales asked for"
        else:
            after = "no end" if self.exact else "no end known"
        if self.exact:
            return f"{self.scale:.9g} ({after})"
        return f"{self.proven:.9g} proven, {self.scale:.9g} at the furthest ({after})"


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """What a plan costs at every scale."""

    solution: Solution
    fixed: float
    part: float

    def at(self, scale: float) -> float:
        """The cost at a scale; at infinity, that of the part alone."""
        return self.part if math.isinf(scale) else self.fixed + scale * self.part

    def size_at(self, scale: float) -> float:
        """What rounding and the solver's gap are relative to."""
        if math.isinf(scale):
            return abs(self.part)
        return abs(self.fixed) + scale * abs(self.part)


class Verdict(enum.Enum):
    PROVEN = "no plan is cheaper by more than the slack"
    REFUTED = "one is"
    OPEN = "neither is known"


@dataclass(slots=True, eq=False)
class EndSearch:
    """The lines known, and what was proven at the scales that were solved.

    `bounds` are bounds of v(s); at infinity, of the part alone.
    """

    problem: Problem
    pins: Pins
    part: Part
    slack: float
    plan: Line
    seed: int
    progress: Callable[[Progress], bool | None] | None
    until: float = math.inf
    limit_hit: LimitHit | None = None
    lines: list[Line] = field(default_factory=list)
    bounds: dict[float, float] = field(default_factory=dict)
    duals: dict[float, Duals] = field(default_factory=dict)

    def end(self, outer: float) -> ScaleEnd:
        """Where the range ends between 1 and `outer`."""
        proven, scale, successor = 1.0, outer, None
        open_at: float | None = None
        step = _further(1.0, outer)
        try:
            while proven != scale:
                verdict, line = self._judge(step)
                if verdict is Verdict.PROVEN:
                    proven = step
                elif line is not None:
                    scale, successor = self._crossing(line, proven, step), line
                    if scale == step:
                        break
                    open_at = None
                elif time.monotonic() >= self.until:
                    self.limit_hit = LimitHit.TIME
                    break
                else:
                    open_at = step
                if open_at is not None:
                    if _is_resolved(proven, open_at):
                        break
                    step = _between(proven, open_at)
                else:
                    step = scale if successor is not None else _further(proven, outer)
        except KeyboardInterrupt as interrupt:
            acknowledge(interrupt)
            self.limit_hit = LimitHit.INTERRUPTED
        if successor is None:
            return ScaleEnd(proven, scale)
        return ScaleEnd(proven, scale, successor.solution, successor.fixed, successor.part)

    def _crossing(self, line: Line, proven: float, refuted: float) -> float:
        """Where a plan that is cheaper at a refuted scale begins to be."""
        steeper = self.plan.part - line.part
        if steeper == 0.0 or (steeper > 0.0) != (refuted > proven):
            return proven  # cheaper at both, so by no more than counts as equal at one of them
        crossing = (line.fixed - self.plan.fixed + self.slack) / steeper
        low, high = sorted((proven, refuted))
        return min(max(crossing, low), high)

    def _judge(self, scale: float) -> tuple[Verdict, Line | None]:
        """Whether the plan stays within the slack at a scale; if not, by which plan."""
        allowed = self.plan.at(scale) - (0.0 if math.isinf(scale) else self.slack)
        target = allowed - TOLERANCE * self.plan.size_at(scale)
        known = self._known(scale)
        if known < target and not self._cheaper(scale, target):
            self._solve(scale, target, known)
        if line := self._cheaper(scale, target):
            return Verdict.REFUTED, line
        proven = self._known(scale) >= target
        return (Verdict.PROVEN if proven else Verdict.OPEN), None

    def _cheaper(self, scale: float, target: float) -> Line | None:
        """The cheapest plan known at a scale, if it costs less than the target."""
        best = min(self.lines, key=lambda line: line.at(scale), default=self.plan)
        return best if best.at(scale) < target else None

    def _solve(self, scale: float, target: float, known: float) -> None:
        """Solve at one scale, until the bound reaches the target or a plan is well below it."""

        def heard(news: Progress) -> bool:
            asked = self.progress is not None and self.progress(news)
            possible, found = target - news.bound, target - news.objective
            return bool(asked) or possible <= 0.0 or 0.0 < found >= REFUTED * possible

        plans = [line.solution.choices for line in (self.plan, *self.lines)]
        outcome = solve(
            scaled(self.problem, self.part, scale),
            time_limit=max(TRIED * (self.until - time.monotonic()), 0.0),
            warm_start=plans,
            warm_duals=self._duals_at(scale),
            pins=self.pins,
            known_bound=known,
            progress=heard,
            seed=self.seed,
        )
        self.bounds[scale] = max(known, outcome.report.bound)
        if outcome.duals.messages is not None:
            self.duals[scale] = outcome.duals
        if outcome.solution is not None and outcome.solution.choices not in plans:
            self.lines.append(line_of(self.problem, self.part, outcome.solution))
        if outcome.report.limit_hit is LimitHit.INTERRUPTED:
            raise KeyboardInterrupt

    def _known(self, scale: float) -> float:
        """What is proven of v at a scale by what was solved at others: v is concave."""
        least_part = self.bounds[math.inf]
        if math.isinf(scale):
            return least_part
        finite = [(at, bound) for at, bound in self.bounds.items() if math.isfinite(at)]
        below = max((pair for pair in finite if pair[0] <= scale), default=None)
        above = min((pair for pair in finite if pair[0] >= scale), default=None)
        best = -math.inf
        if below is not None:
            best = below[1] + (scale - below[0]) * least_part if scale > below[0] else below[1]
        if below is not None and above is not None and above[0] > below[0]:
            share = (scale - below[0]) / (above[0] - below[0])
            best = max(best, (1.0 - share) * below[1] + share * above[1])
        return best

    def _duals_at(self, scale: float) -> Duals | None:
        """Duals for a scale: between those of the nearest scales on both sides, as costs are."""
        if math.isinf(scale) or not self.duals:
            return None
        below = max((at for at in self.duals if at <= scale), default=None)
        above = min((at for at in self.duals if at >= scale), default=None)
        nearest = above if below is None else below
        if below is None or above is None or above == below:
            assert nearest is not None
            return self.duals[nearest]
        share = (scale - below) / (above - below)
        return mixed(self.duals[below], self.duals[above], share)


def _further(proven: float, outer: float) -> float:
    """The next scale to try where nothing is refuted: further out, and at last the end."""
    up = outer > 1.0
    step = (NEAR if up else 1.0 / NEAR) if proven == 1.0 else proven * proven
    if not 1.0 / FAR <= step <= FAR:
        return outer
    return min(step, outer) if up else max(step, outer)


def _between(proven: float, unproven: float) -> float:
    """The next scale to try, between one that is proven and one that is not."""
    if math.isinf(unproven):
        return NEAR * proven
    return math.sqrt(proven * unproven) if unproven > 0.0 else proven / NEAR


def _is_resolved(proven: float, unproven: float) -> bool:
    low, high = sorted((proven, unproven))
    far = (math.isinf(high) and low > FAR) or high < 1.0 / FAR
    return far or high - low <= RESOLVED * high


def line_of(problem: Problem, part: Part, solution: Solution) -> Line:
    """The line of a plan."""
    fixed = evaluate(scaled(problem, part, 0.0), solution.choices).objective
    return Line(solution, fixed, part_cost(problem, part, solution.choices))


def least_cost(problem: Problem, pins: Pins) -> float:
    """What every plan costs at least: the least of every node and of every edge by itself."""
    terms = [problem.offset]
    for number, node in enumerate(problem.nodes):
        costs = node.costs[np.asarray(pins[number])] if number in pins else node.costs
        terms.append(float(costs.min()))
    memo: dict[int, float] = {}
    for edge in problem.edges:
        if id(edge.table) not in memo:
            memo[id(edge.table)] = float(edge.table.min())
        terms.append(edge.weight * memo[id(edge.table)])
    return float(np.sum(terms))


def mixed(one: Duals, other: Duals, share: float) -> Duals:
    """(1 - share) of the first duals and `share` of the others: good for costs mixed alike."""
    prices: dict[int, float] = {}
    for duals, weight in ((one, 1.0 - share), (other, share)):
        for when, price in duals.prices:
            prices[when] = prices.get(when, 0.0) + weight * price
    assert one.messages is not None
    assert other.messages is not None
    messages = (1.0 - share) * one.messages + share * other.messages
    return Duals(tuple(sorted((t, p) for t, p in prices.items() if p > 0)), messages)
