"""The bound of the problem as given: messages on all its edges, prices on its memory rows.

Nodes of thousands of choices are too many to compare with each other. What no plan with a given
choice can cost less than decides which choices go before anything dearer is done: against the plan
that is known (of a coarser mesh, of a problem much like this one), or else against a guess, a
little above the bound. The choices within the guess are solved alone; if that gives a plan, it is
the plan known from then on.

The messages are kept, so that a problem with the same edges (a pin more, another limit, costs
scaled) begins where this one ended.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from autoshard.solve.dual import DualAscent
from autoshard.solve.flat import Flat, flatten, row_times
from autoshard.solve.problem import (
    Duals,
    Outcome,
    Problem,
    ProblemError,
    Status,
    relative_gap,
)
from autoshard.solve.state import OPTIMAL_GAP, DoneError, Search
from autoshard.solve.unlimited import solve_unlimited
from autoshard.solve.workspace import InfeasibleError

COMPARISONS = 20_000_000
"""Below this many pairs of choices of one node, in all, presolve is quicker than messages."""
GUESSES = (10_000, 40_000, 160_000)
"""A first plan is looked for among so many choices, those of least reduced cost."""
FEW_CHOICES = 20_000
"""With no more choices left than this there is no point in more passes."""
PASSES = 20
"""Passes between two looks at what is left."""
SHRINKS = 0.97
"""Passes go on while they leave at most this part of the choices."""
SETTLED = 1e-4
"""Without a plan, passes go on until they raise the bound by less than this part of it."""
SHARE = 0.3
"""At most this part of the time left is spent here."""


def bound_whole(
    search: Search,
    duals: Duals | None,
    starts: Sequence[tuple[int, ...]] = (),
    share: float = SHARE,
) -> None:
    """Bound the problem as given and drop choices, where it is large or duals are known beforehand.

    `starts` are plans that may break a rule. At most this share of the time left is spent.
    """
    warm = duals is not None
    large = sum(node.costs.size**2 for node in search.problem.nodes) >= COMPARISONS
    if not warm and not large:
        return
    search.phase = "bound"
    ascent, times = ascent_of(search.problem, duals)
    _mark_kept(search, ascent)
    until = time.monotonic() + share * search.left()
    passes = 1 if duals is not None and duals.messages is not None else PASSES
    over = _passes(search, ascent, times, passes, until)
    if not np.isfinite(search.objective) and large:
        for count in GUESSES:
            keep = over <= _within(over, count)
            for plan in starts:
                where = ascent.flat.node_start[:-1] + np.array(plan)
                keep[where] = ascent.alive[where]
            if _look_within(search, ascent.flat, keep, until):
                over = _passes(search, ascent, times, 1, until)
                break
    search.tell()
    if np.isfinite(search.objective):
        search.drop(_survivors(search, ascent.flat, over <= search.cutoff))


def _passes(
    search: Search, ascent: DualAscent, times: np.ndarray, passes: int, until: float
) -> np.ndarray:
    """Passes while they leave fewer choices; what no plan with each choice can cost less than."""
    offset = search.problem.offset
    left, best = ascent.flat.costs.size, -np.inf
    while True:
        ascent.run(search.objective - offset, until, passes)
        passes = PASSES
        bound, _, extra = ascent.appraisal()
        if bound > ascent.worst:
            raise InfeasibleError("memory: the bound exceeds what any plan costs")
        over = bound + offset + extra
        before, left = left, int((over <= search.cutoff).sum())
        gained, best = bound - best, bound
        search.messages = ascent.best_messages
        pairs = zip(times.tolist(), ascent.best_prices.tolist(), strict=True)
        search.prices = tuple((when, price) for when, price in pairs if price > 0)
        search.raise_bound(bound + offset)
        settled = gained < SETTLED * abs(bound)
        if np.isfinite(search.objective):
            settled = left <= FEW_CHOICES or left > SHRINKS * before
        if settled or time.monotonic() >= until:
            return over


def _within(over: np.ndarray, count: int) -> float:
    """The cutoff that so many choices keep, or all of them."""
    return float(np.partition(over, count)[count]) if count < over.size else np.inf


def _look_within(search: Search, flat: Flat, keep: np.ndarray, until: float) -> bool:
    """Look for a plan among the marked choices; True when one was found, and is now known."""
    inner = Search(search.problem, until, search.wanted_gap, search.seed)
    with contextlib.suppress(DoneError, InfeasibleError):
        inner.kept = _survivors(search, flat, keep)
        solve_unlimited(inner)
    return inner.choices is not None and search.offer_original(inner.choices)


def tightened(problem: Problem, outcome: Outcome, *, time_limit: float = 10.0) -> Outcome:
    """The outcome with duals of the problem as given, so that problems near it are solved quickly.

    The search mostly works on reduced problems, whose duals say nothing of the given one. This
    spends up to `time_limit` seconds on messages and prices for the given one, and ends early once
    they show all but few choices to be dearer than the plan. An outcome without a plan comes back
    as it is. The bound is raised where the messages prove more.
    """
    if outcome.solution is None:
        return outcome
    started = time.monotonic()
    report = outcome.report
    search = Search(problem, started + time_limit, prices=report.prices)
    search.objective, search.choices = report.objective, outcome.solution.choices
    with contextlib.suppress(DoneError, InfeasibleError):
        bound_whole(search, Duals(report.prices, outcome.duals.messages), share=1.0)
    bound = max(report.bound, min(search.bound, report.objective))
    gap = relative_gap(report.objective, bound)
    status = Status.OPTIMAL if gap <= OPTIMAL_GAP else outcome.status
    report = replace(report, status=status, bound=bound, gap=gap, prices=search.prices)
    return replace(
        outcome, status=status, report=report, duals=Duals(search.prices, search.messages)
    )


def ascent_of(problem: Problem, duals: Duals | None) -> tuple[DualAscent, np.ndarray]:
    """An ascent on a problem as given, from earlier duals; and the times of its memory rows.

    Without prices the memory limit is left out: the bound holds all the same, at less work.
    Raises ProblemError when the messages are of a problem with other edges.
    """
    priced = duals is not None and bool(duals.prices)
    posed = problem if priced else replace(problem, limit=None)
    flat, times = flatten(posed), row_times(posed)
    ascent = DualAscent(flat)
    if duals is not None:
        prices = prices_at(duals, times)
        messages = ascent.messages if duals.messages is None else duals.messages
        if messages.size != ascent.messages.size:
            raise ProblemError(
                f"warm_duals hold {messages.size} messages; the edges of this problem need "
                f"{ascent.messages.size}; give duals of a problem with the same edges and tables "
                "of the same shape"
            )
        ascent.begin_with(prices, messages)
    return ascent, times


def prices_at(duals: Duals, times: np.ndarray) -> np.ndarray:
    """The prices of the duals, each put on the memory row nearest in time."""
    prices = np.zeros(times.size)
    for when, price in duals.prices if times.size else ():
        prices[min(int(np.searchsorted(times, when)), times.size - 1)] += price
    return prices


def _mark_kept(search: Search, ascent: DualAscent) -> None:
    """Tell the ascent which choices are left."""
    starts = ascent.flat.node_start
    for node, chosen in search.kept.items():
        ascent.alive[starts[node] : starts[node + 1]] = False
        ascent.alive[starts[node] + chosen] = True


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
