"""Prices the well-known schemes as baselines of a plan: each is solved with its layouts pinned.

A scheme must keep the memory limit and the hard requirements. If it cannot, the table shows its
best plan without them, and what that plan breaks.
"""

from __future__ import annotations

import time

from autoshard.plan.decisions import Decisions
from autoshard.plan.evaluate import Evaluation, evaluate
from autoshard.plan.fits import fits, needed_bytes
from autoshard.plan.plan import Baseline, MeshShape
from autoshard.problem.build import build
from autoshard.problem.requirements.records import MemoryLimit
from autoshard.problem.schemes import SCHEMES, Scheme
from autoshard.search.alternatives import Priced
from autoshard.search.assemble import forecasted
from autoshard.search.mesh_axes import split_axis
from autoshard.search.one_shape import MeshSearcher
from autoshard.search.schemes_solved import solved_scheme
from autoshard.units import format_percent

GRACE_SECONDS, GRACE = 0.5, 0.08
"""Schemes may take so long, and this share of the time limit, after it."""
SHOWN = 2
"""At most this many broken requirements are named."""

UNSEEN = 5e-4
"""A gap of a scheme below this is none in percents of one digit."""


def baseline_rows(
    searcher: MeshSearcher, shape: MeshShape, *, least: float = 0.0
) -> list[tuple[Baseline, Priced | None]]:
    """Return a row per scheme, solved on the coarsest mesh that can express it.

    Each row comes with the scheme's plan and its prices, or None if it does not fit. Together they
    take the time that is left, and a little more, however much the search has taken; each has the
    `least` seconds at least.

    Raises:
      KeyboardInterrupt: an interrupt came while a scheme was solved.
    """
    more = max(GRACE_SECONDS, GRACE * searcher.time_limit)
    until = time.monotonic() + max(searcher.left(), 0.0) + more
    rows = []
    for number, scheme in enumerate(SCHEMES):
        seconds = (until - time.monotonic()) / (len(SCHEMES) - number)
        rows.append(_row(searcher, shape, scheme, max(seconds, least)))
    return rows


def _row(
    searcher: MeshSearcher, shape: MeshShape, scheme: Scheme, seconds: float
) -> tuple[Baseline, Priced | None]:
    if seconds <= 0:
        return Baseline(scheme.name, None, None, "no time was left"), None
    fixed = searcher.demands is not None and searcher.demands.fixed
    sizes, merged = shape.sizes, []
    while len(sizes) > scheme.axes and not fixed:
        sizes = (sizes[0] * sizes[1], *sizes[2:])
        merged.append(0)
    built = searcher.solve(sizes, max(searcher.left(), 1.0)).built
    found, why = solved_scheme(scheme, built, seconds)
    if found is None and searcher.demands is not None and searcher.demands.bounds:
        # Perhaps only the requirements make the scheme infeasible: try without them.
        built = build(
            searcher.prices(sizes), searcher.classes, limit=None, join_sums=searcher.join_sums
        )
        found, why = solved_scheme(scheme, built, seconds)
    if found is None or found.solution is None:
        return Baseline(scheme.name, None, None, f"does not apply: {why}"), None
    decisions = built.decode(found.solution.choices)
    for axis in merged:
        decisions = split_axis(decisions, axis)
    prices = searcher.prices(shape.sizes)
    plain = evaluate(prices, decisions, shape.names)
    evaluation = forecasted(prices, decisions, plain)
    broken = _broken(searcher, shape, decisions, evaluation)
    gap = found.report.gap
    note = "" if gap < UNSEEN else f"at its best up to {format_percent(gap)} faster"
    estimate = evaluation.estimate
    row = Baseline(scheme.name, estimate.step_seconds, needed_bytes(estimate), broken or note)
    return row, None if broken else (shape, decisions, prices, evaluation)


def _broken(
    searcher: MeshSearcher, shape: MeshShape, decisions: Decisions, evaluation: Evaluation
) -> str:
    """Return which limits and hard requirements a plan breaks; empty if it keeps all of them."""
    words = []
    if not fits(evaluation.estimate, searcher.limit):
        words.append("does not fit the memory limit")
    demands = searcher.demands
    broken = [
        str(bound.requirement)
        for bound in (() if demands is None else demands.bounds)
        if bound.requirement.hard
        and not isinstance(bound.requirement, MemoryLimit)
        and demands is not None
        and demands.broken(bound, evaluation, decisions, shape)
    ]
    if broken:
        more = f" and {len(broken) - SHOWN} more" if len(broken) > SHOWN else ""
        words.append(f"breaks {'; '.join(broken[:SHOWN])}{more}")
    return ", ".join(words)
