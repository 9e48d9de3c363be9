"""A candidate: a placement with prices and an order, which the search compares; and its plan."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from autoshard.lower.mpmd.partition import Partition
from autoshard.machine.cluster import Cluster
from autoshard.machine.machine import Machine
from autoshard.plan.records import Work
from autoshard.search.meshes.bounds.ranking import Ranked
from autoshard.search.meshes.keep.saved import stage_saves
from autoshard.search.meshes.plan import Choice, OneMesh, PipelinePlan, Sharding
from autoshard.search.meshes.price import StagePrice
from autoshard.search.meshes.problem import TICK, host_kept, host_limit, loop_seconds, runnable
from autoshard.search.meshes.stage_program import StageProgram
from autoshard.solve.limit_hit import LimitHit
from autoshard.solve.schedule.instance import Instance
from autoshard.solve.schedule.optimise.outcome import ScheduleOutcome
from autoshard.solve.schedule.task import Order


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A choice with prices and its best order so far.

    Attributes:
      choice: microbatches, placement and mode.
      prices: the price of every stage on its mesh.
      outer: seconds of the work that is done once a step, by mesh.
      dispatch: seconds that the controller takes to enqueue one program, by mesh.
      titles: what the stages save; none where that is what the program says.
    """

    choice: Ranked
    partition: Partition
    programs: tuple[StageProgram, ...]
    prices: tuple[StagePrice, ...]
    instance: Instance
    outer: tuple[float, ...]
    dispatch: tuple[float, ...]
    outcome: ScheduleOutcome
    titles: tuple[str, ...] = ()

    @property
    def step_seconds(self) -> float:
        """Return the seconds of a step: the loop until its last task, then the longest update."""
        order = self.outcome.order
        if order is None:
            return math.inf
        loop = loop_seconds(self.instance, order, self.choice.mode, self.dispatch)
        return loop + max(self.outer)

    @property
    def bound(self) -> float:
        """Return a lower bound in seconds for all orders of these tasks."""
        return float(self.outcome.bound) * TICK + max(self.outer)


def pipeline_plan(
    best: Candidate,
    cluster: Cluster,
    *,
    name: str,
    limits: Sequence[float],
    ideal: float,
    choices: Sequence[Choice],
    one_mesh: OneMesh | None,
    limit_hit: LimitHit | None,
    seconds: float,
    work: Work,
    notes: tuple[str, ...] = (),
    accumulated: bool = False,
) -> PipelinePlan:
    """Return the plan of a candidate that has an order.

    Args:
      limits: usable bytes per device, by mesh.
      ideal: a lower bound in seconds for all plans on the cluster.
      work: of the whole step on the cluster.
      notes: what a reader of the plan should know of the search.
      accumulated: whether the step is cut into microbatches that it is not written in.
    """
    order: Order | None = best.outcome.order
    assert order is not None
    meshes = range(len(cluster.meshes))
    on = [[s for s, d in enumerate(best.choice.placement.mesh_of) if d == mesh] for mesh in meshes]
    prices, placement, mode = best.prices, best.choice.placement, best.choice.mode
    hosted = any(one.host_bytes or one.host_resident_bytes for one in prices)
    return PipelinePlan(
        program=name,
        cluster=cluster.name,
        described=str(cluster),
        machines=tuple(machine.name for machine in cluster.meshes),
        shapes=tuple(prices[here[0]].mesh for here in on),
        stages=best.partition.cut.stages.names,
        mesh_of=placement.mesh_of,
        placement=placement.name,
        mode=mode,
        order=runnable(order, mode),
        instance=best.instance,
        outer_seconds=best.outer,
        dispatch_seconds=best.dispatch,
        memory_limit=tuple(limits),
        fixed_bytes=tuple(
            sum(prices[s].resident_bytes for s in here)
            + max(prices[s].workspace_bytes for s in here)
            for here in on
        ),
        **(_on_host(prices, on, cluster) if hosted else {}),
        bound=min(ideal, best.step_seconds),
        order_bound=best.bound,
        shardings=tuple(
            tuple(map(Sharding, program.arguments, one.specs))
            for program, one in zip(best.programs, prices, strict=True)
        ),
        choices=tuple(choices),
        one_mesh=one_mesh,
        limit_hit=limit_hit,
        seconds=seconds,
        saves=stage_saves(best.partition, best.titles),
        stage_plans=tuple(one.plan for one in prices),
        flags=tuple(map(flags_of, cluster.meshes)),
        notes=notes,
        work=work,
        accumulated=accumulated,
    )


def _on_host(
    prices: Sequence[StagePrice], on: Sequence[Sequence[int]], cluster: Cluster
) -> dict[str, tuple[float, ...]]:
    """Return the fields of a plan that say what lies in the memory of hosts."""
    return {
        "host_kept": tuple(map(float, host_kept(prices))),
        "host_fixed": tuple(sum(prices[s].host_resident_bytes for s in here) for here in on),
        "host_limit": tuple(float(host_limit(machine)) for machine in cluster.meshes),
    }


def flags_of(machine: Machine) -> str:
    """The set of flags that programs for a machine are compiled with."""
    own = machine.chip.compiler
    return own.flags if own.name == "xla:gpu" else "default"
