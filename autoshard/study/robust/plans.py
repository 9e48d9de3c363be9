"""The plans that are known, what each takes on any machine of the box, and what none undercuts.

Searches at different points of the box are one question with other prices: the problems of all mesh
shapes are built once and priced anew, each search begins with plans and duals of the last one
(`autoshard.search.warm_start`). Plans are priced by the independent evaluator.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from autoshard.cost.step_prices import StepPrices, step_prices
from autoshard.machine.machine import Machine
from autoshard.plan.copies import ANEW, value_trips
from autoshard.plan.decisions import Decisions
from autoshard.plan.evaluate import Evaluation, evaluate
from autoshard.plan.plan import MeshShape
from autoshard.problem.memo import Shared
from autoshard.problem.requirements.demands import Demands
from autoshard.problem.requirements.records import Requirement
from autoshard.program.facts import Facts
from autoshard.program.trace import Program
from autoshard.search.all_shapes import NoPlanError, explore
from autoshard.search.assemble import forecasted
from autoshard.search.memory_loop import explore_fitting
from autoshard.search.one_shape import Found, MeshSearcher
from autoshard.search.options import SearchOptions, WarmStart
from autoshard.search.search import prepare
from autoshard.search.warm_start import Earlier
from autoshard.solve.limit_hit import LimitHit
from autoshard.solve.whole import tightened
from autoshard.study.robust.scenarios import Box, Point, least_at

LEAST_SECONDS = 0.5
"""No search begins with less time than this."""
TIGHTENING = 0.2
"""At most this part of a search's time goes to messages for the searches to come."""
PRICES = 32
"""Of so many points and meshes the cost laws are kept, and what they found."""


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """A plan: decisions on a mesh."""

    shape: MeshShape
    decisions: Decisions


@dataclass(slots=True, eq=False)
class Plans:
    """See the module.

    Attributes:
      program, flow: the program, and its data flow on the machine as it is taken. What a compiler
        fuses is taken to follow that, and not what the machine proves to be.
      box: of machines, with the least memory that ranges allow.
      loose: a machine with the most memory that they allow.
      mesh: the only mesh shape, or None.
      limit: bytes per device that a plan may use; a plan must keep it with the least memory.
      loose_limit: what plans might use if memory is at its most.
      requirements: that every plan keeps, whatever the machine proves to be: a plan's collectives
        are those that it has on the machine as it is taken.
      gap: of every search.
      until: when time is up (`time.monotonic`).
      each: seconds that one search may take.
      heard: called with what is being done.
    """

    program: Program
    flow: Facts
    box: Box
    loose: Machine
    mesh: Mapping[str, int | Sequence[int]] | None
    limit: float
    loose_limit: float
    gap: float
    requirements: tuple[Requirement | str, ...] = ()
    until: float = math.inf
    each: float = 60.0
    heard: Callable[[str], None] = print
    known: list[Known] = field(default_factory=list)
    bounds: dict[Point, float] = field(default_factory=dict)
    earlier: dict[tuple[int, ...], Earlier] = field(default_factory=dict)
    shared: dict[tuple[int, ...], Shared] = field(default_factory=dict)
    shared_loose: dict[tuple[int, ...], Shared] = field(default_factory=dict)
    tightened: set[tuple[int, ...]] = field(default_factory=set)
    searches: int = 0
    _prices: dict[tuple[Point, tuple[int, ...]], StepPrices] = field(default_factory=dict)
    _seconds: dict[tuple[Point, int, bool], float] = field(default_factory=dict)
    _dues: dict[int, float] = field(default_factory=dict)
    _demands: Demands | None = None

    @property
    def demands(self) -> Demands:
        """What the requirements, and those of the program itself, ask of its values."""
        if self._demands is None:
            self._demands = self.searcher()[0].demands or Demands(self.program)
        return self._demands

    def left(self) -> float:
        """Seconds until the time is up."""
        return self.until - time.monotonic()

    def may_search(self) -> bool:
        """Whether there is time for another search."""
        return self.left() > LEAST_SECONDS

    def prices(self, point: Point, sizes: tuple[int, ...]) -> StepPrices:
        """The cost laws at a point, on a mesh of these sizes."""
        key = point, sizes
        if key not in self._prices:
            while len(self._prices) >= PRICES:
                del self._prices[next(iter(self._prices))]
            machine = self.box.at(point)
            flow = self.demands.facts(self.flow)
            self._prices[key] = step_prices(self.program, flow, machine, sizes)
        return self._prices[key]

    def evaluation(self, point: Point, plan: int) -> Evaluation:
        """A plan at a point, by the evaluator."""
        one = self.known[plan]
        return evaluate(self.prices(point, one.shape.sizes), one.decisions, one.shape.names)

    def dues(self, plan: int) -> float:
        """The prices, in seconds, of the requirements that a plan breaks."""
        if plan not in self._dues:
            self._dues[plan] = self._dues_of(self.known[plan].shape, self.known[plan].decisions)
        return self._dues[plan]

    def _dues_of(self, shape: MeshShape, decisions: Decisions) -> float:
        prices = self.prices(self.box.taken, shape.sizes)
        here = forecasted(prices, decisions, evaluate(prices, decisions, shape.names))
        return self.demands.penalty(here, decisions, shape)

    def seconds(self, point: Point, plan: int, *, steady: bool = False) -> float:
        """What a step of a plan takes at a point, with what the requirements cost that it breaks.

        With `steady`, reshards keep the sequences of collectives that they have on the machine as
        it is taken, where another would take less.
        """
        key = point, plan, steady
        if key not in self._seconds:
            found = self._seconds.get((point, plan, False))
            if found is None:
                found = self.evaluation(point, plan).estimate.step_seconds + self.dues(plan)
                self._seconds[point, plan, False] = found
            if steady:
                found += self._lost_by_steadiness(point, plan)
            self._seconds[key] = found
        return self._seconds[key]

    def _lost_by_steadiness(self, point: Point, plan: int) -> float:
        one = self.known[plan]
        sizes = one.shape.sizes
        now, before = self.prices(point, sizes), self.prices(self.box.taken, sizes)
        return lost_by_steadiness(now, before, one.decisions)

    def least(self, point: Point) -> float:
        """What no plan undercuts at a point."""
        if point in self.bounds:
            return max(self.bounds[point], least_at(self.bounds, point))
        return least_at(self.bounds, point)

    def most(self, point: Point) -> float:
        """What the best plan that is known takes at a point."""
        return min(self.seconds(point, plan) for plan in range(len(self.known)))

    def behind(self, point: Point, plan: int) -> float:
        """How often the best plan that is known goes into the seconds of a plan at a point."""
        own, best = self.seconds(point, plan), self.most(point)
        return own / best if best > 0 else 1.0 if own <= 0 else math.inf

    def solve(self, point: Point) -> int | None:
        """Search at a point; the plan that was found, if one was.

        Raises:
          InfeasibleError: no plan fits.
        """
        plan = self._searched(self.box.at(point), point, self.limit)
        if self.loose_limit > self.limit or self.loose.chip != self.box.machine.chip:
            # With more memory there may be better plans: only such a search proves a bound.
            del self.bounds[point]
            loose = Box(self.loose, self.box.axes)
            self._searched(loose.at(point), point, self.loose_limit, bound_only=True)
        return plan

    def _searched(
        self, machine: Machine, point: Point, limit: float, *, bound_only: bool = False
    ) -> int | None:
        asked = SearchOptions(
            mesh=self.mesh,
            memory_limit=limit,
            time_limit=max(min(self.each, self.left()), LEAST_SECONDS),
            gap=self.gap,
            requirements=self.requirements,
        )
        known = WarmStart(
            facts=self.flow,
            earlier=dict(self.earlier),
            shared=self.shared_loose if bound_only else self.shared,
            only_better=True,
            counted_on=self.box.machine,
        )
        searcher, shapes = prepare(self.program, machine, asked, known)
        self.searches += 1
        look = explore if bound_only else explore_fitting
        try:
            found = look(searcher, sorted(shapes, key=self._promise))
        except NoPlanError:
            self.bounds[point] = searcher.ideal
            return None
        if found.limit_hit is LimitHit.INTERRUPTED:
            raise KeyboardInterrupt
        if not bound_only:
            for sizes, one in searcher.found.items():
                self._learn(sizes, one)
        bounds = [bound for _, bound, _ in found.table]
        if bound_only:
            prices = searcher.prices(found.shape.sizes)
            there = evaluate(prices, found.decisions, found.shape.names)
            dues = self._dues_of(found.shape, found.decisions)
            self.bounds[point] = min([there.estimate.step_seconds + dues, *bounds])
            return None
        plan = self.add(found.shape, found.decisions)
        self.bounds[point] = min([self.seconds(point, plan), *bounds])
        return plan

    def _learn(self, sizes: tuple[int, ...], one: Found) -> None:
        """Keep what a search found on a mesh shape for the next one, with messages if they prove.

        Problems that presolve and a linear program solve at once bring none; here the same problem
        comes again and again, and with messages it is done with in a moment.
        """
        if one.earlier is None:
            return
        duals = one.earlier.duals
        if duals.messages is None and sizes not in self.tightened and one.outcome.solution:
            self.tightened.add(sizes)
            limit = max(min(TIGHTENING * self.each, self.left()), 0.0)
            duals = tightened(one.built.problem, one.outcome, time_limit=limit).duals
        before = self.earlier.get(sizes)
        if duals.messages is None and before is not None:
            duals = before.duals
        self.earlier[sizes] = replace(one.earlier, duals=duals)

    def _promise(self, shape: MeshShape) -> float:
        known = self.earlier.get(shape.sizes)
        return math.inf if known is None else known.objective

    def add(self, shape: MeshShape, decisions: Decisions) -> int:
        """The number of a plan, which is known from now on."""
        for number, one in enumerate(self.known):
            if one.shape.sizes == shape.sizes and one.decisions == decisions:
                return number
        self.known.append(Known(shape, decisions))
        return len(self.known) - 1

    def shapes(self) -> list[MeshShape]:
        """The mesh shapes that are searched, those with the cheapest plans first."""
        return sorted(self.searcher()[1], key=self._promise)

    def searcher(self) -> tuple[MeshSearcher, list[MeshShape]]:
        """What a search with the least memory on the machine as it is taken needs."""
        asked = SearchOptions(
            mesh=self.mesh,
            memory_limit=self.limit,
            gap=self.gap,
            requirements=self.requirements,
        )
        return prepare(self.program, self.box.machine, asked, WarmStart(facts=self.flow))


def lost_by_steadiness(now: StepPrices, before: StepPrices, decisions: Decisions) -> float:
    """Seconds a step by which reshards that keep their sequences are dearer than the cheapest ones.

    Args:
      now: prices of which the seconds are.
      before: prices whose cheapest sequences are kept.
    """
    lost = 0.0
    for value, copy in enumerate(decisions.copy):
        stored = decisions.stored[value]
        if copy is None or stored is None:
            continue
        table = now.reshard(value)
        steps = before.reshard(value).steps(stored, copy)
        kept = table.seconds_of(steps)
        cheapest = table.seconds[table.index(stored), table.index(copy)]
        times = (2 if decisions.mode[value] == ANEW else 1) * value_trips(now.program, value)
        exposed = now.exposed_of_copies(value)
        lost += max(kept - cheapest, 0.0) * times * exposed
    return lost
