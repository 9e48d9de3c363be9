"""What a search tells a later one: of the same program, of other sizes of it, or another machine.

On one mesh shape the problems of both have, as a rule, the same nodes and edges and other costs. So
the decisions are a plan to begin with, and the duals, scaled to the prices of now, prove a bound at
once (see `autoshard.solve.nearby`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from autoshard.build import Built
from autoshard.decisions import Decisions
from autoshard.program import Program
from autoshard.solve import Duals
from autoshard.solve import evaluate as evaluate_problem
from autoshard.solve.nearby import scaled_duals


@dataclass(frozen=True, slots=True, eq=False)
class Earlier:
    """What an earlier search, of a program or machine much like this one, found on a mesh shape."""

    decisions: Decisions
    duals: Duals
    objective: float


def carried(built: Built, earlier: Earlier) -> tuple[list[int] | None, Duals | None]:
    """What was found before, for a problem of now: the plan, and the duals in its prices."""
    axes = len(built.prices.mesh_shape)
    if not is_like(built.prices.program, earlier.decisions, axes):
        return None, None
    plan = built.encode(earlier.decisions)
    edges = sum(sum(edge.table.shape) for edge in built.problem.edges)
    messages = earlier.duals.messages
    if plan is None or messages is None or messages.size != edges or earlier.objective <= 0:
        return plan, None
    now = evaluate_problem(replace(built.problem, limit=None), plan).objective
    if not math.isfinite(now):
        return None, None
    return plan, scaled_duals(earlier.duals, now / earlier.objective)


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
