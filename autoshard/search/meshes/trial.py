"""Tries one choice: cuts the step, prices its stages, orders its tasks, then cuts again.

The cut balances the busy times of the meshes. With one stage per mesh, the trial first uses the
shares of the joint bound. There the first meshes get more blocks, because they work while the
pipeline fills and drains, if memory holds the microbatches that then wait. If the prices differ
from what the cut expected, the trial cuts once more. If memory is too small, or has no room for as
many microbatches as there are meshes, the stages are priced again with a tighter memory limit.
Where what stages save is chosen, it is for every cut (`autoshard.search.meshes.keep.chosen`): that
makes the room for microbatches, and only stages without a plan get a tighter limit.

Prices are rough at first, to compare choices; `Trial.finish` finds better ones for a candidate.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial

import numpy as np

from autoshard.lower.mpmd.partition import Partition
from autoshard.search.meshes.bounds.ranking import Ranked
from autoshard.search.meshes.bounds.relaxation import Floats
from autoshard.search.meshes.candidate import Candidate
from autoshard.search.meshes.cuts import even, tapered
from autoshard.search.meshes.keep.chosen import Chosen, Cutter, choose_saved
from autoshard.search.meshes.plan import Choice
from autoshard.search.meshes.problem import (
    TICK,
    MemoryShortageError,
    loop_seconds,
    outer_seconds,
    schedule_problem,
)
from autoshard.search.meshes.request import Request
from autoshard.search.meshes.stage_prices import LEVELS, StagePrices
from autoshard.search.meshes.stage_program import Mode, StageProgram, stage_programs
from autoshard.solve import Status
from autoshard.solve.limit_hit import LimitHit
from autoshard.solve.schedule.faults import ScheduleError
from autoshard.solve.schedule.instance import Instance
from autoshard.solve.schedule.named import named_orders
from autoshard.solve.schedule.optimise import solve
from autoshard.solve.schedule.optimise.outcome import ScheduleOutcome
from autoshard.solve.schedule.task import Order
from autoshard.solve.schedule.timeline import simulate

ORDER_GAP = 0.002
"""The relative gap at which an order is good enough."""
ORDER_SHARE = 0.25
"""The fraction of a trial's time that each of its orders gets."""


@dataclass(slots=True)
class Trial:
    """The trial of one choice.

    Attributes:
      rows: the results, one for each cut.
      found: the candidates.
      late: whether the time was over before all cuts were tried.
      interrupted: whether the user interrupted it.
    """

    request: Request
    prices: StagePrices
    choice: Ranked
    rows: list[Choice] = field(default_factory=list)
    found: list[Candidate] = field(default_factory=list)
    late: bool = False
    interrupted: bool = False

    def run(self, seconds: float) -> None:
        """Try all cuts, in about this many seconds."""
        stop = time.monotonic() + seconds
        choice, tried = self.choice, set[tuple[int, ...]]()
        relaxed, stages = choice.relaxed, choice.placement.stages
        makers: list[Callable[[Floats], tuple[int, ...]]] = [partial(even, relaxed)]
        if choice.bound.blocks and stages == len(self.request.limits):
            makers.insert(0, partial(tapered, relaxed, choice.bound.blocks))
        for maker in makers:
            scale = np.ones(stages)
            for _ in range(2):
                counts = maker(scale)
                if counts in tried:
                    break
                if self.found and time.monotonic() >= stop:
                    self.late = True
                    return
                tried.add(counts)
                spent = self._order(counts, stop)
                if self.interrupted or spent is None:
                    return
                scale = np.array(spent) / relaxed.stage_seconds(counts, np.ones(stages))

    def finish(self, candidate: Candidate, seconds: float) -> None:
        """Find final prices for the stages of a candidate of this choice, and order its tasks."""
        counts = tuple(map(len, candidate.partition.cut.stages.names))
        stop = time.monotonic() + seconds
        self._order(counts, stop, rough=False, titles=candidate.titles)

    def _cutter(self, counts: tuple[int, ...]) -> Cutter:
        """Return what cuts the step into stages with these counts of blocks, each way once."""

        @cache
        def cut(titles: tuple[str, ...]) -> tuple[Partition, tuple[StageProgram, ...]]:
            partition = self.request.cut(self.choice.microbatches, counts, titles)
            return partition, stage_programs(partition, self.choice.mode)

        return cut

    def _chosen(
        self, cut: Cutter, stop: float, level: int, titles: tuple[str, ...]
    ) -> Chosen | str:
        """Return what the stages save, or why there is no choice."""
        if titles or not self.request.titles:
            return Chosen(titles)
        return choose_saved(self.request, self.prices, self.choice, cut, stop, level)

    def _order(
        self,
        counts: tuple[int, ...],
        stop: float,
        *,
        rough: bool = True,
        titles: tuple[str, ...] = (),
    ) -> Sequence[float] | None:
        """Return the seconds of every stage, or None without prices; also order the tasks.

        Args:
          titles: what the stages save, if that is decided.
        """
        choice, request = self.choice, self.request
        mode, placement = choice.mode, choice.placement
        cut = self._cutter(counts)
        spent, note = None, ""
        for level in range(len(LEVELS)):
            left = max(stop - time.monotonic(), 0.0)
            until = time.monotonic() + left / 2
            chosen = self._chosen(cut, until, level, titles)
            if isinstance(chosen, str):
                note = note or chosen
                continue
            partition, programs = cut(chosen.titles)
            bricks = choice.bricks_of(chosen.titles)
            prices = self.prices.of(
                partition, programs, placement, bricks, until, level, rough=rough
            )
            if isinstance(prices, str):
                note = note or prices
                break
            spent = [one.busy_seconds(choice.microbatches) for one in prices]
            mesh_of, cluster, limits = placement.mesh_of, request.cluster, request.limits
            try:
                instance = schedule_problem(
                    partition, prices, mesh_of, cluster, limits, mode, name=request.name
                )
            except MemoryShortageError as error:
                note = str(error)
                continue
            outer = outer_seconds(partition, prices, mesh_of, cluster)
            outcome = solve(instance, time_limit=max(left * ORDER_SHARE, 0.2), gap=ORDER_GAP)
            if outcome.order is None:
                self.late = True
                note = "no order was found in time"
                break
            dispatch = tuple(mesh.dispatch_seconds for mesh in cluster.meshes)
            outcome = dispatched(outcome, mode, dispatch)
            one = Candidate(
                choice, partition, programs, prices, instance, outer, dispatch, outcome,
                chosen.titles,
            )  # fmt: skip
            self._row(one.step_seconds, min(one.bound, chosen.bound))
            self.found.append(one)
            self.interrupted = outcome.limit_hit is LimitHit.INTERRUPTED
            roomy = bool(chosen.titles) or _roomy(instance)  # a choice makes its own room
            if self.interrupted or roomy or time.monotonic() >= stop:
                return spent
            note = ""
        if note:
            self._row(None, None, note)
        return spent

    def _row(self, seconds: float | None, bound: float | None, note: str = "") -> None:
        choice = self.choice
        stages, m = choice.placement.stages, choice.microbatches
        self.rows.append(Choice(choice.title, stages, m, seconds, bound, note))


def dispatched(
    outcome: ScheduleOutcome, mode: Mode, dispatch_seconds: Sequence[float]
) -> ScheduleOutcome:
    """Return the outcome, or a named schedule if that is faster with dispatch times included."""
    instance, order = outcome.instance, outcome.order
    assert order is not None

    def seconds(one: Order) -> float:
        try:
            return loop_seconds(instance, one, mode, dispatch_seconds)
        except ScheduleError:  # it needs too much memory
            return math.inf

    if seconds(order) <= float(outcome.value or 0) * TICK:
        return outcome
    best = min([order, *named_orders(instance).values()], key=seconds)
    timeline = simulate(instance, best)
    status = outcome.status if timeline.makespan <= outcome.bound else Status.FEASIBLE
    return replace(outcome, status=status, order=best, timeline=timeline)


def _roomy(instance: Instance) -> bool:
    """Return whether every mesh can keep as many microbatches of its stages as there are meshes."""
    assert instance.memory_limit is not None
    wanted = min(instance.meshes, instance.microbatches)
    return all(
        limit >= wanted * sum(instance.memory_forward[s] for s in instance.on(mesh))
        for mesh, limit in enumerate(instance.memory_limit)
    )
