"""The step of a plan with one of its stages otherwise: the schedule, priced again.

    staged = StagedPlan.of(plan, step, params, opt_state, batch, donate_argnums=(0, 1))
    staged.now.seconds                          # of a step, at the prices of today
    staged.with_stage(2, price).seconds         # where stage 2 has this price

A stage that has another price changes the schedule problem: its tasks take longer, a microbatch
keeps more, or its state leaves less room for microbatches. The order of the plan stays, unless
memory does not allow it, or an order is found that is faster by more than a search would care for.
Where the stage does not fit, the step is priced without a memory limit, to say what there would be
to gain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from autoshard.lower.mpmd.partition import Partition
from autoshard.machine.cluster import Cluster, load_cluster
from autoshard.machine.machine import Machine
from autoshard.plan.plan import Plan, PlanError
from autoshard.program.trace import Program
from autoshard.search.meshes.explain.names import named, numbered
from autoshard.search.meshes.matching import Matched, matched
from autoshard.search.meshes.plan import PipelinePlan
from autoshard.search.meshes.price import StagePrice, price
from autoshard.search.meshes.problem import (
    TICK,
    MemoryShortageError,
    loop_seconds,
    outer_seconds,
    schedule_problem,
)
from autoshard.search.meshes.trial import ORDER_GAP, dispatched
from autoshard.solve.schedule.faults import ScheduleError
from autoshard.solve.schedule.instance import Instance, Number
from autoshard.solve.schedule.optimise import InfeasibleLimitError, solve
from autoshard.solve.schedule.task import Order
from autoshard.solve.schedule.timeline import simulate
from autoshard.units import format_seconds

NO_LIMIT = 2.0**50
"""Bytes of a device that are never reached."""
ORDER_SECONDS = 2.0
"""The most seconds that an order is looked for."""
LITTLE, FURTHEST = 0.01, 64.0
"""Of the time of a stage for a microbatch: what is little more, and how far is looked."""
CLOSE = 0.1
"""Shares of time are alike that differ by no more."""


@dataclass(frozen=True, slots=True)
class StepPrice:
    """The price of a step.

    Attributes:
      seconds: of the step; None where it cannot be run.
      peak_bytes: of a device, by mesh.
      fits: whether that is within the memory limits.
      why: where it does not fit, the reason.
    """

    seconds: float | None
    peak_bytes: tuple[float, ...] = ()
    fits: bool = True
    why: str = ""


@dataclass(frozen=True, slots=True)
class Share:
    """What of the time that a stage works more the step takes longer, in the order of the plan.

    The first microbatch comes through each stage before others can begin, so that there is always
    some; a stage for which nobody else waits adds no more than that.

    Attributes:
      added: so much of it as a share, as long as the stage works little more.
      room_seconds: for so much more of each microbatch it is at most `CLOSE` above that; infinite
        where it never is.
    """

    added: float
    room_seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class StagedPlan:
    """A plan with the step that it is for.

    Attributes:
      step: the step, cut into the stages of the plan.
      programs: of the stages, traced, with the step's names.
      prices: of the stages, at the prices of today.
      now: the price of the step as planned.
    """

    plan: PipelinePlan
    cluster: Cluster
    step: Matched
    programs: tuple[Program, ...]
    prices: tuple[StagePrice, ...]
    order_seconds: float = ORDER_SECONDS
    _now: list[StepPrice] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        plan: PipelinePlan,
        fn: Callable[..., Any],
        *args: Any,
        donate_argnums: int | Sequence[int] = (),
    ) -> StagedPlan:
        """Return the plan with its step.

        Raises:
          PlanError: the plan is for another step, or does not hold the plans of its stages.
        """
        if not plan.stage_plans:
            raise PlanError(
                f"the plan of {plan.program!r} was saved without the plans of its stages, from "
                "which values are explained: search again"
            )
        step = matched(plan, fn, *args, donate_argnums=donate_argnums)
        cluster = load_cluster(plan.cluster)
        sent = numbered(step.programs)
        programs, prices = [], []
        for one, planned, mesh in zip(step.programs, plan.stage_plans, plan.mesh_of, strict=True):
            program = named(one.traced(), one, step.partition, sent)
            if planned.fingerprint != program.fingerprint:
                raise PlanError(
                    f"stage {one.stage} was planned as program {planned.fingerprint}, and traces "
                    f"to {program.fingerprint}: other shapes, other code or another version of "
                    "JAX; search again"
                )
            programs.append(program)
            prices.append(price(planned, program, cluster.meshes[mesh], one.arguments))
        return cls(plan, cluster, step, tuple(programs), tuple(prices))

    def machine(self, stage: int) -> Machine:
        """Return the machine of a stage's mesh."""
        return self.cluster.meshes[self.plan.mesh_of[stage]]

    @property
    def now(self) -> StepPrice:
        """Return the price of the step as planned."""
        if not self._now:
            self._now.append(self._priced(self.prices, self.step.partition))
        return self._now[0]

    @property
    def notes(self) -> list[str]:
        """Return what a reader should know of these prices."""
        now, then = self.now.seconds, self.plan.step_seconds
        if now is None or abs(now - then) <= 1e-6 * then:
            return []
        return [
            f"the plan says {format_seconds(then)} a step; at the prices of today, and in an order "
            f"of tasks that was looked for now, it is {format_seconds(now)}"
        ]

    def with_stage(
        self, stage: int, other: StagePrice, partition: Partition | None = None
    ) -> StepPrice:
        """Return the price of the step with another price of one stage.

        Args:
          partition: the step in these stages, if it is cut otherwise.
        """
        prices = [other if s == stage else one for s, one in enumerate(self.prices)]
        return self._priced(prices, partition or self.step.partition)

    def with_plan(self, stage: int, plan: Plan) -> StepPrice:
        """Return the price of the step with another plan of one stage."""
        arguments = self.step.programs[stage].arguments
        found = price(plan, self.programs[stage], self.machine(stage), arguments)
        return self.with_stage(stage, found)

    def share(self, stage: int) -> Share:
        """Return what the step takes longer where a stage works more."""
        instance, count = self.instance(self.prices), self.plan.microbatches
        before = self._loop(instance, self.plan.order)
        own = float(sum(_times(instance, stage))) * TICK

        def added(more: float) -> float:
            longer = _longer(instance, stage, more / TICK)
            return (self._loop(longer, self.plan.order) - before) / (count * more)

        first = added(own * LITTLE)
        # The end of a fixed order is the most of sums of times, so that the share never falls.
        most = own * LITTLE
        while added(most) <= first + CLOSE:
            most *= 2
            if most > own * FURTHEST:
                return Share(first, math.inf)
        least = most / 2
        while most - least > own * LITTLE / 2:
            middle = (least + most) / 2
            least, most = (middle, most) if added(middle) <= first + CLOSE else (least, middle)
        return Share(first, least)

    def _loop(self, instance: Instance, order: Order) -> float:
        unlimited = replace(instance, memory_limit=None)
        return loop_seconds(unlimited, order, self.plan.mode, self.plan.dispatch_seconds)

    def instance(
        self,
        prices: Sequence[StagePrice],
        partition: Partition | None = None,
        limits: Sequence[float] = (),
    ) -> Instance:
        """Return the schedule problem of the stages with these prices, as planned by default.

        Raises:
          MemoryShortageError: a mesh cannot hold its stages and one microbatch.
        """
        plan = self.plan
        return schedule_problem(
            partition or self.step.partition,
            prices,
            plan.mesh_of,
            self.cluster,
            limits or plan.memory_limit,
            plan.mode,
            name=plan.program,
        )

    def _priced(self, prices: Sequence[StagePrice], partition: Partition) -> StepPrice:
        why = ""
        for limits in (self.plan.memory_limit, (NO_LIMIT,) * len(self.cluster.meshes)):
            try:
                instance = self.instance(prices, partition, limits)
                orders = self._orders(instance)
            except (InfeasibleLimitError, MemoryShortageError) as error:
                why = why or " ".join(str(error).replace("\n  * ", " ").split())
                continue
            outer = max(outer_seconds(partition, prices, self.plan.mesh_of, self.cluster))
            order, *others = orders
            for other in others:
                if self._loop(instance, other) < self._loop(instance, order) * (1 - ORDER_GAP):
                    order = other
            peaks = simulate(instance, order, limited=False).peak_memory
            fixed = self._fixed_bytes(prices)
            total = tuple(a + float(b) for a, b in zip(fixed, peaks, strict=True))
            return StepPrice(self._loop(instance, order) + outer, total, not why, why)
        return StepPrice(None, fits=False, why=why)

    def _orders(self, instance: Instance) -> list[Order]:
        """Return the plan's order, if there is room for it, and one that is looked for."""
        found = []
        try:
            simulate(instance, self.plan.order)
            found.append(self.plan.order)
        except ScheduleError:  # it takes too much memory
            pass
        outcome = solve(
            instance, time_limit=self.order_seconds, gap=ORDER_GAP, warm_starts=found, threads=1
        )
        if outcome.order is not None:
            best = dispatched(outcome, self.plan.mode, self.plan.dispatch_seconds).order
            assert best is not None
            found.append(best)
        return found

    def _fixed_bytes(self, prices: Sequence[StagePrice]) -> list[float]:
        found = []
        for mesh in range(len(self.cluster.meshes)):
            here = [one for one, m in zip(prices, self.plan.mesh_of, strict=True) if m == mesh]
            resident = sum(one.resident_bytes for one in here)
            found.append(resident + max((one.workspace_bytes for one in here), default=0.0))
        return found


def _times(instance: Instance, stage: int) -> list[Number]:
    """Return what F, B and W of a stage take."""
    return [times[stage] for times in (instance.forward, instance.backward, instance.weight)]


def _longer(instance: Instance, stage: int, ticks: float) -> Instance:
    """Return a schedule problem in which a stage takes longer for a microbatch, in proportion."""
    own = _times(instance, stage)
    factor = 1 + ticks / max(float(sum(own)), 1.0)

    def changed(times: Sequence[Number]) -> tuple[Number, ...]:
        return tuple(t * factor if s == stage else t for s, t in enumerate(times))

    return replace(
        instance,
        forward=changed(instance.forward),
        backward=changed(instance.backward),
        weight=changed(instance.weight),
    )
