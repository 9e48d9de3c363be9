"""Plans that fit in the order in which their compiler runs them.

The solver's memory limit holds in one order of the program, whatever is decided; a compiler that
hides collectives has an order of its own for every plan, which may take more
(`autoshard.xla.forecast.forecast`). Where the best plan takes more than there is, the search goes
on under a limit that is less by as much, from what is known by then, until a plan fits or the time
is over.

What the first search proves holds of the plans that fit as well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from autoshard.plan.evaluate import evaluate
from autoshard.plan.fits import within
from autoshard.plan.plan import MeshShape
from autoshard.search.all_shapes import Explored, InfeasibleError, NoPlanError, ended, explore
from autoshard.search.assemble import forecasted
from autoshard.search.one_shape import MeshSearcher
from autoshard.solve.limit_hit import LimitHit

RESERVE = 0.15
"""The part of the time that is kept for this, where plans have an order of their own."""
STEP = 0.01
"""Limits that are tried one after another differ by this part at least."""


def explore_fitting(searcher: MeshSearcher, shapes: Sequence[MeshShape], **more: Any) -> Explored:
    """As `all_shapes.explore`; the plan fits in its compiler's order if one was found.

    If none was, it is the one that takes least. `more` is handed on to `explore`.

    Raises:
      InfeasibleError, NoPlanError: as `search`.
    """
    if not searcher.machine.chip.counts_anew or math.isinf(searcher.limit):
        return explore(searcher, shapes, **more)
    with searcher.reserving(RESERVE):
        first = explore(searcher, shapes, **more)
    best = last = _measured(searcher, first)
    if within(best.scheduled, searcher.limit) or first.limit_hit is LimitHit.INTERRUPTED:
        return first
    low = 0.0  # under which no plan was found
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
        except (NoPlanError, KeyboardInterrupt):
            break
        last = _measured(searcher, found)
        if last.scheduled < best.scheduled:
            # No plan that fits is left out by what the first search proved.
            ended_by = ended(tighter, [bound for _, bound, _ in first.table])
            hit = LimitHit.GAP if ended_by is LimitHit.GAP else LimitHit.ORDER
            best = last._replace(found=replace(found, limit_hit=hit, table=first.table))
        if found.limit_hit is LimitHit.INTERRUPTED:
            break
    return best.found


class _Measured(NamedTuple):
    """What was found, and its peaks in bytes: in the solver's order and in the compiler's."""

    found: Explored
    peak: int
    scheduled: int


def _measured(searcher: MeshSearcher, found: Explored) -> _Measured:
    prices = searcher.prices(found.shape.sizes)
    plain = evaluate(prices, found.decisions, found.shape.names)
    estimate = forecasted(prices, found.decisions, plain).estimate
    return _Measured(found, estimate.peak_bytes, estimate.scheduled_bytes or 0)
