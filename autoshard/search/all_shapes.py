"""The walk over mesh shapes: each is solved with what is left of the time.

Shapes whose bound already exceeds the best plan are dropped (`autoshard.search.one_shape`). An
interrupt keeps the best decisions so far.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autoshard.plan.decisions import Decisions
from autoshard.plan.evaluate import evaluate
from autoshard.plan.fits import limit_for
from autoshard.plan.plan import MeshShape, Plan
from autoshard.problem.requirements.conflicts import Conflict
from autoshard.search.one_shape import Found, MeshSearcher
from autoshard.solve import Problem, Status
from autoshard.solve.conflict import lightest_peak
from autoshard.solve.limit_hit import LimitHit
from autoshard.solve.problem import ProblemError, relative_gap
from autoshard.solve.sensitivity.minimum import minimum_limit
from autoshard.solve.state import OPTIMAL_GAP
from autoshard.solve.whole import Look
from autoshard.units import format_bytes

LIMIT_SECONDS = 15.0
"""For the smallest memory limit that works on a mesh shape; at most what is left of the time."""


class InfeasibleError(ValueError):
    """No plan satisfies what was asked; the message says what would.

    `conflict` is the smallest set of requirements that cannot hold together, where there are any;
    `plan` the plan that needs least memory of those found, where all need more than the limit.
    """

    def __init__(
        self, message: str, conflict: Conflict | None = None, plan: Plan | None = None
    ) -> None:
        super().__init__(message)
        self.conflict = conflict
        self.plan = plan


class NoPlanError(RuntimeError):
    """The time ran out before any plan was found."""


@dataclass(frozen=True, slots=True)
class Explored:
    """The best decisions over all mesh shapes, what ended the search, and a row for every shape.

    `table` has the name of a shape, its bound, and the objective where a plan was found.
    """

    shape: MeshShape
    decisions: Decisions
    limit_hit: LimitHit | None
    table: tuple[tuple[str, float, float | None], ...]


def explore(
    searcher: MeshSearcher,
    shapes: Sequence[MeshShape],
    starts: Sequence[MeshShape] = (),
    spare: Sequence[MeshShape] = (),
) -> Explored:
    """Search the mesh shapes, one after another.

    `starts` and `spare` are shapes that some of `shapes` refine, and are looked at briefly, for a
    plan to beat: `starts` first, and `spare` once glances at all shapes have left some. Their plans
    are plans of the shapes that refine them, so that the table needs no bounds of theirs.

    Raises:
      InfeasibleError, NoPlanError: as `search`.
    """
    table: list[tuple[str, float, float | None]] = []
    best: MeshShape | None = None
    decisions: Decisions | None = None
    interrupted = False
    # Where there is a plan to beat, large shapes are looked at before one of them is searched: all
    # of them at a glance, then the one of the least bound more closely, as long as it has that.
    todo, looked, first = [*starts, *shapes], list[MeshShape](), True
    brief = {shape.sizes for shape in (*starts, *spare)} - {shape.sizes for shape in shapes}
    while todo or looked:
        look = None
        if todo and todo[0].sizes in brief:
            look = Look.BRIEF
        elif todo and searcher.only_better and best is not None and len(todo[0].sizes) > 2:
            look = Look.GLANCE
        if not todo:  # the most promising first: it may leave nothing to find on the others
            looked.sort(key=lambda one: searcher.found[one.sizes].outcome.report.bound)
        shape = todo.pop(0) if todo else looked.pop(0)
        left = searcher.left()
        known = searcher.found.get(shape.sizes)
        if look is not Look.BRIEF and known is not None and known.look is not None:
            if left <= 0 or searcher.beats(known):
                table.append(_row(searcher, shape, known))
                continue
            if spare:
                todo, looked, spare = list(spare), [shape, *looked], ()
                continue
            look = Look.CLOSE if known.look is Look.GLANCE else None
        if not first and left <= 0:
            if look is not Look.BRIEF:
                table.append((str(shape), searcher.ideal, None))
            continue
        # The first shape, most alike the network, gets half of the time, and so does the most
        # promising of those that were looked at; the rest share evenly.
        rest = len(todo) + len(looked) + 1
        share = left if rest == 1 else left * (0.5 if first or known is not None else 1 / rest)
        try:
            result = searcher.solve(shape.sizes, share, look=look)
        except KeyboardInterrupt:
            interrupted = True
            others = [shape, *todo, *looked]
            table.extend((str(other), searcher.ideal, None) for other in others)
            refined = searcher.refined(shape.sizes)
            if best is None and refined is None:
                raise
            if refined is not None:
                priced = evaluate(searcher.prices(shape.sizes), refined, shape.names)
                if priced.estimate.step_seconds < searcher.cutoff:
                    best, decisions = shape, refined
            break
        report = result.outcome.report
        first = False
        if look is Look.BRIEF:
            pass
        elif result.look is not None:
            looked.append(shape)
        else:
            table.append(_row(searcher, shape, result))
        if result.decisions is not None and searcher.beat(report.objective):
            best, decisions = shape, result.decisions
    if best is None or decisions is None:
        raise _failure(searcher)
    bounds = [bound for _, bound, _ in table]
    limit_hit = LimitHit.INTERRUPTED if interrupted else ended(searcher, bounds)
    return Explored(best, decisions, limit_hit, tuple(table))


def ended(searcher: MeshSearcher, bounds: Sequence[float]) -> LimitHit:
    """What ended a search that nobody interrupted.

    A shape ends within the gap of its own best plan, or of one elsewhere that it cannot beat. Only
    where its time ran out, or there was none left for it, is less than that proven of it.
    """
    left = relative_gap(searcher.cutoff, min(bounds))
    return LimitHit.GAP if left <= searcher.gap + OPTIMAL_GAP else LimitHit.TIME


def _row(searcher: MeshSearcher, shape: MeshShape, found: Found) -> tuple[str, float, float | None]:
    report = found.outcome.report
    objective = None if found.decisions is None else report.objective
    return str(shape), max(report.bound, searcher.ideal), objective


def _failure(searcher: MeshSearcher) -> Exception:
    if not any(f.outcome.status is Status.INFEASIBLE for f in searcher.found.values()):
        return NoPlanError(
            f"the time limit of {searcher.time_limit:g} s passed before any plan was found: give "
            "more time, or fix the mesh"
        )
    conflict = searcher.conflict()
    if conflict is not None and conflict.members:
        text = f"no plan keeps all requirements on {searcher.machine.name}: {conflict}"
        return InfeasibleError(text, conflict)
    reserved = searcher.program.constant_bytes
    said = (
        f"no plan fits the memory limit of {format_bytes(searcher.limit)} per device on "
        f"{searcher.machine.name}"
    )
    smallest = math.inf
    shapes = list(searcher.found.values()) if searcher.seeks_limit else []
    for result in shapes[:3]:  # the coarsest come first
        try:
            needed = minimum_limit(
                result.built.problem,
                refused=max(searcher.limit - reserved, 0.0),
                time_limit=min(LIMIT_SECONDS, max(searcher.left(), 1.0)),
            )
        except ProblemError:
            continue
        smallest = min(smallest, needed.achieved + reserved)
    if math.isinf(smallest):
        least = min(_least_bytes(result.built.problem) for result in searcher.found.values())
        return InfeasibleError(f"{said}; every one needs {format_bytes(least + reserved)} or more")
    return InfeasibleError(
        f"{said}; the smallest limit for which one was found is {format_bytes(smallest)}: try "
        f"--memory-limit {limit_for(smallest)}"
    )


def _least_bytes(problem: Problem) -> float:
    """What even the lightest choices take."""
    allowed = [np.ones(node.costs.size, dtype=np.bool_) for node in problem.nodes]
    return lightest_peak(problem, allowed)[0]
