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
from typing import NamedTuple

from autoshard.cost.step_prices import StepPrices
from autoshard.plan.decisions import Decisions
from autoshard.plan.evaluate import evaluate
from autoshard.plan.plan import MeshShape
from autoshard.search.all_shapes import Explored, InfeasibleError, NoPlanError, ended, explore
from autoshard.search.one_shape import MeshSearcher
from autoshard.xla.forecast.forecast import scheduled

RESERVE = 0.15
"""The part of the time that is kept for this, where plans have an order of their own."""
STEP = 0.01
"""Limits that are tried one after another differ by this part at least."""
TOO_LARGE = "order"
"""What ended a search whose better plans take more than the limit in their compiler's order."""


def explore_fitting(searcher: MeshSearcher, shapes: Sequence[MeshShape]) -> Explored:
    """As `all_shapes.explore`; the plan fits in its compiler's order if one was found.

    If none was, it is the one that takes least.

    Raises:
      InfeasibleError, NoPlanError: as `search`.
    """
    if not searcher.machine.chip.counts_anew or math.isinf(searcher.limit):
        return explore(searcher, shapes)
    whole = searcher.time_limit
    searcher.time_limit = (1 - RESERVE) * whole
    try:
        first = explore(searcher, shapes)
    finally:
        searcher.time_limit = whole
    prices = searcher.prices(first.shape.sizes)
    fits = fits_in_its_order(prices, first.decisions, searcher.limit)
    if fits or first.limit_hit == "interrupted":
        return first
    best = last = _measured(searcher, first)
    low = 0.0  # under which no plan was found
    while best.scheduled > searcher.limit and searcher.left() > 0:
        least = STEP * searcher.limit
        if last.peak - low < 2 * least:
            break
        limit = last.peak - max(last.scheduled - searcher.limit, least)
        if limit <= low:
            limit = (low + last.peak) / 2
        tighter = _under(searcher, limit)
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
            is_close = ended(tighter, [bound for _, bound, _ in first.table]) == "gap"
            hit = "gap" if is_close else TOO_LARGE
            best = last._replace(found=replace(found, limit_hit=hit, table=first.table))
        if found.limit_hit == "interrupted":
            break
    return best.found


def fits_in_its_order(prices: StepPrices, decisions: Decisions, limit: float) -> bool:
    """Whether decisions keep the limit (bytes) in the order in which the compiler runs them."""
    return _scheduled_bytes(prices, decisions) <= limit


def _scheduled_bytes(prices: StepPrices, decisions: Decisions) -> int:
    """The peak in the order in which the compiler runs decisions; 0 where that is the solver's."""
    found = scheduled(prices, decisions)
    return 0 if found is None else found.bytes


class _Measured(NamedTuple):
    """What was found, and its peaks in bytes: in the solver's order and in the compiler's."""

    found: Explored
    peak: float
    scheduled: float


def _measured(searcher: MeshSearcher, found: Explored) -> _Measured:
    prices = searcher.prices(found.shape.sizes)
    peak = evaluate(prices, found.decisions, found.shape.names).estimate.peak_bytes
    return _Measured(found, peak, _scheduled_bytes(prices, found.decisions))


def _under(searcher: MeshSearcher, limit: float) -> MeshSearcher:
    """A search under another memory limit, in the time that is left, from what one found."""
    earlier = {sizes: one.earlier for sizes, one in searcher.found.items() if one.earlier}
    return replace(
        searcher, limit=limit, found={}, cutoff=math.inf, earlier=earlier, seeks_limit=False
    )
