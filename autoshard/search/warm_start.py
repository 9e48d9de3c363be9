"""What a search tells a later one: of the same program, of other sizes of it, or another machine.

On one mesh shape the problems of both have, as a rule, the same nodes and edges and other costs. So
the decisions are a plan to begin with, and the duals, scaled to the prices of now, prove a bound at
once (see `autoshard.solve.sensitivity.nearby`).
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
    """What an earlier search, of a program or machine much like this one, found on a mesh shape."""

    decisions: Decisions
    duals: Duals
    objective: float


def carried(built: Built, earlier: Earlier) -> tuple[list[int] | None, Earlier | None]:
    """What was found before, for a problem of now: the plan, and all of it in its prices.

    The plan may break the memory limit of now. There is no plan where the problem has not its
    choices, and nothing else then; there are no duals where the edges are others.
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
    """What a search that found `decisions`, if any, tells a later one; it began with `known`."""
    duals = outcome.duals
    if known is not None and (decisions is None or duals.messages is None):
        return known if duals.messages is None else replace(known, duals=duals)
    if decisions is None:
        return None
    return Earlier(decisions, duals, outcome.report.objective)


def is_like(program: Program, decisions: Decisions, axes: int) -> bool:
    """Whether decisions are of the form of a program on a mesh of so many axes.

    They then say for every value and op of it what to do, although shapes may forbid it.
    """
    same = len(decisions.stored) == len(program.values) and len(decisions.assignment) == len(
        program.ops
    )
    return same and all(
        (layout is None) == value.free
        and (layout is None or (len(layout) == axes and max(layout) < len(value.shape)))
        for value, layout in zip(program.values, decisions.stored, strict=True)
    )
