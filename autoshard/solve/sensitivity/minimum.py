"""The smallest memory limit under which a plan is found.

The peak of the best plan without a limit works; a limit that was refused does not. In between the
range is halved, with a search that stops at its first plan. A search that neither finds a plan nor
proves that there is none counts as refused, so the answer is a limit that works, and close to the
smallest that this solver can satisfy.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from autoshard.solve.evaluate import evaluate
from autoshard.solve.pipeline import solve
from autoshard.solve.problem import Problem, ProblemError, Status

ANY_GAP = 1e9


@dataclass(frozen=True, slots=True)
class MinimumLimit:
    """`choices` is the lightest plan found; it needs `achieved` bytes."""

    achieved: float
    choices: tuple[int, ...]


def minimum_limit(
    problem: Problem,
    *,
    refused: float = 0.0,
    warm_start: Sequence[Sequence[int]] = (),
    time_limit: float = 30.0,
    gap: float = 0.02,
) -> MinimumLimit:
    """Find the smallest memory limit (bytes) under which a plan is found, to about `gap`.

    Args:
      refused: a limit that is known not to work.
      warm_start: plans to begin with, whatever they need.
      time_limit: seconds in all.

    Raises:
      ProblemError: no plan exists, whatever the limit, or none was found in the time.
    """
    deadline = time.monotonic() + time_limit
    free = replace(problem, limit=None)
    plans = [tuple(plan) for plan in warm_start]
    if not plans:
        outcome = solve(free, time_limit=time_limit, gap=0.05)
        if outcome.status is Status.INFEASIBLE:
            raise ProblemError(
                "no plan exists, whatever the memory limit: choices exclude each other; allow "
                "more pairs"
            )
        if outcome.solution is None:
            raise ProblemError(
                f"no plan was found in {time_limit:g} s, even without a limit; give more time"
            )
        plans = [outcome.solution.choices]
    best = min(plans, key=lambda plan: evaluate(free, plan).peak)
    achieved, low = evaluate(free, best).peak, min(refused, evaluate(free, best).peak)
    while achieved > low * (1 + gap) and time.monotonic() < deadline:
        middle = 0.5 * (low + achieved)
        share = min(max(deadline - time.monotonic(), 0.5), time_limit / 6)
        outcome = solve(replace(problem, limit=middle), time_limit=share, gap=ANY_GAP)
        if outcome.solution is None:
            low = middle
            continue
        best = outcome.solution.choices
        achieved = evaluate(free, best).peak
    return MinimumLimit(achieved, best)
