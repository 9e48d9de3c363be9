"""The pipeline: presolve, bound, plans, reduced costs, and the exact solver on what is left.

    problem --presolve--> smaller problem --+--> dual bound, prices ----+
                 ^                          |                           v
                 +-- choices whose reduced cost exceeds the gap go <-- plans by forest moves
                                            |
                                            +--> exact, once it is small enough

The search is anytime: it may be cut by its time limit, by a wanted gap or by the user, and then
returns the best plan met with the best bound proven. Every plan is priced again on the problem as
given before it is believed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from autoshard.solve.dual import DualAscent
from autoshard.solve.evaluate import evaluate
from autoshard.solve.flat import Flat, flatten, row_times
from autoshard.solve.linear import pair_count
from autoshard.solve.presolve import presolve
from autoshard.solve.primal import ForestSearch
from autoshard.solve.problem import (
    Duals,
    Outcome,
    Problem,
    ProblemError,
    Progress,
    Report,
    Solution,
    Status,
    relative_gap,
)
from autoshard.solve.relaxed import solve_exactly
from autoshard.solve.workspace import InfeasibleError, Trail

# A plan this close to the bound, relatively, is called optimal.
OPTIMAL_GAP = 1e-9
# Reduced costs may drop choices that cannot improve the incumbent by more than this, relatively.
FIXING_SLACK = 5e-10
# The exact solver takes over below this many pair variables.
EXACT_PAIRS = 60_000
# Above this many choices, choices are not compared with each other: reduced costs drop them sooner.
DOMINANCE_CHOICES = 300_000
# A round is so many passes of the dual, and as many nodes decided again, in parts of the graph.
FIRST_ROUND = 15
# Before the first plan: rounds of passes, until one gains less than this part of the bound.
SETTLING_ROUNDS = 20
SETTLING_PASSES = 30
SETTLED = 1e-3
# Rounds without a better plan after which the dual is rounded afresh.
STALE_ROUNDS = 4
PASSES_PER_ROUND = 100
WORK_PER_ROUND = 1.0


class _StopSearchError(Exception):
    """The search has nothing left to do, or its gap or time is reached."""


@dataclass(slots=True, eq=False)
class Level:
    """One reduced problem and its way back to the one before."""

    problem: Problem
    trail: Trail
    flat: Flat
    times: np.ndarray


@dataclass(slots=True, eq=False)
class Search:
    """What is known so far about one problem."""

    problem: Problem
    deadline: float
    wanted_gap: float
    seed: int
    progress: Callable[[Progress], None] | None
    started: float = field(default_factory=time.monotonic)
    levels: list[Level] = field(default_factory=list)
    objective: float = np.inf
    bound: float = -np.inf
    choices: tuple[int, ...] | None = None
    prices: tuple[tuple[int, float], ...] = ()
    limit_hit: str | None = None
    phase: str = "presolve"

    @property
    def gap(self) -> float:
        return relative_gap(self.objective, self.bound)

    @property
    def level(self) -> Level:
        return self.levels[-1]

    def tell(self) -> None:
        if self.progress is not None:
            left = self.level.flat.node_count if self.levels else len(self.problem.nodes)
            seconds = time.monotonic() - self.started
            news = Progress(self.phase, self.objective, self.bound, self.gap, seconds, left)
            self.progress(news)

    def raise_bound(self, bound: float) -> None:
        """Take a proven bound; dropped choices cap what may be claimed at the incumbent."""
        if len(self.levels) > 1:
            bound = min(bound, self.objective - FIXING_SLACK * abs(self.objective))
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
        found = evaluate(self.problem, choices)
        if found.violations or found.objective >= self.objective:
            return False
        self.objective = found.objective
        self.choices = tuple(int(choice) for choice in choices)
        self.tell()
        return True

    def check_done(self) -> None:
        if self.gap <= OPTIMAL_GAP:
            raise _StopSearchError
        if self.gap <= self.wanted_gap:
            self.limit_hit = "gap"
            raise _StopSearchError
        if time.monotonic() >= self.deadline:
            self.limit_hit = "time"
            raise _StopSearchError

    def descend(self, pins: Mapping[int, Sequence[int]]) -> None:
        """Reduce the current problem further. Raises InfeasibleError when nothing is left."""
        above = self.levels[-1].problem if self.levels else self.problem
        choices = sum(node.costs.size for node in above.nodes)
        problem, trail = presolve(above, pins, dominance=choices <= DOMINANCE_CHOICES)
        self.levels.append(Level(problem, trail, flatten(problem), row_times(problem)))

    def read_prices(self, dual: DualAscent) -> None:
        pairs = zip(self.level.times.tolist(), dual.best_prices.tolist(), strict=True)
        self.prices = tuple((when, price) for when, price in pairs if price > 0)


def solve(
    problem: Problem,
    *,
    time_limit: float = 60.0,
    gap: float = 0.0,
    warm_start: Sequence[Sequence[int]] = (),
    progress: Callable[[Progress], None] | None = None,
    seed: int = 0,
    pins: Mapping[int, Sequence[int]] | None = None,
    warm_duals: Duals | None = None,
) -> Outcome:
    """The cheapest plan of a problem, with a proven bound.

    Args:
      time_limit: seconds of wall clock.
      gap: stop once (objective - bound) / |objective| is at most this; the status is then FEASIBLE
        and `limit_hit` is "gap", unless the plan is proven optimal (relative gap 1e-9).
      warm_start: plans to begin with; broken ones are repaired.
      progress: called with news, from this thread.
      seed: two runs with the same seed do the same, but for where the clock cuts.
      pins: node number -> the choices it may take.
      warm_duals: `Outcome.duals` of an earlier solve of a similar problem.

    Raises:
      ProblemError: a warm start or a pin names a choice that does not exist.
    """
    started = time.monotonic()
    _check_pins(problem, pins or {})
    search = Search(problem, started + time_limit, gap, seed, progress, started)
    infeasible = False
    try:
        search.descend(pins or {})
        starts = []
        for plan in warm_start:
            if _keeps_pins(plan, pins or {}):
                search.offer_original(plan)
            starts.append(search.level.trail.project(plan))
        _run(search, starts, warm_duals)
    except InfeasibleError:
        infeasible = search.choices is None
        if not infeasible:
            search.bound = search.objective
    except _StopSearchError:
        pass
    except KeyboardInterrupt:
        search.limit_hit = "interrupted"
    return _outcome(search, infeasible)


def _check_pins(problem: Problem, pins: Mapping[int, Sequence[int]]) -> None:
    bad = []
    for node, allowed in pins.items():
        if not 0 <= node < len(problem.nodes):
            bad.append(f"node {node}: there is no such node")
            continue
        size = problem.nodes[node].costs.size
        absent = [choice for choice in allowed if not 0 <= choice < size]
        if absent:
            bad.append(f"{problem.nodes[node].name}: choices {absent} of {size}")
    if bad:
        raise ProblemError("pins name what does not exist:\n  - " + "\n  - ".join(bad[:20]))


def _keeps_pins(plan: Sequence[int], pins: Mapping[int, Sequence[int]]) -> bool:
    return all(plan[node] in allowed for node, allowed in pins.items())


def _outcome(search: Search, infeasible: bool) -> Outcome:
    seconds = time.monotonic() - search.started
    objective, bound = search.objective, min(search.bound, search.objective)
    if infeasible:
        status, bound = Status.INFEASIBLE, np.inf
    elif search.choices is None:
        status = Status.UNKNOWN
    elif relative_gap(objective, bound) <= OPTIMAL_GAP:
        status, search.limit_hit = Status.OPTIMAL, None
    else:
        status = Status.FEASIBLE
    found = relative_gap(objective, bound)
    report = Report(status, objective, bound, found, seconds, search.limit_hit, search.prices)
    solution = None if search.choices is None else Solution(search.choices)
    return Outcome(status, solution, report, Duals(search.prices))


def _run(search: Search, starts: list[tuple[int, ...]], warm_duals: Duals | None) -> None:
    """Dual and primal in turns, then smaller levels, then exact."""
    dual = DualAscent(search.level.flat)
    _take_prices(search, dual, warm_duals)
    plans: ForestSearch | None = None
    failed_at: float | None = None
    passes = FIRST_ROUND
    while True:
        flat, offset = search.level.flat, search.level.problem.offset
        if flat.costs.size == flat.node_count:
            search.offer(np.zeros(flat.node_count, dtype=np.int64))
            search.raise_bound(offset + float(flat.costs.sum()))
            raise InfeasibleError("the one plan left breaks a limit")
        if plans is None or plans.flat is not flat:
            search.phase = "bound"
            _settle_bound(search, dual)
            plans = ForestSearch(flat, dual.best_prices, dual.best_messages, search.seed)
            _begin(search, plans, starts)
        search.phase = "search"
        _bound_and_plans(search, dual, plans, passes)
        passes = min(2 * passes, PASSES_PER_ROUND)
        starts = []
        if np.isfinite(search.objective) and _shrink(search, dual):
            dual = _next_dual(search, dual)
            plans = None
            continue
        if pair_count(flat) <= EXACT_PAIRS and (failed_at is None or search.gap < failed_at):
            search.phase = "exact"
            solve_exactly(search, dual, plans)
            failed_at = search.gap * 0.5


def _take_prices(search: Search, dual: DualAscent, duals: Duals | None) -> None:
    """Begin with known prices, each put on the row nearest in time."""
    if duals is None or not duals.prices or search.level.times.size == 0:
        return
    times = search.level.times
    for when, price in duals.prices:
        row = min(int(np.searchsorted(times, when)), times.size - 1)
        dual.prices[row] += price
    dual.best_prices[:] = dual.prices


def _next_dual(search: Search, dual: DualAscent) -> DualAscent:
    """A dual for the new level, with the prices of the old one."""
    fresh = DualAscent(search.level.flat)
    _take_prices(search, fresh, Duals(search.prices))
    return fresh


def _begin(search: Search, plans: ForestSearch, starts: list[tuple[int, ...]]) -> None:
    """Begin with the plan known, or with the warm starts, or else by rounding the dual."""
    known = list(starts)
    if search.choices is not None:
        plan = search.choices
        for level in search.levels:
            plan = level.trail.project(plan)
        known.append(plan)
    for plan in known:
        plans.begin_with(np.array(plan, dtype=np.int64))


def _bound(search: Search, dual: DualAscent, passes: int) -> None:
    offset = search.level.problem.offset
    before = search.bound
    dual.run(search.objective - offset, search.deadline, passes)
    search.read_prices(dual)
    value = dual.check()
    if value > dual.worst:
        raise InfeasibleError("memory: the bound exceeds what any plan costs")
    search.raise_bound(value + offset)
    if search.bound > before:
        search.tell()


def _settle_bound(search: Search, dual: DualAscent) -> None:
    """Passes until they gain little: plans rounded from poor prices are poor."""
    until = time.monotonic() + 0.1 * (search.deadline - time.monotonic())
    for _ in range(SETTLING_ROUNDS):
        before = dual.bound
        _bound(search, dual, SETTLING_PASSES)
        if dual.bound - before < SETTLED * abs(dual.bound) or time.monotonic() > until:
            return


def _bound_and_plans(search: Search, dual: DualAscent, plans: ForestSearch, passes: int) -> None:
    """One round: plans under the present prices in a second thread, the bound in this one."""
    plans.prices, plans.messages = dual.best_prices.copy(), dual.best_messages.copy()
    work = WORK_PER_ROUND * passes * search.level.flat.node_count
    plans.stopped = False
    before = plans.best_cost
    worker = threading.Thread(target=plans.run, args=(work, search.deadline))
    worker.start()
    try:
        _bound(search, dual, passes)
        worker.join()
    finally:
        plans.stopped = True
        worker.join()
        if plans.best is not None:
            search.offer(plans.best)
    plans.stale = plans.stale + 1 if plans.best_cost == before else 0
    if plans.stale >= STALE_ROUNDS:
        plans.begin_afresh()
    search.check_done()


def _shrink(search: Search, dual: DualAscent) -> bool:
    """Drop choices that cannot beat the incumbent; True when a smaller level was made."""
    flat, offset = search.level.flat, search.level.problem.offset
    bound, _, extra = dual.appraisal()
    allowed = search.objective - FIXING_SLACK * abs(search.objective)
    keep = bound + offset + extra <= allowed
    if keep.sum() > 0.9 * keep.size:
        return False
    pins = {}
    for node in range(flat.node_count):
        kept = np.flatnonzero(keep[flat.node_start[node] : flat.node_start[node + 1]])
        pins[node] = kept
    search.descend(pins)
    search.tell()
    return True
