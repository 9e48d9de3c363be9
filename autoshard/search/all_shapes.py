"""The search over all mesh shapes: each shape is solved within the time that is left.

Shapes whose bound already exceeds the best plan are dropped (`autoshard.search.one_shape`). An
interrupt keeps the best decisions so far.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from autoshard.interrupts import acknowledge
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

SMALLER = {
    "respect": "take more chips, a smaller batch, or save less (--remat search, --remat offload)",
    "search": "take more chips, a smaller batch, or the memory of the host (--remat offload)",
    "offload": "take more chips or a smaller batch",
}
"""What to do where nothing fits whatever the limit, by what is searched already."""
LIMIT_SECONDS = 15.0
"""Seconds to find the smallest memory limit that works on a mesh shape.

The time left for the search is a further limit.
"""


class InfeasibleError(ValueError):
    """No plan satisfies the request; the message says what would be feasible.

    `conflict` is the smallest set of requirements that cannot all hold, if requirements conflict.
    `plan` is the found plan that needs the least memory, if all need more than the limit.
    `least_bytes` is the smallest limit per device for which a plan was found, if one was.
    """

    def __init__(
        self,
        message: str,
        conflict: Conflict | None = None,
        plan: Plan | None = None,
        least_bytes: float | None = None,
    ) -> None:
        super().__init__(message)
        self.conflict = conflict
        self.plan = plan
        self.least_bytes = least_bytes


class NoPlanError(RuntimeError):
    """The time limit passed before any plan was found."""


@dataclass(frozen=True, slots=True)
class Explored:
    """The best decisions over all mesh shapes, what ended the search, and a row for each shape.

    Each row of `table` has the name of a shape, its bound, and its objective if a plan was found.
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
    """Return the best decisions found by searching the mesh shapes one after another.

    `starts` and `spare` are coarser shapes that some of `shapes` refine. They are solved briefly,
    only to get an incumbent. `starts` come first. `spare` come later, if shapes still remain after
    a glance (`Look.GLANCE`) at each of them. A plan of a coarser shape is also a plan of the shapes
    that refine it, so the table needs no bounds for `starts` and `spare`.

    Raises:
      InfeasibleError, NoPlanError: as `search`.
    """
    brief = {shape.sizes for shape in (*starts, *spare)} - {shape.sizes for shape in shapes}
    walk = _Walk(searcher, [*starts, *shapes], list(spare), brief)
    interrupted = False
    while walk.todo or walk.looked:
        shape, look = walk.next()
        try:
            walk.visit(shape, look)
        except KeyboardInterrupt as interrupt:
            acknowledge(interrupt)
            interrupted = True
            walk.interrupted_at(shape)
            break
    if walk.best is None and not interrupted:
        walk.take_coarser(shapes)
    if walk.best is None or walk.decisions is None:
        raise _failure(searcher)
    bounds = [bound for _, bound, _ in walk.table]
    limit_hit = LimitHit.INTERRUPTED if interrupted else ended(searcher, bounds)
    return Explored(walk.best, walk.decisions, limit_hit, tuple(walk.table))


@dataclass(slots=True)
class _Walk:
    """The state of a search over mesh shapes.

    With an incumbent, large shapes are first bounded and only then searched. Each gets a quick
    bound at a glance. Then the shape with the smallest bound is bounded more closely, as long as
    its bound stays the smallest.

    Attributes:
      searcher: solves shapes and keeps the results.
      todo: shapes still to visit.
      spare: shapes to solve first once all shapes have a bound.
      brief: sizes of the shapes that only serve to find an incumbent.
      looked: shapes that have a bound and may still have to be searched.
    """

    searcher: MeshSearcher
    todo: list[MeshShape]
    spare: list[MeshShape]
    brief: set[tuple[int, ...]]
    looked: list[MeshShape] = field(default_factory=list)
    table: list[tuple[str, float, float | None]] = field(default_factory=list)
    best: MeshShape | None = None
    decisions: Decisions | None = None
    first: bool = True

    def next(self) -> tuple[MeshShape, Look | None]:
        """Return the next shape and its `Look`; None stands for a full search."""
        searcher = self.searcher
        if not self.todo:  # the smallest bound first: its plan may rule out the other shapes
            self.looked.sort(key=lambda one: searcher.found[one.sizes].outcome.report.bound)
            return self.looked.pop(0), None
        shape = self.todo.pop(0)
        if shape.sizes in self.brief:
            return shape, Look.BRIEF
        glance = searcher.only_better and self.best is not None and len(shape.sizes) > 2
        return shape, Look.GLANCE if glance else None

    def visit(self, shape: MeshShape, look: Look | None) -> None:
        """Bound or search a shape; postpone or skip it if it need not be searched now."""
        searcher = self.searcher
        left = searcher.left()
        known = searcher.found.get(shape.sizes)
        if look is not Look.BRIEF and known is not None and known.look is not None:
            if left <= 0 or searcher.beats(known):
                self.table.append(_row(searcher, shape, known))
                return
            if self.spare:
                self.todo, self.looked, self.spare = self.spare, [shape, *self.looked], []
                return
            look = Look.CLOSE if known.look is Look.GLANCE else None
        if not self.first and left <= 0:
            if look is not Look.BRIEF:
                self.table.append((str(shape), searcher.ideal, None))
            return
        # The first shape resembles the network most and gets half of the time. So does the most
        # promising shape among those already bounded. The others share the time evenly.
        rest = len(self.todo) + len(self.looked) + 1
        half = 0.5 if self.first or known is not None else 1 / rest
        seconds = left if rest == 1 else left * half
        coarser = None
        if look is None and known is None:
            coarser = searcher.from_coarser_alone(shape.sizes, seconds)
        self.first = False
        if coarser is None:
            self._take(shape, look, searcher.solve(shape.sizes, seconds, look=look))
            return
        objective, decisions = coarser
        self.table.append((str(shape), searcher.ideal, objective))
        if searcher.beat(objective):
            self.best, self.decisions = shape, decisions

    def take_coarser(self, shapes: Sequence[MeshShape]) -> None:
        """Take the best plan of coarser shapes: the searches of the shapes themselves had none."""
        for shape in shapes:
            for objective, decisions in self.searcher.from_coarser(shape.sizes, time.monotonic()):
                if self.searcher.beat(objective):
                    self.best, self.decisions = shape, decisions

    def _take(self, shape: MeshShape, look: Look | None, result: Found) -> None:
        if look is not Look.BRIEF and result.look is not None:
            self.looked.append(shape)
        elif look is not Look.BRIEF:
            self.table.append(_row(self.searcher, shape, result))
        objective = result.outcome.report.objective
        if result.decisions is not None and self.searcher.beat(objective):
            self.best, self.decisions = shape, result.decisions

    def interrupted_at(self, shape: MeshShape) -> None:
        """Keep the result of a shape, or of a coarser one, if it beats the incumbent.

        Raises KeyboardInterrupt if no plan was found at all.
        """
        searcher = self.searcher
        others = [shape, *self.todo, *self.looked]
        self.table.extend((str(other), searcher.ideal, None) for other in others)
        refined = searcher.refined(shape.sizes)
        if self.best is None and refined is None:
            raise KeyboardInterrupt
        if refined is not None:
            priced = evaluate(searcher.prices(shape.sizes), refined, shape.names)
            if priced.estimate.step_seconds < searcher.cutoff:
                self.best, self.decisions = shape, refined


def ended(searcher: MeshSearcher, bounds: Sequence[float]) -> LimitHit:
    """Return what ended a search that was not interrupted: the gap or the time limit.

    The search of a shape ends within the gap of its own best plan, or of an incumbent on another
    shape that it cannot beat. Less is proven only if the shape ran out of time or got none.
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
        return InfeasibleError(
            f"{said}; every one needs {format_bytes(least + reserved)} or more; "
            f"{SMALLER[searcher.remat]}"
        )
    chip = searcher.machine.chip
    repair = f"try --memory-limit {limit_for(smallest)}"
    if smallest > chip.memory_bytes:
        repair = f"a {chip.name} has {format_bytes(chip.memory_bytes)}; {SMALLER[searcher.remat]}"
    return InfeasibleError(
        f"{said}; the smallest limit for which one was found is {format_bytes(smallest)}: {repair}",
        least_bytes=smallest,
    )


def _least_bytes(problem: Problem) -> float:
    """Return the peak memory in bytes of the lightest choices, a minimum for every plan."""
    allowed = [np.ones(node.costs.size, dtype=np.bool_) for node in problem.nodes]
    return lightest_peak(problem, allowed)[0]
