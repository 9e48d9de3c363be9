"""The search for a plan that fits in memory in the order in which the compiler runs it.

The solver applies the memory limit to one order of the program, the same for all decisions. A
compiler that hides collectives picks its own order for every plan, and that order may need more
memory (`autoshard.xla.forecast.forecast`). If the best plan exceeds the memory limit in the
compiler's order, the search lowers the solver's limit by the excess and continues, warm-started
from what is known. It stops when a plan fits or the time is over.

The bound that the first search proves also holds for the plans that fit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from autoshard.interrupts import acknowledge
from autoshard.plan.evaluate import evaluate
from autoshard.plan.fits import within
from autoshard.plan.plan import MeshShape
from autoshard.search.all_shapes import Explored, InfeasibleError, NoPlanError, ended, explore
from autoshard.search.assemble import forecasted
from autoshard.search.one_shape import MeshSearcher
from autoshard.solve.limit_hit import LimitHit

RESERVE = 0.15
"""The fraction of the time that is reserved for this loop, if the compiler reorders plans."""
STEP = 0.01
"""Successive memory limits differ by at least this fraction of the memory limit."""


def explore_fitting(searcher: MeshSearcher, shapes: Sequence[MeshShape], **more: Any) -> Explored:
    """Return the same as `all_shapes.explore`, but with a plan that fits in the compiler's order.

    If no such plan was found, return the one that needs the least memory. `more` is passed on to
    `explore`.

    Raises:
      InfeasibleError, NoPlanError: as `search`.
    """
    if not searcher.machine.chip.counts_anew or math.isinf(searcher.limit):
        return explore(searcher, shapes, **more)
    with searcher.reserving(RESERVE):
        first = explore(searcher, shapes, **more)
    try:
        return _fitting(searcher, shapes, first)
    except KeyboardInterrupt as interrupt:
        acknowledge(interrupt)
        return replace(first, limit_hit=LimitHit.INTERRUPTED)


def _fitting(searcher: MeshSearcher, shapes: Sequence[MeshShape], first: Explored) -> Explored:
    best = last = _measured(searcher, first)
    if within(best.scheduled, searcher.limit) or first.limit_hit is LimitHit.INTERRUPTED:
        return first
    low = 0.0  # the largest limit known to have no plan
    while not within(best.scheduled, searcher.limit) and searcher.left() > 0:
        least = STEP * searcher.limit
        if last.peak - low < 2 * least:
            break
        limit = last.peak - max(last.scheduled - searcher.limit, least)
        if limit <= low:
            limit = (low + last.peak) / 2
        tighter = searcher.under(limit)
        try:
            found = explore(tighter, shapes)
        except InfeasibleError:
            low = limit
            continue
        except NoPlanError:
            break
        except KeyboardInterrupt as interrupt:
            acknowledge(interrupt)
            break
        last = _measured(searcher, found)
        if last.scheduled < best.scheduled:
            # The first search's bound is valid here: its space contains all plans that fit.
            ended_by = ended(tighter, [bound for _, bound, _ in first.table])
            hit = LimitHit.GAP if ended_by is LimitHit.GAP else LimitHit.ORDER
            best = last._replace(found=replace(found, limit_hit=hit, table=first.table))
        if found.limit_hit is LimitHit.INTERRUPTED:
            break
    return best.found


class _Measured(NamedTuple):
    """A search result and its peak bytes in the solver's order and in the compiler's order."""

    found: Explored
    peak: int
    scheduled: int


def _measured(searcher: MeshSearcher, found: Explored) -> _Measured:
    searcher.tell(found.shape.sizes, "forecast")
    prices = searcher.prices(found.shape.sizes)
    plain = evaluate(prices, found.decisions, found.shape.names)
    estimate = forecasted(prices, found.decisions, plain).estimate
    return _Measured(found, estimate.peak_bytes, estimate.scheduled_bytes or 0)
