"""The plan among nearly equal ones that is fastest in the compiler's own schedule.

The solver's seconds are a sum of prices, in which a collective that can run beside compute is
waited for in some share, the same in all plans. A compiler that hides collectives has a schedule
for each plan (`autoshard.xla.forecast`), which says more of it, and which no sum of prices is. So
the best plans of other mesh shapes that are nearly as cheap are scheduled, too.
"""

from __future__ import annotations

from dataclasses import replace

from autoshard.plan.decisions import Decisions
from autoshard.plan.evaluate import Evaluation, evaluate
from autoshard.plan.fits import fits
from autoshard.plan.plan import Estimate, MeshShape, Plan
from autoshard.problem.requirements.demands import Demands
from autoshard.search.all_shapes import Explored
from autoshard.search.assemble import forecasted
from autoshard.search.mesh_axes import AXIS_NAMES
from autoshard.search.one_shape import MeshSearcher
from autoshard.search.options import SearchOptions
from autoshard.solve.limit_hit import LimitHit

NEAR = 0.05
"""So much dearer than the cheapest plan one may be, as a share: prices err by as much."""
MOST = 4
"""So many others are scheduled at most."""
WORTH = 0.05
"""By more than this share a plan must be faster as scheduled to be taken before a cheaper one, for
which more is proven. Of what schedules promise, compilers kept 12.7 of 15.9 % (Mixtral-8x7B on 64
H100s with the flags of recipes, JAX 0.12.0.1), and -0.6 of 3.2 % (Llama-3-70B without)."""


def beyond_prices(estimate: Estimate) -> float:
    """Seconds by which the compiler's schedule of a plan is longer than the sum of its prices."""
    return estimate.expected_seconds - estimate.step_seconds


def scheduled_faster(plan: Plan, cheaper: Plan) -> bool:
    """Whether a plan is so much faster as scheduled that it is taken before one that is cheaper.

    What they pay for requirements counts, too.
    """
    mine, other = (one.proof.objective + beyond_prices(one.estimate) for one in (plan, cheaper))
    return mine < (1 - WORTH) * other


def is_no_worse(plan: Plan, before: Plan, asked: SearchOptions) -> bool:
    """Whether a plan is as cheap as an earlier one, which is not scheduled faster."""
    slower = asked.by_schedule and scheduled_faster(before, plan)
    return not slower and plan.proof.objective <= before.proof.objective


def fastest_scheduled(searcher: MeshSearcher, found: Explored, demands: Demands) -> Explored:
    """Return what a search found, or a plan of another mesh that is nearly as cheap and faster.

    Args:
      searcher: after the search.
      found: the cheapest plan.
      demands: what a plan must keep, and what it pays for the rest.
    """

    def scheduled(shape: MeshShape, decisions: Decisions) -> tuple[Evaluation, float]:
        prices = searcher.prices(shape.sizes)
        plain = evaluate(prices, decisions, shape.names)
        evaluation = forecasted(prices, decisions, plain)
        dues = demands.penalty(evaluation, decisions, shape)
        return evaluation, evaluation.estimate.expected_seconds + dues

    own, least = scheduled(found.shape, found.decisions)
    if own.estimate.scheduled_seconds is None:
        return found
    most = (1 + NEAR) * (least - beyond_prices(own.estimate))
    others = [
        (one.outcome.report.objective, sizes, one.decisions)
        for sizes, one in searcher.found.items()
        if one.decisions is not None and sizes != found.shape.sizes
    ]
    best = found
    for objective, sizes, decisions in sorted(others, key=lambda one: one[:2])[:MOST]:
        if objective > most or searcher.left() <= 0:
            break
        searcher.tell(sizes, "forecast")
        shape = MeshShape(AXIS_NAMES[: len(sizes)], sizes)
        evaluation, seconds = scheduled(shape, decisions)
        kept = fits(evaluation.estimate, searcher.limit)
        if seconds < (1 - WORTH) * least and kept and demands.allows(evaluation, decisions, shape):
            least = seconds
            best = replace(found, shape=shape, decisions=decisions, limit_hit=LimitHit.COMPILER)
    return best
