"""The bound of the problem as given: messages on all its edges, prices on its memory rows.

Nodes of thousands of choices are too many to compare with each other. What no plan with a given
choice can cost less than decides which choices go before anything dearer is done: against the plan
that is known (of a coarser mesh, of a problem much like this one), or else against a guess, a
little above the bound. The choices within the guess are solved alone; what that gives is the plan
known from then on, and nothing outside of the guess costs less than the guess.

The messages are kept, so that a problem with the same edges (a pin more, another limit, costs
scaled) begins where this one ended: a bound holds for any messages, so those of the problem before
are good ones as long as not too much changed.
"""

from __future__ import annotations

import contextlib
import enum
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from autoshard.solve.dual import DualAscent
from autoshard.solve.flat import Flat, flatten, row_times
from autoshard.solve.flat_memo import FlatMemo
from autoshard.solve.kernels import GONE
from autoshard.solve.problem import (
    Duals,
    Integers,
    Outcome,
    Problem,
    ProblemError,
    Status,
    relative_gap,
)
from autoshard.solve.reduce.trail import InfeasibleError
from autoshard.solve.state import OPTIMAL_GAP, DoneError, Search
from autoshard.solve.support import drop_unsupported, silence
from autoshard.solve.unlimited import solve_unlimited
from autoshard.units import counted

COMPARISONS = 20_000_000
"""Below this many pairs of choices of one node, in all, presolve is quicker than messages."""
GUESSES = (10_000, 40_000, 160_000)
"""A first plan is looked for among so many choices, those of least reduced cost."""
GUESSED = 0.5
"""A guess keeps less than this part of the choices."""
FEW_CHOICES = 20_000
"""With no more choices left than this there is no point in more passes, unless they close in."""
PASSES = 20
"""Passes between two looks at what is left."""
LIMITED_PASSES = 100
"""The first look at a bound with new memory prices comes after so many: they take their time."""
SHRINKS = 0.97
"""Passes go on while they leave at most this part of the choices."""
CLOSES = 0.3
"""Passes go on while they leave at most this part of the gap to the plan that is known."""
SETTLED = 1e-4
"""Without a plan, passes go on until they raise the bound by less than this part of it."""
SHARE = 0.3
"""At most this part of the time left is spent here."""
LASTS = 0.95
"""Messages for later are made while each look leaves at most this part of the gap."""
WEAK = 0.01
"""Messages that prove a plan to no less than this gap are of no use to a later solve."""


class Look(enum.Enum):
    """How closely a problem is looked at: for a bound alone, or for a plan to beat."""

    GLANCE = "passes without the memory limit, while they may soon be enough"
    CLOSE = "passes until they gain little, with the memory limit"
    BRIEF = "a good plan, without exact sub-problems"

    @property
    def is_for_bound(self) -> bool:
        """Whether it ends with what messages prove."""
        return self is not Look.BRIEF


def bound_whole(
    search: Search,
    duals: Duals | None,
    starts: Sequence[tuple[int, ...]] = (),
    memo: FlatMemo | None = None,
    look: Look | None = None,
    looked: bool = False,
) -> None:
    """Bound the problem as given and drop choices, where that is worth it.

    So it is where the problem is large, where messages are known, and where the caller has a plan:
    often the bound alone says that there is none better. `starts` are plans that may break a rule.
    Prices without messages are left for later stages. A `look` at a problem, where the caller has
    a plan, ends with the bound. Where the caller has `looked` closely, the duals are what that
    gave, and further passes would gain little.
    """
    large = sum(node.costs.size**2 for node in search.problem.nodes) >= COMPARISONS
    warm = duals is not None and duals.messages is not None
    if duals is not None:
        search.prices = duals.prices
    if not warm and not large and not np.isfinite(search.better_than):
        return
    search.phase = "bound"
    ascent, times = ascent_of(search.problem, duals, search.kept, memo=memo)
    until = time.monotonic() + (0.0 if looked else SHARE * search.left())
    glance = look is Look.GLANCE and bool(np.isfinite(search.upper))
    over = _passes(search, ascent, times, 0 if warm else PASSES, until, CLOSES, glance)
    if memo is not None and not search.kept:
        memo.learn_supported(search.problem, ascent.alive)
    if glance:
        return
    if not np.isfinite(search.upper):
        for count in GUESSES:
            if count < GUESSED * over.size or large:
                keep = over <= (within := _within(over, count))
                for plan in starts:
                    where = ascent.flat.node_start[:-1] + np.array(plan)
                    keep[where] = ascent.alive[where]
                if _look_within(search, ascent.flat, keep, within, until):
                    over = _passes(search, ascent, times, 1, until, CLOSES)
                    break
    limited = search.problem.limit is not None and not looked
    if large and limited and np.isfinite(search.upper):
        priced = duals is not None and bool(duals.prices)
        passes = PASSES if priced else LIMITED_PASSES
        over = np.maximum(over, _with_limit(search, memo, until, passes))
    search.tell()
    if np.isfinite(search.upper):
        search.dropped = True
        search.drop(_survivors(search, ascent.flat, over <= search.cutoff))


def _with_limit(search: Search, memo: FlatMemo | None, until: float, passes: int) -> np.ndarray:
    """Passes with prices on the memory rows, from the messages found without them."""
    duals = Duals(search.prices, search.messages)
    ascent, times = ascent_of(search.problem, duals, search.kept, limited=True, memo=memo)
    return _passes(search, ascent, times, passes, until, CLOSES)


def _passes(
    search: Search,
    ascent: DualAscent,
    times: np.ndarray,
    passes: int,
    until: float,
    closes: float,
    glance: bool = False,
) -> np.ndarray:
    """Passes while they leave fewer choices, or close in on the plan that is known.

    Returns what no plan with each choice can cost less than. `passes` are those before the first
    look; after none there is always another. At a `glance` they go on while as much again as the
    last ones gained would be enough.
    """
    offset = search.problem.offset
    left, best, gap = ascent.flat.costs.size, -np.inf, np.inf
    while True:
        ascent.run(search.upper - offset, until, passes, search.enough - offset)
        bound, _, extra = ascent.appraisal()
        if bound > ascent.worst:
            raise InfeasibleError("memory: the bound exceeds what any plan costs")
        over = bound + offset + extra
        before, left = left, int((over <= search.cutoff).sum())
        gap_before, gap = gap, search.cutoff - bound - offset
        gained, best = bound - best, bound
        finite = np.abs(ascent.best_messages) < GONE
        search.messages = np.where(finite, ascent.best_messages, 0.0)
        pairs = zip(times.tolist(), ascent.best_prices.tolist(), strict=True)
        search.prices = tuple((when, price) for when, price in pairs if price > 0)
        search.raise_bound(bound + offset)
        settled = gained < SETTLED * abs(bound)
        if np.isfinite(search.upper):
            closing = np.isfinite(gap_before) and gap <= closes * gap_before
            settled = not closing and (left <= FEW_CHOICES or left > SHRINKS * before)
        if glance:
            settled = bound + gained < search.enough - offset
        if (settled and passes) or time.monotonic() >= until:
            return over
        passes = PASSES


def _within(over: np.ndarray, count: int) -> float:
    """The cutoff that so many choices keep, or all of them."""
    return float(np.partition(over, count)[count]) if count < over.size else np.inf


def _look_within(search: Search, flat: Flat, keep: np.ndarray, within: float, until: float) -> bool:
    """Look for a plan among the marked choices; True when one was found, and is now known.

    No plan with another choice costs less than `within`.
    """
    inner = Search(search.problem, until, search.wanted_gap, search.seed)
    try:
        inner.kept = _survivors(search, flat, keep)
        solve_unlimited(inner)
    except InfeasibleError:
        inner.bound = np.inf
    except DoneError:
        pass
    found = inner.choices is not None and search.offer_original(inner.choices)
    proven = min(inner.bound, within)
    if proven == np.inf:
        raise InfeasibleError("no choices satisfy all pairs")
    search.raise_bound(proven)
    return found


def tightened(problem: Problem, outcome: Outcome, *, time_limit: float = 10.0) -> Outcome:
    """The outcome with duals of the problem as given, so that problems near it are solved quickly.

    The search mostly works on reduced problems, whose duals say nothing of the given one. This
    spends up to `time_limit` seconds on messages and prices for the given one, and ends early once
    they prove the plan optimal or no longer gain. They are kept where they prove the plan to within
    `WEAK`; then `Report.prices` are theirs: with B the bound that they prove at the limit M, and p
    their sum, every limit M' has

        cheapest plan at M'  >=  B - p (M' - M)

    since prices and messages give a bound whatever the limit is. Messages that prove less than that
    would cost a later solve more than they save, and are left out. An outcome without a plan comes
    back as it is. The bound is raised where the messages prove more.
    """
    if outcome.solution is None:
        return outcome
    report = outcome.report
    search = Search(problem, time.monotonic() + time_limit)
    search.objective, search.choices = report.objective, outcome.solution.choices
    with contextlib.suppress(DoneError, InfeasibleError):
        _tighten(search, Duals(report.prices, outcome.duals.messages))
    bound = max(report.bound, min(search.bound, report.objective))
    gap = relative_gap(report.objective, bound)
    status = Status.OPTIMAL if gap <= OPTIMAL_GAP else outcome.status
    weak = relative_gap(report.objective, search.bound) > WEAK
    duals = Duals(report.prices) if weak else Duals(search.prices, search.messages)
    report = replace(report, status=status, bound=bound, gap=gap, prices=duals.prices)
    return replace(outcome, status=status, report=report, duals=duals)


def _tighten(search: Search, duals: Duals) -> None:
    """Passes until they no longer gain; without the memory limit as long as it has no price."""
    first = 0 if duals.messages is not None else PASSES
    ascent, times = ascent_of(search.problem, duals)
    _passes(search, ascent, times, first, search.deadline, LASTS)
    if search.problem.limit is not None and not duals.prices:
        ascent, times = ascent_of(search.problem, Duals((), search.messages), limited=True)
        _passes(search, ascent, times, 0, search.deadline, LASTS)


def ascent_of(
    problem: Problem,
    duals: Duals | None,
    kept: Mapping[int, Integers] | None = None,
    *,
    limited: bool | None = None,
    memo: FlatMemo | None = None,
) -> tuple[DualAscent, np.ndarray]:
    """An ascent on a problem as given, from earlier duals; and the times of its memory rows.

    `kept` are the choices left of some nodes; `memo` has the arrays of a problem that may be like
    this one. The memory limit takes part if `limited`; by default
    where it has prices (the bound holds without it too, at less work). With messages given, the
    ascent begins with the bound that they prove.

    Raises ProblemError when the messages are of a problem with other edges.
    """
    if limited is None:
        limited = duals is not None and bool(duals.prices)
    posed = problem if limited else replace(problem, limit=None)
    flat = flatten(posed, dense=False) if memo is None else memo.flat(posed)
    times = row_times(posed)
    ascent = DualAscent(flat)
    for node, chosen in (kept or {}).items():
        ascent.alive[flat.node_start[node] : flat.node_start[node + 1]] = False
        ascent.alive[flat.node_start[node] + chosen] = True
    if duals is None:
        return ascent, times
    prices = prices_at(duals, times)
    if duals.messages is None:
        ascent.begin_with(prices, ascent.messages)
        return ascent, times
    if duals.messages.size != ascent.messages.size:
        raise ProblemError(
            f"warm_duals hold {counted(duals.messages.size, 'message')}; the edges of this "
            "problem need "
            f"{ascent.messages.size}; give duals of a problem with the same edges and tables "
            "of the same shape"
        )
    if kept or memo is None:
        drop_unsupported(ascent)
    else:
        ascent.alive[:] = memo.supported(problem, lambda: drop_unsupported(ascent))
    ascent.begin_with(prices, duals.messages)
    silence(ascent)
    ascent.bound = ascent.check()
    return ascent, times


def prices_at(duals: Duals, times: np.ndarray) -> np.ndarray:
    """The prices of the duals, each put on the memory row nearest in time."""
    prices = np.zeros(times.size)
    for when, price in duals.prices if times.size else ():
        prices[min(int(np.searchsorted(times, when)), times.size - 1)] += price
    return prices


def _survivors(search: Search, flat: Flat, keep: np.ndarray) -> dict[int, np.ndarray]:
    """The choices marked in `keep`, node by node. Raises InfeasibleError when a node has none."""
    kept = {}
    for node in range(flat.node_count):
        chosen = np.flatnonzero(keep[flat.node_start[node] : flat.node_start[node + 1]])
        own = search.kept.get(node)
        if own is not None:
            chosen = own[np.isin(own, chosen, assume_unique=True)]
        if chosen.size == 0:
            raise InfeasibleError("no plan is cheap enough")
        kept[node] = chosen
    return kept
