"""A step and a cluster in; stages, meshes, shardings and the order of tasks out.

    plan = search_meshes({8: step}, load_cluster("4 x v5p-16"), time_limit=120)

Every choice of microbatches, stages, placement and mode is bounded first, over all ways to share
the blocks (`autoshard.placement.joint_bound`). Then choices are tried, the most promising first:
cut the step, plan and price every different stage on every kind of mesh, and solve the order
(`autoshard.placement.trial`). A choice whose bound is above the best plan is not tried. What is
left of the time goes to the order of the best.

The bound is the least of all choices; so what was tried badly counts, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from autoshard.cluster import Cluster
from autoshard.placement.candidate import Candidate, pipeline_plan
from autoshard.placement.ideal import ideal_seconds
from autoshard.placement.one_mesh import plan_one_mesh
from autoshard.placement.plan import Choice, OneMesh, PipelinePlan
from autoshard.placement.pricer import Pricer
from autoshard.placement.ranking import Ranked, ranked
from autoshard.placement.request import Request, Step, request_of
from autoshard.placement.stage_prices import StagePrices
from autoshard.placement.stage_program import Mode
from autoshard.placement.trial import Trial
from autoshard.program import trace
from autoshard.search import InfeasibleError, NoPlanError
from autoshard.solve.schedule import solve

ONE_MESH_SHARE, BOUND_SHARE = 0.2, 0.3
"""Of the time, what one mesh of all chips gets, and the bounds of all choices; at most."""
FEWEST_TRIALS = 4
"""One trial gets no more of what is left than its part of so many."""
POLISH_GAP = 0.0005


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
    pricer = Pricer(memory_limit, seconds=max(time_limit / 20, 1.0))
    return _Search(
        request_of(name, steps, cluster, pricer),
        pricer,
        whole_step,
        time_limit,
        gap,
        progress or (lambda news: None),
    ).run(None if stages is None else tuple(stages), tuple(modes), compare=compare)


@dataclass(slots=True)
class _Search:
    request: Request
    pricer: Pricer
    whole_step: Step | None
    time_limit: float
    gap: float
    say: Callable[[str], None]
    started: float = field(default_factory=time.monotonic)
    rows: list[Choice] = field(default_factory=list)
    best: Candidate | None = None
    bound: float = 0.0
    one_mesh: OneMesh | None = None
    interrupted: bool = False
    late: bool = False

    def run(
        self, stages: Sequence[int] | None, modes: Sequence[Mode], *, compare: bool
    ) -> PipelinePlan:
        request = self.request
        try:
            choices = self._bounded(stages, modes)
            if compare and request.cluster.whole() is not None:
                self._plan_one_mesh()
            self._try(choices)
            if self.best is not None and self.best.outcome.gap > 0 and not self._close():
                self._polish(self.best)
        except KeyboardInterrupt:
            self.interrupted = True
            if self.best is None:
                raise
        if self.best is None:
            raise self._failure()
        return pipeline_plan(
            self.best,
            request.cluster,
            name=request.name,
            limits=request.limits,
            ideal=self.bound,
            choices=self.rows,
            one_mesh=self.one_mesh,
            limit_hit="interrupted" if self.interrupted else "time" if self.late else None,
            seconds=time.monotonic() - self.started,
        )

    def _left(self) -> float:
        return self.started + self.time_limit - time.monotonic()

    def _bounded(self, stages: Sequence[int] | None, modes: Sequence[Mode]) -> list[Ranked]:
        """All choices, and the bound of all plans: of the best choice, and at least all work."""
        request = self.request
        choices = ranked(
            request,
            self.pricer,
            stages,
            modes,
            time_limit=BOUND_SHARE * self._left(),
            say=self.say,
        )
        fn, args, options = next(iter(request.steps.values()))
        work = ideal_seconds(trace(fn, *args, name=request.name, **options), request.cluster)
        self.bound = max(work, min(choice.bound.seconds for choice in choices))
        return choices

    def _plan_one_mesh(self) -> None:
        self.say("planning all chips as one mesh")
        request = self.request
        steps: list[tuple[int | None, Step]] = list(request.steps.items())
        if self.whole_step is not None:
            steps.insert(0, (None, self.whole_step))
        self.one_mesh = plan_one_mesh(
            steps,
            request.cluster,
            request.name,
            self.pricer.memory_limit,
            ONE_MESH_SHARE * self.time_limit,
        )

    def _try(self, choices: Sequence[Ranked]) -> None:
        prices = StagePrices(self.request, self.pricer)
        for at, choice in enumerate(choices):
            if self._close():
                return
            if self._left() <= 0:
                self.late = True
                return
            stages, m = choice.placement.stages, choice.microbatches
            if self.best is not None and choice.bound.seconds >= self.best.step_seconds:
                note = "its bound is above the best plan"
                row = Choice(choice.title, stages, m, None, choice.bound.seconds, note)
                self.rows.append(row)
                continue
            self.say(f"{stages} stages, {m} microbatches, {choice.title}")
            trial = Trial(self.request, prices, choice, self.rows)
            try:
                trial.run(self._left() / min(len(choices) - at, FEWEST_TRIALS))
            finally:
                self.late = self.late or trial.late
                for found in trial.found:
                    if self.best is None or found.step_seconds < self.best.step_seconds:
                        self.best = found
                if self.best is not None:
                    prices.deadline = self.started + self.time_limit
            if trial.interrupted:
                raise KeyboardInterrupt

    def _close(self) -> bool:
        return self.best is not None and 1 - self.bound / self.best.step_seconds <= self.gap

    def _polish(self, best: Candidate) -> None:
        """Spend what is left of the time on the order of the best choice."""
        self.say(f"improving the order of {best.placement.name}")
        order = best.outcome.order
        assert order is not None
        outcome = solve(
            best.instance,
            time_limit=max(self._left(), 0.1),
            warm_starts=[order],
            gap=POLISH_GAP,
        )
        self.late = self.late or outcome.limit_hit == "time"
        found = replace(best, outcome=outcome)
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
