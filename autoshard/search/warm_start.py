"""Warm starts: what a search passes on to a later search of a similar problem.

The later search may be of the same program, of the program with other sizes, or for another
machine. On one mesh shape, the two problems usually have the same nodes and edges with other costs.
So the earlier decisions are a plan to start from. The earlier duals, scaled to the new prices,
prove a bound at once (see `autoshard.solve.sensitivity.nearby`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from autoshard.plan.decisions import Decisions
from autoshard.problem.build import Built
from autoshard.program.trace import Program
from autoshard.solve import Duals, Outcome
from autoshard.solve import evaluate as evaluate_problem
from autoshard.solve.sensitivity.nearby import scaled_duals


@dataclass(frozen=True, slots=True, eq=False)
class Earlier:
    """What an earlier search of a similar program or machine found on a mesh shape."""

    decisions: Decisions
    duals: Duals
    objective: float


def carried(built: Built, earlier: Earlier) -> tuple[list[int] | None, Earlier | None]:
    """Return the earlier plan as choices of the new problem, and `earlier` at the new prices.

    The plan may break the new memory limit. Both are None if the new problem lacks the plan's
    choices. The duals are empty if the edges of the two problems differ.
    """
    axes = len(built.prices.mesh_shape)
    if not is_like(built.prices.program, earlier.decisions, axes):
        return None, None
    plan = built.encode(earlier.decisions)
    if plan is None or earlier.objective <= 0:
        return plan, None
    now = evaluate_problem(replace(built.problem, limit=None), plan).objective
    if not math.isfinite(now):
        return None, None
    edges = sum(sum(edge.costs.shape) for edge in built.problem.edges)
    messages = earlier.duals.messages
    duals = Duals()
    if messages is not None and messages.size == edges:
        duals = scaled_duals(earlier.duals, now / earlier.objective)
    return plan, Earlier(earlier.decisions, duals, now)


def learned_from(
    outcome: Outcome, decisions: Decisions | None, known: Earlier | None
) -> Earlier | None:
    """Return what a search passes on to a later one.

    The search began with `known` and found `decisions`, or None.
    """
    duals = outcome.duals
    if known is not None and (decisions is None or duals.messages is None):
        return known if duals.messages is None else replace(known, duals=duals)
    if decisions is None:
        return None
    return Earlier(decisions, duals, outcome.report.objective)


def is_like(program: Program, decisions: Decisions, axes: int) -> bool:
    """Return whether decisions have the form of a program on a mesh with `axes` axes.

    Such decisions cover every value and op of the program, although shapes may forbid them.
    """
    same = len(decisions.stored) == len(program.values) and len(decisions.assignment) == len(
        program.ops
    )
    return same and all(
        (layout is None) == value.free
        and (layout is None or (len(layout) == axes and max(layout) < len(value.shape)))
        for value, layout in zip(program.values, decisions.stored, strict=True)
    )
