"""Solves the well-known schemes on one mesh shape, and holds plans of a short search to them.

A search that ends by its time limit may have a plan that is worse than a scheme, or none at all.
The schemes take far less time, because their layouts are pinned. So they are solved then, and the
best plan stands (`with_schemes`).
"""

from __future__ import annotations

import time
from dataclasses import replace

from autoshard.interrupts import acknowledge
from autoshard.problem.build import Built
from autoshard.problem.schemes import SCHEMES, DoesNotApplyError, Pins, Scheme
from autoshard.solve import Outcome, Status
from autoshard.solve import evaluate as evaluate_problem
from autoshard.solve.limit_hit import LimitHit
from autoshard.solve.pipeline import solve
from autoshard.solve.problem import relative_gap

SCHEME_SECONDS = 0.5
"""A scheme may take so long, whatever the time limit."""


def with_schemes(built: Built, outcome: Outcome, axes: range) -> Outcome:
    """Return the outcome of a search that was cut short, or of a scheme that is better.

    Args:
      built: the problem that was solved.
      outcome: what was found of it; its bound and duals stay.
      axes: the numbers of mesh axes of the schemes that are tried.
    """
    best = outcome
    for scheme in SCHEMES:
        if scheme.axes not in axes:
            continue
        try:
            found, _ = solved_scheme(scheme, built, SCHEME_SECONDS)
        except KeyboardInterrupt as interrupt:
            acknowledge(interrupt)
            report = replace(best.report, limit_hit=LimitHit.INTERRUPTED)
            return replace(best, report=report)
        if found is None or found.solution is None:
            continue
        seconds = found.report.objective
        broken = evaluate_problem(built.problem, found.solution.choices).violations
        if not broken and (best.solution is None or seconds < best.report.objective):
            gap = relative_gap(seconds, outcome.report.bound)
            report = replace(outcome.report, status=Status.FEASIBLE, objective=seconds, gap=gap)
            best = replace(outcome, status=Status.FEASIBLE, solution=found.solution, report=report)
    return best


def solved_scheme(scheme: Scheme, built: Built, seconds: float) -> tuple[Outcome | None, str]:
    """Return the scheme's solve, or None and the reason why it has no plan.

    Raises:
      KeyboardInterrupt: an interrupt came.
    """
    try:
        outcome = _solve(built, scheme.pins(built), seconds)
    except DoesNotApplyError as error:
        return None, str(error)
    if outcome.solution is not None:
        return outcome, ""
    if outcome.status is Status.INFEASIBLE:
        return None, "its layouts exclude each other on this mesh"
    return None, "no plan of it was found in time"


def _solve(built: Built, pins: Pins, seconds: float) -> Outcome:
    """Return the best plan under `pins`, without the memory limit if none is found within it."""
    stop = time.monotonic() + seconds
    free = replace(built.problem, limit=None)
    outcome = solve(free, time_limit=seconds, gap=0.02, pins=pins)
    if outcome.report.limit_hit is LimitHit.INTERRUPTED:
        raise KeyboardInterrupt  # by the user, who does not wait for the other schemes
    solution = outcome.solution
    if solution is None or not evaluate_problem(built.problem, solution.choices).violations:
        return outcome
    left = min(max(stop - time.monotonic(), 0.1), 5.0)
    limited = solve(built.problem, time_limit=left, gap=0.02, pins=pins)
    return outcome if limited.solution is None else limited
