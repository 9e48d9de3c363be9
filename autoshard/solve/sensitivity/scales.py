"""How far a part of the costs may be scaled while a plan stays the cheapest.

At scale s of a part of the costs a plan x costs F(x) + s V(x), and the cheapest plan

    v(s)  =  min over the plans x of  F(x) + s V(x),

a minimum of lines: concave and piecewise linear in s. The plan in question is the line
f(s) = F + s V; it is optimal where f touches v, which is an interval. Each of its ends is found by
Newton's method on f - v, as Eisner and Severance do (Mathematical techniques for efficient record
segmentation in large shared databases, https://doi.org/10.1145/321978.321982), from outside: solve
at s; where a plan x is cheaper than f there, the two lines cross at

    s'  =  (F(x) - F) / (V - V(x))

between the end and s, and s' comes next; where none is, s is the end and the last x takes over
beyond. Every step solves a problem near the one before: from its plans, from duals between those of
the nearest scales solved on either side, and from the chord, as v is concave:

    v(t a + (1 - t) b)  >=  t v(a) + (1 - t) v(b).

A plan whose own proof has a gap is followed with the same gap: `slack` is what the outcome leaves
between its plan and its bound, and "optimal" is read as "no plan is cheaper by more than `slack`"
throughout. The set of such scales is still an interval that holds 1. Wherever a solve ends without
a proof, the answer says up to where it is proven and from where on it is refuted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from autoshard.solve.limit_hit import LimitHit
from autoshard.solve.problem import Outcome, Problem, ProblemError, Progress, Status
from autoshard.solve.sensitivity.nearby import Pins
from autoshard.solve.sensitivity.part import Part, scaled
from autoshard.solve.sensitivity.scale_end import EndSearch, ScaleEnd, least_cost, line_of
from autoshard.solve.whole import tightened

TIGHTENING = 0.1
"""At most this part of the time goes to duals of the problem at scale 1."""


@dataclass(frozen=True, slots=True, eq=False)
class ScaleRange:
    """The scales of a part of the costs at which a plan stays optimal, to within `slack`.

    The plan costs `fixed` + s `part` at scale s. `slack` is in the units of the costs; it is 0 for
    a plan that is proven optimal.
    """

    low: ScaleEnd
    high: ScaleEnd
    fixed: float
    part: float
    slack: float
    seconds: float
    limit_hit: LimitHit | None = None

    @property
    def exact(self) -> bool:
        """Whether both ends are."""
        return self.low.exact and self.high.exact

    def __str__(self) -> str:
        word = f"within {self.slack:.6g} of optimal" if self.slack else "optimal"
        hit = f", {self.limit_hit.message}" if self.limit_hit else ""
        return (
            f"{word} at scales from {self.low} to {self.high}; "
            f"costs {self.fixed:.9g} + scale * {self.part:.9g}, {self.seconds:.2f} s{hit}"
        )


def scale_range(
    problem: Problem,
    outcome: Outcome,
    part: Part,
    *,
    pins: Pins | None = None,
    within: tuple[float, float] = (0.0, math.inf),
    time_limit: float = 60.0,
    progress: Callable[[Progress], bool | None] | None = None,
    seed: int = 0,
) -> ScaleRange:
    """The scales of a part of the costs at which the plan of an outcome stays optimal.

    Args:
      problem, outcome, pins: the problem solved (at scale 1), its outcome, and its pins.
      part: the costs that are scaled.
      within: the scales asked for, around 1.
      time_limit: seconds of wall clock. An interrupt ends the search with what is known.
      progress: called with the news of every solve.
      seed: as in `solve`.

    Raises:
      ProblemError: the outcome has no plan or no bound; the scales asked for do not surround 1;
        the part does not fit the problem.
    """
    started = time.monotonic()
    low, high = within
    if not 0.0 <= low <= 1.0 <= high:
        raise ProblemError(
            f"scales from {low} to {high} were asked for; give 0 <= low <= 1 <= high"
        )
    if outcome.solution is None or not math.isfinite(outcome.report.bound):
        lacks = "plan" if outcome.solution is None else "bound"
        raise ProblemError(
            f"the outcome has no {lacks}, so nothing is known at scale 1; give the solver more time"
        )
    search = _begun(problem, outcome, part, pins or {}, seed, progress, TIGHTENING * time_limit)
    ends = []
    for outer, share in ((low, 0.5), (high, 1.0)):
        search.until = started + share * time_limit
        ends.append(
            search.end(outer)
            if search.limit_hit is not LimitHit.INTERRUPTED
            else ScaleEnd(1.0, outer)
        )
    return ScaleRange(
        *ends,
        fixed=search.plan.fixed,
        part=search.plan.part,
        slack=search.slack,
        seconds=time.monotonic() - started,
        limit_hit=search.limit_hit,
    )


def _begun(
    problem: Problem,
    outcome: Outcome,
    part: Part,
    pins: Pins,
    seed: int,
    progress: Callable[[Progress], bool | None] | None,
    seconds: float,
) -> EndSearch:
    """A search that knows what the outcome says of scale 1."""
    assert outcome.solution is not None
    report = outcome.report
    slack = 0.0 if outcome.status is Status.OPTIMAL else report.objective - report.bound
    plan = line_of(problem, part, outcome.solution)
    search = EndSearch(problem, pins, part, slack, plan, seed, progress)
    ends = {at: least_cost(scaled(problem, part, at), pins) for at in (0.0, math.inf)}
    search.bounds = {1.0: report.bound, **ends}
    if outcome.duals.messages is None:
        outcome = tightened(problem, outcome, time_limit=seconds)
    if outcome.duals.messages is not None:
        search.duals[1.0] = outcome.duals
    return search


__all__ = ["ScaleEnd", "ScaleRange", "scale_range"]
