"""The solver: from a problem to its cheapest plan, with a proven bound.

In stages, each of which may end the search:

    1  whole      with a plan or duals known: messages on the problem as given drop choices
    2  unlimited  presolve and the linear program without the memory limit: often the answer
    3  limited    presolve, dual, plans, reduced costs, exact sub-problems, with the memory limit

The search is anytime: it may be cut by its time limit, by a wanted gap or by the user, and then
returns the best plan met with the best bound proven. Every plan is priced on the problem as given
before it is believed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from autoshard.interrupts import acknowledge
from autoshard.solve.conflict import lightest_peak, memory_conflict
from autoshard.solve.evaluate import evaluate
from autoshard.solve.flat_memo import FlatMemo
from autoshard.solve.limit_hit import LimitHit
from autoshard.solve.limited import Limited
from autoshard.solve.problem import Duals, Outcome, Problem, ProblemError, Progress, relative_gap
from autoshard.solve.reduce.trail import InfeasibleError
from autoshard.solve.reduce.workspace import Compared
from autoshard.solve.state import OPTIMAL_GAP, DoneError, Search
from autoshard.solve.unlimited import solve_unlimited
from autoshard.solve.whole import Look, bound_whole

TIGHT = 0.5
"""Where the lightest choices fill this part of the limit, it is taken to bind: the relaxation
without it is then hardly worth its time."""


def solve(
    problem: Problem,
    *,
    time_limit: float = 60.0,
    gap: float = 0.0,
    warm_start: Sequence[Sequence[int]] = (),
    progress: Callable[[Progress], bool | None] | None = None,
    seed: int = 0,
    pins: Mapping[int, Sequence[int] | np.ndarray] | None = None,
    warm_duals: Duals | None = None,
    known_bound: float = -np.inf,
    better_than: float = np.inf,
    memo: FlatMemo | None = None,
    look: Look | None = None,
    looked: bool = False,
    compared: Compared | None = None,
) -> Outcome:
    """The cheapest plan of a problem, with a proven bound.

    Args:
      time_limit: seconds of wall clock.
      gap: stop once (objective - bound) / |objective| is at most this; the status is then FEASIBLE
        and `limit_hit` is "gap", unless the plan is proven optimal (relative gap 1e-9).
      warm_start: plans to begin with; broken ones are repaired.
      progress: called with news, from this thread; when it returns True, the search ends with what
        it has, and `limit_hit` is "cutoff".
      seed: two runs with the same seed do the same, but for where the clock cuts.
      pins: node number -> the choices it may take.
      warm_duals: `Outcome.duals` of an earlier solve of a problem with the same edges.
      known_bound: a bound on the objective that the caller can prove by other means.
      better_than: the cost of a plan that the caller has; the search is for cheaper ones, and ends
        with `limit_hit` "cutoff" when there are none within the gap. It may then have no plan.
      look: end early, with `limit_hit` "bound". A look for a bound ends with what the messages of
        stage 1 prove; without a cutoff or a large problem there are none, and the search goes on.
        A brief one ends with a plan of stage 3, before its exact sub-problems.
      looked: whether the duals are of a close look at this very problem, which is not repeated.
      memo: arrays of earlier problems that may be like this one; those of this one are kept there.
      compared: what comparing choices gave in earlier solves of nearly the same problem; what it
        gives here is kept there.

    Raises:
      ProblemError: a warm start or a pin names a choice that does not exist; the duals are of a
        problem with other edges.
    """
    started = time.monotonic()
    kept = _checked_pins(problem, pins or {})
    search = Search(problem, started + time_limit, gap, seed, progress, started, kept)
    search.better_than, search.compared = better_than, compared
    infeasible = False
    try:
        starts = [tuple(int(choice) for choice in plan) for plan in warm_start]
        for plan in starts:
            if search.keeps(plan):
                search.offer_original(plan)
        search.raise_bound(known_bound)
        filled = _filled(search)
        bound_whole(search, warm_duals, starts, memo, look, looked)
        if look is not None and look.is_for_bound and search.messages is not None:
            search.limit_hit = LimitHit.BOUND
            raise DoneError
        if filled < TIGHT and not any(_only_too_large(search, plan) for plan in starts):
            broken = solve_unlimited(search)
            if broken is not None:
                starts.insert(0, broken)
        search.phase = "presolve"
        search.descend(search.kept)
        Limited(search, starts, brief=look is Look.BRIEF).run(Duals(search.prices))
    except InfeasibleError:
        beaten = search.better_than < search.objective and search.dropped
        infeasible = search.choices is None and not beaten
        if not infeasible:
            search.bound = search.upper
            search.limit_hit = LimitHit.CUTOFF if beaten else None
    except DoneError:
        pass
    except KeyboardInterrupt as interrupt:
        acknowledge(interrupt)
        search.limit_hit = LimitHit.INTERRUPTED
    return search.outcome(infeasible)


def _filled(search: Search) -> float:
    """The part of the limit that even the lightest choices fill.

    Raises InfeasibleError when they break it.
    """
    problem = search.problem
    if problem.limit is None:
        return 0.0
    allowed = [np.ones(node.costs.size, dtype=np.bool_) for node in problem.nodes]
    for node, chosen in search.kept.items():
        allowed[node][:] = False
        allowed[node][chosen] = True
    peak, _ = lightest_peak(problem, allowed)
    if peak > problem.limit and (reason := memory_conflict(problem, allowed)):
        raise InfeasibleError(reason)
    return peak / problem.limit if problem.limit > 0 else 1.0


def _only_too_large(search: Search, plan: tuple[int, ...]) -> bool:
    """Whether a plan would be optimal without the memory limit, so that the relaxation is known."""
    free = evaluate(replace(search.problem, limit=None), plan)
    allowed = search.keeps(plan) and not free.violations
    return allowed and relative_gap(free.objective, search.bound) <= OPTIMAL_GAP


def _checked_pins(
    problem: Problem, pins: Mapping[int, Sequence[int] | np.ndarray]
) -> dict[int, np.ndarray]:
    """The pins as sorted arrays. Raises ProblemError naming all that do not exist."""
    bad = []
    for node, allowed in pins.items():
        if not 0 <= node < len(problem.nodes):
            bad.append(f"node {node}: there is no such node")
            continue
        size = problem.nodes[node].costs.size
        absent = [int(choice) for choice in allowed if not 0 <= choice < size]
        if absent:
            bad.append(f"{problem.nodes[node].name}: choices {absent} of {size}")
        elif not len(allowed):
            bad.append(f"{problem.nodes[node].name}: no choice at all; give one or more")
    if bad:
        raise ProblemError("pins name what does not exist:\n  - " + "\n  - ".join(bad[:20]))
    return {node: np.unique(np.asarray(allowed, np.int64)) for node, allowed in pins.items()}
