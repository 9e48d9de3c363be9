"""The search on one mesh shape, and how plans carry over between shapes.

The searcher solves coarser shapes first, in which two neighbouring axes are merged into one. The
problem of a coarser shape is far smaller. Its plan, with the axis split again, is a starting point
on the finer shape and has the same price there.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from autoshard.cost.corrections import NONE, Corrections
from autoshard.cost.step_prices import StepPrices, step_prices
from autoshard.machine.machine import Machine
from autoshard.plan.decisions import Decisions
from autoshard.plan.evaluate import tidy
from autoshard.problem.build import Built, build
from autoshard.problem.folded_terms import Folded, fold
from autoshard.problem.memo import Shared
from autoshard.problem.requirements.bind import Bound
from autoshard.problem.requirements.conflicts import ANY_GAP, Conflict, find_conflict
from autoshard.problem.requirements.demands import Demands
from autoshard.problem.requirements.records import MemoryLimit
from autoshard.problem.requirements.restrict import EmptyDomainError
from autoshard.program.facts import Facts
from autoshard.program.repeats import Classes
from autoshard.program.trace import Program
from autoshard.search.mesh_axes import coarser_shapes, split_axis
from autoshard.search.progress import SearchProgress
from autoshard.search.schemes_solved import with_schemes
from autoshard.search.warm_start import Earlier, carried, is_like, learned_from
from autoshard.solve import Outcome, Progress, Report, Status
from autoshard.solve.limit_hit import LimitHit
from autoshard.solve.pipeline import solve
from autoshard.solve.whole import Look

BRIEF_GAP = 0.25
"""A brief solve for an incumbent stops at this fraction of the gap.

What the brief solve gains, the solves of other shapes need not find again.
"""


@dataclass(slots=True)
class Found:
    """The result of the search on one mesh shape.

    `earlier` is what a later search learns from this one. `look` is set if the solve stopped at a
    bound; it says how thorough the solve was.
    """

    built: Built
    outcome: Outcome
    decisions: Decisions | None
    earlier: Earlier | None = None
    look: Look | None = None


@dataclass(slots=True)
class MeshSearcher:
    """Solves mesh shapes of one program and machine, coarser shapes first as starting points.

    With `only_better`, the searcher looks only for plans that are cheaper than `cutoff`; a mesh
    shape may have none. With `seeks_limit`, an infeasible search reports the smallest memory limit
    that works, which takes several searches. Limits on collectives count the collectives that a
    plan has on `counted_on`, by default on `machine`. `wider` has the facts for mesh shapes on
    which requirements need kernels to be cut in two in more places. `remat` says what is searched
    besides: another search may choose what this one's program saves.
    """

    program: Program
    flow: Facts
    classes: Classes
    machine: Machine
    limit: float
    gap: float
    progress: Callable[[SearchProgress], None] | None
    started: float
    time_limit: float
    ideal: float
    cutoff: float = math.inf
    found: dict[tuple[int, ...], Found] = field(default_factory=dict)
    corrections: Corrections = NONE
    join_sums: bool = True
    demands: Demands | None = None
    starts: dict[tuple[int, ...], Decisions] = field(default_factory=dict)
    earlier: Mapping[tuple[int, ...], Earlier] = field(default_factory=dict)
    shared: dict[tuple[int, ...], Shared] = field(default_factory=dict)
    only_better: bool = False
    seeks_limit: bool = True
    counted_on: Machine | None = None
    folded: Folded | None = None
    wider: dict[tuple[int, ...], Facts] = field(default_factory=dict)
    priced: dict[tuple[int, ...], StepPrices] = field(default_factory=dict)
    remat: str = "respect"

    def left(self) -> float:
        """Return the seconds left until the time limit."""
        return self.time_limit - (time.monotonic() - self.started)

    @contextmanager
    def reserving(self, part: float) -> Iterator[None]:
        """Reserve this fraction of the time limit for later, while the context is open."""
        whole = self.time_limit
        self.time_limit = (1 - part) * whole
        try:
            yield
        finally:
            self.time_limit = whole

    def beat(self, objective: float) -> bool:
        """Return whether `objective` beats the incumbent, and lower the cutoff to it if so."""
        better = objective < self.cutoff
        self.cutoff = min(self.cutoff, objective)
        return better

    def under(self, limit: float) -> MeshSearcher:
        """Return a searcher under another memory limit, warm-started from what this one found.

        It has the time that is left.
        """
        earlier = {sizes: one.earlier for sizes, one in self.found.items() if one.earlier}
        return replace(
            self, limit=limit, found={}, cutoff=math.inf, earlier=earlier, seeks_limit=False
        )

    def prices(self, sizes: tuple[int, ...]) -> StepPrices:
        """Return the step prices (the cost laws) on a mesh of these sizes."""
        if sizes not in self.priced:
            known = self.shared[sizes].reshards if sizes in self.shared else None
            machine, taught = self.machine, self.corrections
            flow = self.wider.get(sizes, self.flow)
            self.priced[sizes] = step_prices(
                self.program, flow, machine, sizes, taught, reshards=known
            )
        return self.priced[sizes]

    def beats(self, looked: Found) -> bool:
        """Return whether the incumbent is within the gap of the bound of a mesh shape."""
        return looked.outcome.report.bound >= self.cutoff * (1 - self.gap)

    def _built(self, sizes: tuple[int, ...]) -> Built:
        """Return the problem on a mesh shape, without requirements."""
        prices, shared = self.prices(sizes), self._shared_on(sizes)
        if sizes in self.wider:
            folded = fold(prices, self.classes, join_sums=self.join_sums)
        elif self.folded is None:
            self.folded = folded = fold(prices, self.classes, join_sums=self.join_sums)
        else:
            folded = self.folded
        return build(prices, self.classes, limit=self.limit, shared=shared, folded=folded)

    def _counted(self, sizes: tuple[int, ...]) -> StepPrices | None:
        """Return the prices that requirements count collectives with; None for the machine's."""
        if self.counted_on is None:
            return None
        return step_prices(self.program, self.flow, self.counted_on, sizes, self.corrections)

    def solve(self, sizes: tuple[int, ...], seconds: float, *, look: Look | None = None) -> Found:
        """Return the best plan of one mesh shape; the result is kept and reused.

        A solve with a `look` stops earlier. A later solve of the same shape starts from its result.
        With an incumbent to beat, coarser shapes are solved only briefly.
        """
        looked = self.found.get(sizes)
        if looked is not None and looked.look in (None, look):
            return looked
        stop = time.monotonic() + seconds
        starts = [plan for _, plan in self.from_coarser(sizes, stop)]
        self.tell(sizes, "build")
        try:
            built = self._asked(sizes, stop) if looked is None else looked.built
        except EmptyDomainError:
            self.found[sizes] = Found(self._built(sizes), _infeasible(), None)
            return self.found[sizes]
        plans, known = self._known(sizes, built, starts)
        duals = None if known is None else known.duals
        if looked is not None:
            duals = looked.outcome.duals

        gap = BRIEF_GAP * self.gap if look is Look.BRIEF else self.gap

        def heard(news: Progress) -> bool:
            self.tell(sizes, news.phase, news)
            return news.bound >= self.cutoff * (1 - gap)  # this mesh cannot beat the incumbent

        outcome = solve(
            built.problem,
            time_limit=max(stop - time.monotonic(), 0.5),
            gap=gap,
            warm_start=plans,
            warm_duals=duals,
            progress=heard,
            known_bound=self.ideal,
            better_than=self.cutoff if self.only_better else math.inf,
            memo=self._shared_on(sizes).arrays,
            look=look,
            looked=looked is not None and looked.look is Look.CLOSE,
        )
        if outcome.report.limit_hit is LimitHit.TIME and look is None:
            least = 1 if self._is_fixed else len(sizes)  # those of fewer axes are known by now
            outcome = with_schemes(built, outcome, range(least, len(sizes) + 1))
        refused = outcome.status is Status.INFEASIBLE and not self._lacks_memory(sizes, built)
        if refused and self._widened(sizes):
            return self.solve(sizes, stop - time.monotonic(), look=look)
        decisions = None
        if outcome.solution is not None:
            decisions = tidy(built.prices, built.decode(outcome.solution.choices))
        learned = learned_from(outcome, decisions, known)
        bounded = look if outcome.report.limit_hit is LimitHit.BOUND else None
        self.found[sizes] = Found(built, outcome, decisions, learned, bounded)
        if outcome.report.limit_hit is LimitHit.INTERRUPTED:
            raise KeyboardInterrupt  # by the user; `found` keeps the result
        return self.found[sizes]

    def _asked(self, sizes: tuple[int, ...], stop: float) -> Built:
        """Return the problem under the requirements.

        Raises EmptyDomainError if some value has no layout left, wherever kernels are cut.
        """
        built = self._built(sizes)
        if self.demands is None:
            return built
        left = 0.5 * (stop - time.monotonic())
        try:
            return self.demands.applied(built, seconds=left, counted=self._counted(sizes))
        except EmptyDomainError:
            if not self._widened(sizes):
                raise
            return self._asked(sizes, stop)

    def _known(
        self, sizes: tuple[int, ...], built: Built, starts: list[Decisions]
    ) -> tuple[list[list[int]], Earlier | None]:
        """Return the plans to start from as choices, and what an earlier search learned."""
        if sizes in self.starts and is_like(self.program, self.starts[sizes], len(sizes)):
            starts = [*starts, self.starts[sizes]]
        plans = [plan for plan in map(built.encode, starts) if plan is not None]
        if sizes not in self.earlier:
            return plans, None
        plan, known = carried(built, self.earlier[sizes])
        return (plans if plan is None else [plan, *plans]), known

    def _widened(self, sizes: tuple[int, ...]) -> bool:
        """Let requirements cut kernels in more places, once a shape; return whether there are."""
        if self.demands is None or sizes in self.wider:
            return False
        wider = self.demands.facts(self.flow, everywhere=True)
        if wider.parted <= self.flow.parted:
            return False
        self.wider[sizes] = wider
        for known in (self.found, self.priced):
            known.pop(sizes, None)
        return True

    def _lacks_memory(self, sizes: tuple[int, ...], asked: Built) -> bool:
        """Return whether an infeasible problem has a plan if the step's memory is no matter.

        Limits that requirements set are rows after the last point of the step, and stay.
        """
        if self.demands is None or not self.demands.bounds:
            return True
        free = self._built(sizes).problem
        end = max((usage.stop for usage in free.usages), default=0)
        rows = tuple(usage for usage in asked.problem.usages if usage.start >= end)
        problem = replace(asked.problem, usages=rows)
        outcome = solve(problem, time_limit=max(0.5 * self.left(), 1.0), gap=ANY_GAP)
        return outcome.status is not Status.INFEASIBLE

    def from_coarser_alone(
        self, sizes: tuple[int, ...], seconds: float
    ) -> tuple[float, Decisions] | None:
        """Return the best plan of coarser shapes and its objective if they took all of the time.

        The plan has the same price on this shape, whose problem is not built then.
        """
        if sizes in self.found:
            return None
        plans = self.from_coarser(sizes, time.monotonic() + seconds)
        return min(plans, key=lambda plan: plan[0]) if plans and self.left() <= 0 else None

    def from_coarser(self, sizes: tuple[int, ...], stop: float) -> list[tuple[float, Decisions]]:
        """Return plans of coarser shapes, split to this shape, unless it has a better start.

        Each comes with its objective.
        """
        # An earlier result on this same shape is a better start than coarser shapes are.
        if self._is_fixed or sizes in self.earlier or sizes in self.starts:
            return []
        starts: list[tuple[float, Decisions]] = []
        for coarse, axis in coarser_shapes(sizes):
            if self.found and self.left() <= 0:
                break  # out of time: solve only this shape itself, which must be searched
            brief = Look.BRIEF if self.only_better else None
            plan = self.from_coarser_alone(coarse, 0.4 * (stop - time.monotonic()))
            if plan is None:
                known = self.solve(coarse, 0.4 * (stop - time.monotonic()), look=brief)
                if known.decisions is not None:
                    plan = known.outcome.report.objective, known.decisions
                else:
                    coarser = self.from_coarser(coarse, stop)
                    plan = min(coarser, key=lambda one: one[0], default=None)
            if plan is not None:
                starts.append((plan[0], split_axis(plan[1], axis)))
        return starts

    @property
    def _is_fixed(self) -> bool:
        """Whether requirements speak of the axes of one mesh, so that no coarser one is solved."""
        return self.demands is not None and self.demands.fixed

    def _shared_on(self, sizes: tuple[int, ...]) -> Shared:
        """Return the tables that searches of similar problems share on a mesh shape."""
        if sizes not in self.shared:
            others = list(self.shared.values())
            self.shared[sizes] = others[0].beside() if others else Shared()
        return self.shared[sizes]

    def conflict(self) -> Conflict | None:
        """Return why the finest infeasible mesh has no plan; None if only memory was limited."""
        demands = self.demands
        if demands is None or not demands.bounds:
            return None
        status = Status.INFEASIBLE
        failed = [key for key, one in self.found.items() if one.outcome.status is status]
        sizes = max(failed, key=len)
        limit = Bound(MemoryLimit(self.limit, source="the memory of a device"))
        hard = [b for b in demands.bounds if b.requirement.hard]
        asked = [b.requirement for b in hard if isinstance(b.requirement, MemoryLimit)]
        if all(one.bytes > self.limit for one in asked):
            hard.append(limit)
        built = build(self.prices(sizes), self.classes, limit=None, join_sums=self.join_sums)
        seconds = max(self.left(), 20.0)
        return find_conflict(built, hard, demands.mesh(sizes), time_limit=seconds)

    def refined(self, sizes: tuple[int, ...]) -> Decisions | None:
        """Return the decisions found on a mesh shape, or else those of a coarser one, split."""
        if sizes in self.found:
            return self.found[sizes].decisions
        if self._is_fixed:
            return None
        for coarse, axis in coarser_shapes(sizes):
            known = self.refined(coarse)
            if known is not None:
                return split_axis(known, axis)
        return None

    def tell(self, sizes: tuple[int, ...], phase: str, news: Progress | None = None) -> None:
        """Report that a mesh shape is in this phase, with news of the solver if there are any."""
        if self.progress is None:
            return
        seconds = time.monotonic() - self.started
        self.progress(
            SearchProgress(
                mesh="x".join(map(str, sizes)),
                phase=phase,
                objective=math.inf if news is None else news.objective,
                bound=0.0 if news is None else news.bound,
                gap=math.inf if news is None else news.gap,
                seconds=seconds,
                seconds_left=max(self.time_limit - seconds, 0.0),
            )
        )


def _infeasible() -> Outcome:
    status = Status.INFEASIBLE
    return Outcome(status, None, Report(status, math.inf, math.inf, math.inf, 0.0))
