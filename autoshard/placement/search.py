"""A step and a cluster in; stages, meshes, shardings and the order of tasks out.

    plan = search_meshes({8: step}, load_cluster("4 x v5p-16"), time_limit=120)

For every number of stages and of microbatches, and for backward passes in one task and in two: cut
the step, plan and price every different stage on every kind of mesh, cut again where the prices
show that some meshes have too much, and solve the order for every placement. The fewest stages come
first; what they cost says which of the others promise most. What is left of the time goes to the
order of the best.

The bound is what no plan on several meshes undercuts: all work, with the fewest microbatches,
perfectly shared (`autoshard.placement.ideal`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autoshard.cluster import Cluster
from autoshard.mpmd.partition import Partition, partition_step
from autoshard.placement.candidate import Candidate, pipeline_plan
from autoshard.placement.choices import Placement, mesh_speeds, ranked_choices
from autoshard.placement.ideal import ideal_seconds
from autoshard.placement.one_mesh import plan_one_mesh
from autoshard.placement.plan import Choice, OneMesh, PipelinePlan
from autoshard.placement.price import Pricer, StagePrice
from autoshard.placement.problem import (
    MemoryShortageError,
    outer_seconds,
    schedule_problem,
)
from autoshard.placement.stage_program import Mode, StageProgram, stage_programs
from autoshard.plan import MeshShape
from autoshard.program import trace
from autoshard.schedule import ScheduleError
from autoshard.search import InfeasibleError, NoPlanError
from autoshard.solve.schedule import solve

Step = tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]]
"""A step, its arguments, and options of `autoshard.trace` (`donate_argnums`)."""


def search_meshes(
    steps: Mapping[int, Step],
    cluster: Cluster,
    *,
    name: str = "step",
    whole_step: Step | None = None,
    stages: Sequence[int] | None = None,
    modes: Sequence[Mode] = ("fused", "split"),
    memory_limit: float | None = None,
    time_limit: float = 120.0,
    gap: float = 0.01,
    compare: bool = True,
    progress: Callable[[str], None] | None = None,
) -> PipelinePlan:
    """Place a step on several meshes.

    Args:
      steps: for every number of microbatches that may be chosen the step, whose gradients are
        computed by `autoshard.accumulate_grads` with as many.
      cluster: the meshes.
      name: what the program is called.
      whole_step: the step without microbatches, for one mesh of all chips; by default the step
        with the fewest.
      stages: numbers of stages that may be chosen; by default 1, 2 and 4 for each mesh.
      modes: whether backward passes may be one task, or two.
      memory_limit: bytes per device; by default what a chip has less its reserve.
      time_limit: seconds for all.
      gap: stop once proven to be this close to the best.
      compare: whether to plan all chips as one mesh too, where the meshes are alike.
      progress: is told what is done.

    Raises:
      LoopError: a step has no microbatch loop.
      StageError: there are more stages than blocks, or stages that are no multiple of the meshes.
      InfeasibleError: no choice fits the memory; says why for each, and what is needed.
      NoPlanError: the time was over before any plan was found.
      KeyboardInterrupt: an interrupt came before any plan was found.
    """
    return _Search(
        dict(sorted(steps.items())),
        cluster,
        name,
        whole_step,
        None if stages is None else tuple(stages),
        tuple(modes),
        memory_limit,
        time_limit,
        gap,
        compare,
        progress or (lambda news: None),
    ).run()


@dataclass(slots=True)
class _Search:
    steps: dict[int, Step]
    cluster: Cluster
    name: str
    whole_step: Step | None
    stages: tuple[int, ...] | None
    modes: tuple[Mode, ...]
    memory_limit: float | None
    time_limit: float
    gap: float
    compare: bool
    say: Callable[[str], None]
    started: float = field(default_factory=time.monotonic)
    pricer: Pricer = field(default_factory=Pricer)
    shapes: dict[Any, MeshShape] = field(default_factory=dict)
    rows: list[Choice] = field(default_factory=list)
    best: Candidate | None = None
    ideal: float = 0.0
    one_mesh: OneMesh | None = None
    interrupted: bool = False
    late: bool = False

    def run(self) -> PipelinePlan:
        self.pricer = Pricer(self.memory_limit, seconds=max(self.time_limit / 20, 1.0))
        groups = self._groups()
        try:
            self._look(groups)
        except KeyboardInterrupt:
            self.interrupted = True
            if self.best is None:
                raise
        if self.best is None:
            raise self._failure()
        return pipeline_plan(
            self.best,
            self.cluster,
            name=self.name,
            limits=[self.pricer.limit(machine) for machine in self.cluster.meshes],
            ideal=self.ideal,
            choices=self.rows,
            one_mesh=self.one_mesh,
            limit_hit="interrupted" if self.interrupted else "time" if self.late else None,
            seconds=time.monotonic() - self.started,
        )

    def _left(self) -> float:
        return self.started + self.time_limit - time.monotonic()

    def _groups(self) -> list[tuple[int, Placement, Mode]]:
        first = next(iter(self.steps.values()))
        blocks = self._partition(first, 1, None).cut.stages.names[0]
        return ranked_choices(
            self.cluster, self.name, blocks, tuple(self.steps), self.stages, self.modes
        )

    def _look(self, groups: list[tuple[int, Placement, Mode]]) -> None:
        fn, args, options = next(iter(self.steps.values()))
        self.say("bounding all plans by their work")
        self.ideal = ideal_seconds(trace(fn, *args, name=self.name, **options), self.cluster)
        if self.compare and self.cluster.whole() is not None:
            self.say("planning all chips as one mesh")
            steps: list[tuple[int | None, Step]] = list(self.steps.items())
            if self.whole_step is not None:
                steps.insert(0, (None, self.whole_step))
            self.one_mesh = plan_one_mesh(
                steps, self.cluster, self.name, self.memory_limit, self.time_limit * 0.3
            )
        least = min(placement.stages for _, placement, _ in groups)
        first = [one for one in groups if (one[1].stages, one[2]) == (least, self.modes[0])]
        later = [one for one in groups if one not in first]
        for at, group in enumerate(first):
            self._try(*group, self._left() / (len(first) - at + bool(later)))
        later.sort(key=self._promise)
        for at, group in enumerate(later):
            if self._left() <= 0 or self._close():
                self.late = self._left() <= 0
                break
            self._try(*group, self._left() / min(len(later) - at, 4))
        if self.best is not None and self.best.outcome.gap > 0 and not self._close():
            self._polish(self.best)

    def _promise(self, group: tuple[int, Placement, Mode]) -> float:
        """What a choice would come to, from what fewer stages with its microbatches came to.

        The time that meshes wait is taken to shrink with the number of stages a mesh; of two
        choices that promise about the same, that with fewer programs comes first.
        """
        m, placement, mode = group
        known = [
            row.step_seconds / (1 + (len(self.cluster.meshes) - 1) / m)
            for row in self.rows
            if row.step_seconds is not None and row.microbatches == m
        ]
        turns = placement.stages / len(self.cluster.meshes)
        waiting = (len(self.cluster.meshes) - 1) / (m * turns)
        return min(known, default=math.inf) * (1 + waiting) * (1.01 if mode == "split" else 1.0)

    def _close(self) -> bool:
        return self.best is not None and 1 - self.ideal / self.best.step_seconds <= self.gap

    def _partition(self, step: Step, stages: int, speeds: Sequence[float] | None) -> Partition:
        fn, args, options = step
        donate = options.get("donate_argnums", ())
        return partition_step(fn, *args, stages=stages, speeds=speeds, donate_argnums=donate)

    def _try(self, m: int, placement: Placement, mode: Mode, seconds: float) -> None:
        """Price a choice and solve its order; twice, where the prices show an uneven cut."""
        if self._left() <= 0:
            self.late = True
            return
        title = f"{placement.name}, backward {mode}"
        self.say(f"{placement.stages} stages, {m} microbatches, {title}")
        machines = [self.cluster.meshes[mesh] for mesh in placement.mesh_of]
        speeds = placement.speeds(mesh_speeds(self.cluster))
        tried: set[tuple[tuple[str, ...], ...]] = set()
        for turn in range(2):
            partition = self._partition(self.steps[m], placement.stages, speeds)
            if partition.cut.stages.names in tried:
                return
            tried.add(partition.cut.stages.names)
            stop = time.monotonic() + seconds / 2
            programs = stage_programs(partition, mode)
            prices = self._prices(programs, machines, placement, stop)
            if isinstance(prices, str):
                self.rows.append(Choice(title, placement.stages, m, None, None, prices))
                return
            spent = [one.busy_seconds(m) for one in prices]
            self._order(placement, mode, partition, speeds, programs, prices, seconds / 4, title)
            flops = [
                sum(partition.cut.fragments[s, kind].flops for kind in ("F", "BW"))
                for s in range(placement.stages)
            ]
            busy = [
                sum(t for t, d in zip(spent, placement.mesh_of, strict=True) if d == mesh)
                for mesh in range(len(self.cluster.meshes))
            ]
            if turn or max(busy) < 1.03 * sum(busy) / len(busy) or self._left() < seconds:
                return
            speeds = tuple(max(f, 1.0) / t for f, t in zip(flops, spent, strict=True))

    def _prices(
        self,
        programs: Sequence[StageProgram],
        machines: Sequence[Any],
        placement: Placement,
        stop: float,
    ) -> tuple[StagePrice, ...] | str:
        """Prices of all stages, the largest first: it decides the mesh shape of its machine."""
        found: dict[int, StagePrice] = {}
        sizes = [sum(math.prod(a.shape) for group in one.args for a in group) for one in programs]
        for stage in sorted(range(len(programs)), key=lambda s: -sizes[s]):
            machine = machines[stage]
            key = (machine.name, programs[stage].microbatches)
            limit = self._limit(programs, machine, placement, stage)
            left = max(min(stop - time.monotonic(), self._left()), 0.5)
            shape = self.shapes.get(key)
            price = self.pricer.price(programs[stage], machine, shape, limit, left)
            if isinstance(price, str):
                return f"stage {stage} on {machine.name}: {price}"
            self.shapes.setdefault(key, price.mesh)
            found[stage] = price
        return tuple(found[stage] for stage in range(len(programs)))

    def _limit(
        self, programs: Sequence[StageProgram], machine: Any, placement: Placement, stage: int
    ) -> float:
        """What a stage may use of its mesh, whose other stages keep at least their state."""
        others = [
            s
            for s, mesh in enumerate(placement.mesh_of)
            if mesh == placement.mesh_of[stage] and s != stage
        ]
        state = sum(
            math.prod(aval.shape) * aval.dtype.itemsize
            for s in others
            for group in programs[s].args[:2]
            for aval in group
        )
        return max(self.pricer.limit(machine) - state / machine.chips, 1.0)

    def _order(
        self,
        placement: Placement,
        mode: Mode,
        partition: Partition,
        speeds: tuple[float, ...],
        programs: tuple[StageProgram, ...],
        prices: tuple[StagePrice, ...],
        seconds: float,
        title: str,
    ) -> None:
        count, m = placement.stages, partition.microbatches
        limits = [self.pricer.limit(machine) for machine in self.cluster.meshes]
        try:
            instance = schedule_problem(
                partition, prices, placement.mesh_of, self.cluster, limits, mode, name=self.name
            )
            outer = outer_seconds(partition, prices, placement.mesh_of, self.cluster)
            outcome = solve(instance, time_limit=max(min(seconds, self._left()), 0.2), gap=0.002)
        except (MemoryShortageError, ScheduleError) as error:
            self.rows.append(Choice(title, count, m, None, None, str(error)))
            return
        if outcome.order is None:
            self.late = True
            self.rows.append(Choice(title, count, m, None, None, "no order was found in time"))
            return
        found = Candidate(
            placement, mode, partition, speeds, programs, prices, instance, outer, outcome
        )
        self.rows.append(Choice(title, count, m, found.step_seconds, found.bound))
        if self.best is None or found.step_seconds < self.best.step_seconds:
            self.best = found
        if outcome.limit_hit == "interrupted":
            raise KeyboardInterrupt

    def _polish(self, best: Candidate) -> None:
        """Spend what is left of the time on the order of the best choice."""
        self.say(f"improving the order of {best.placement.name}")
        order = best.outcome.order
        assert order is not None
        outcome = solve(
            best.instance, time_limit=max(self._left(), 0.1), warm_starts=[order], gap=0.0005
        )
        self.late = self.late or outcome.limit_hit == "time"
        found = Candidate(
            best.placement,
            best.mode,
            best.partition,
            best.speeds,
            best.programs,
            best.prices,
            best.instance,
            best.outer,
            outcome,
        )
        if found.step_seconds <= best.step_seconds:
            self.best = found
        if outcome.limit_hit == "interrupted":
            raise KeyboardInterrupt

    def _failure(self) -> Exception:
        reasons = list(dict.fromkeys(_reason(row) for row in self.rows))
        listed = "".join(f"\n  * {reason}" for reason in reasons)
        untried = "\nand there was no time for the other choices" if self.late else ""
        if not reasons or any("no time" in one or "in time" in one for one in reasons):
            return NoPlanError(
                f"the time limit of {self.time_limit:g} s passed before any plan was found: give "
                f"more time, or fewer stages and microbatches to choose from{listed}"
            )
        return InfeasibleError(f"no choice of stages and microbatches has a plan:{listed}{untried}")


def _reason(row: Choice) -> str:
    return f"{row.stages} stages, {row.microbatches} microbatches, {row.name}: {row.note}"
