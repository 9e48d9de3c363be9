"""Takes a step and a cluster; finds stages, meshes, shardings and the order of tasks.

    plan = search_meshes({8: step}, load_cluster("4 x v5p-16"), time_limit=120)

Every choice of microbatches, stages, placement and mode has a lower bound over all ways to share
the blocks (`autoshard.search.meshes.bounds.joint_bound`). At first it comes from the work of the
blocks. Later it comes from what the solver proves about them, on request
(`autoshard.search.meshes.bounds.ranking`). The search tries choices, the most promising first. A
trial cuts the step, plans and prices every different stage on every kind of mesh, and solves for
the order (`autoshard.search.meshes.trial`). A choice whose bound is above the incumbent is not
tried. The remaining time goes to better prices and a better order of the best choice.

The overall bound is the smallest bound of all choices, so it also covers choices whose trial was
poor. Only a solve for the choice with the smallest bound can raise it. The search does that after
every trial, in a fraction of the time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from autoshard.interrupts import acknowledge
from autoshard.machine.cluster import Cluster
from autoshard.plan.work import work_of
from autoshard.program.trace import trace
from autoshard.search.meshes.bounds.bounding import Bounding
from autoshard.search.meshes.bounds.ranking import Group, Ranked, Ranking
from autoshard.search.meshes.candidate import Candidate, pipeline_plan
from autoshard.search.meshes.keep.promising import promising
from autoshard.search.meshes.one_mesh import plan_one_mesh
from autoshard.search.meshes.plan import Choice, OneMesh, PipelinePlan
from autoshard.search.meshes.pricer import Pricer
from autoshard.search.meshes.request import Request, Step, request_of
from autoshard.search.meshes.stage_prices import StagePrices
from autoshard.search.meshes.stage_program import Mode
from autoshard.search.meshes.trial import Trial
from autoshard.search.options import Remat, SearchOptions
from autoshard.search.search import InfeasibleError, NoPlanError
from autoshard.solve.limit_hit import LimitHit
from autoshard.solve.schedule.optimise import solve
from autoshard.units import counted, listed

ONE_MESH_SHARE, BOUND_SHARE = 0.2, 0.3
"""Of the time, what one mesh of all chips gets, and the bounds of blocks; at most."""
PROMISING_SHARE = 0.25
"""Of the time, what finding the promising choices of what stages save gets, at most."""
FEWEST_TRIALS = 4
"""One trial gets at most the remaining time divided by this number."""
FINISH_SHARE, FINISH_PRICES = 0.15, 1.25
"""The time reserved for better prices and a better order of the best choice: a fraction of the
time limit, and at least this many times the seconds of the slowest stage price."""
POLISH_GAP = 0.0005
NOTHING = (
    "no loop over layers and no jax.checkpoint hands its backward pass anything: there is nothing "
    "to choose to save, and stages save what the program says"
)
NO_HOST = (
    "all stacks stay on the devices: of the memory of hosts the file of {} says nothing (a table "
    "[host])"
)
TRIED = "the bound is the least of these choices of what a stage saves: "


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
    remat: Remat = "respect",
    progress: Callable[[str], None] | None = None,
    started: float | None = None,
) -> PipelinePlan:
    """Return the best plan found for a step on several meshes.

    Args:
      steps: the step for each number of microbatches that may be chosen. The step computes its
        gradients by `autoshard.accumulate_grads` with that number; or its options have the number
        as `microbatches`, and it is cut into so many.
      cluster: the meshes.
      name: the name of the program.
      whole_step: the step without microbatches, for one mesh of all chips; by default the step
        with the fewest microbatches.
      stages: numbers of stages that may be chosen; by default 1, 2 and 4 per mesh.
      modes: whether backward passes may be one task, or two.
      memory_limit: bytes per device; by default the chip's memory less its reserve.
      time_limit: seconds for the whole search.
      gap: stop when the plan is proven to be within this fraction of the optimum.
      compare: also plan all chips as one mesh, if the meshes are of the same kind.
      remat: "respect" what the step saves for its backward pass, "search" for what each stage
        saves, together with the order of the tasks, or also for what of it waits in the memory of
        the host ("offload").
      progress: a callback that receives progress messages.
      started: the start of the time limit, in `time.monotonic`; by default now.

    Raises:
      LoopError: a step has no microbatch loop.
      StageError: there are more stages than blocks, or the number of stages is not a multiple of
        the number of meshes.
      InfeasibleError: no choice fits the memory. The message gives the reason for each, and what
        is needed.
      NoPlanError: the time limit passed before any plan was found.
      ValueError: `remat` is not one of these words.
      KeyboardInterrupt: an interrupt came before any plan was found.
    """
    SearchOptions(remat=remat)
    started = time.monotonic() if started is None else started
    pricer = Pricer(memory_limit, seconds=max(time_limit / 20, 1.0))
    request = request_of(name, steps, cluster, pricer)
    return _Search(
        request,
        StagePrices(request, pricer),
        whole_step,
        time_limit,
        gap,
        progress or (lambda news: None),
        started,
        remat,
    ).run(None if stages is None else tuple(stages), tuple(modes), compare=compare)


@dataclass(slots=True)
class _Search:
    request: Request
    prices: StagePrices
    whole_step: Step | None
    time_limit: float
    gap: float
    say: Callable[[str], None]
    started: float
    remat: Remat = "respect"
    rows: list[Choice] = field(default_factory=list)
    tried: set[Group] = field(default_factory=set)
    notes: tuple[str, ...] = ()
    known: Bounding | None = None
    best: Candidate | None = None
    one_mesh: OneMesh | None = None
    interrupted: bool = False
    late: bool = False

    def run(
        self, stages: Sequence[int] | None, modes: Sequence[Mode], *, compare: bool
    ) -> PipelinePlan:
        try:
            if self.remat != "respect":
                self._choose_what_is_saved(modes[0])
            request = self.request
            self.say("bounding the work of all choices")
            ranking = Ranking.of(request, self.prices.pricer, stages, modes)
            seconds = BOUND_SHARE * self.time_limit
            deadline = self.started + self.time_limit
            known = self.known = Bounding.of(request, ranking, seconds, deadline, self.say)
            known.ask(known.first)
            self._try(known, once=True)
            if compare and request.cluster.whole() is not None:
                self._plan_one_mesh()
            self._try(known)
            self._finish(known)
        except KeyboardInterrupt as interrupt:
            acknowledge(interrupt)
            self.interrupted = True
            if self.best is None:
                raise
        if self.best is None:
            raise self._failure()
        fn, args, options = next(iter(self.request.steps.values()))
        whole = trace(fn, *args, name=self.request.name, **options)
        return pipeline_plan(
            self.best,
            self.request.cluster,
            name=self.request.name,
            limits=self.request.limits,
            ideal=self.bound,
            choices=self.rows,
            one_mesh=self.one_mesh,
            limit_hit=self._limit_hit(),
            seconds=self._spent(),
            work=work_of(whole, self.request.cluster.meshes),
            notes=self.notes,
            accumulated=self.request.cuts,
        )

    def _limit_hit(self) -> LimitHit | None:
        if self.interrupted:
            return LimitHit.INTERRUPTED
        return LimitHit.TIME if self.late else None

    def _spent(self) -> float:
        return time.monotonic() - self.started

    def _left(self) -> float:
        return self.time_limit - self._spent()

    def _kept(self) -> float:
        """Return the seconds that are reserved for the end."""
        return max(FINISH_SHARE * self.time_limit, FINISH_PRICES * self.prices.pricer.slowest)

    def _choose_what_is_saved(self, mode: Mode) -> None:
        """Find the choices of what stages save that are worth a search."""
        seconds = PROMISING_SHARE * self.time_limit
        pricer, offloads = self.prices.pricer, self.remat == "offload"
        titles = promising(self.request, pricer, mode, seconds, self.say, offloads=offloads)
        self.notes = (TRIED + "; ".join(titles) if titles else NOTHING,)
        hostless = [one.name for one in self.request.cluster.meshes if one.host is None]
        if offloads and hostless:
            self.notes += (NO_HOST.format(listed(list(dict.fromkeys(hostless)))),)
        self.request = self.request.choosing(titles)

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
            self.prices.pricer.memory_limit,
            min(ONE_MESH_SHARE * self.time_limit, self._left()),
            self.remat,
        )

    def _try(self, known: Bounding, *, once: bool = False) -> None:
        """Try the choices, the most promising first, and raise the smallest bound.

        Args:
          once: stop as soon as there is a plan.
        """
        while not self._close():
            kept = 0.0 if self.best is None else self._kept()
            if self._left() <= kept:
                self.late = True
                return
            waiting = [one for one in known.choices if one.group not in self.tried]
            if not waiting or (once and self.best is not None):
                return
            # Until there is a plan, choices already bounded by the solver go first: an early plan
            # is worth more.
            asked = [one for one in waiting if one.asked]
            choice = (asked or waiting if self.best is None else waiting)[0]
            if self.best is not None and choice.bound.seconds >= self.best.step_seconds:
                self._leave_out(choice)
            elif self.best is not None and not choice.asked and known.may_ask:
                known.ask(choice)
            else:
                self._trial(choice, (self._left() - kept) / min(len(waiting), FEWEST_TRIALS))
                known.ask(known.lowest)

    def _leave_out(self, choice: Ranked) -> None:
        self.tried.add(choice.group)
        stages, m, bound = choice.placement.stages, choice.microbatches, choice.bound.seconds
        note = "its bound is above the best plan"
        self.rows.append(Choice(choice.title, stages, m, None, bound, note))

    def _trial(self, choice: Ranked, seconds: float) -> None:
        """Try a choice, in about this many seconds."""
        self.tried.add(choice.group)
        stages, m = choice.placement.stages, choice.microbatches
        self.say(f"{counted(stages, 'stage')}, {counted(m, 'microbatch')}, {choice.title}")
        trial = Trial(self.request, self.prices, choice, self.rows)
        try:
            trial.run(seconds)
        finally:
            self._keep(trial)
        if trial.interrupted:
            raise KeyboardInterrupt

    def _keep(self, trial: Trial) -> None:
        self.late = self.late or trial.late
        for found in trial.found:
            if self.best is None or found.step_seconds < self.best.step_seconds:
                self.best = found
        if self.best is not None:
            self.prices.deadline = self.started + self.time_limit

    @property
    def bound(self) -> float:
        """Return the best known lower bound in seconds for all plans."""
        return 0.0 if self.known is None else self.known.bound

    def _close(self) -> bool:
        return self.best is not None and 1 - self.bound / self.best.step_seconds <= self.gap

    def _finish(self, known: Bounding) -> None:
        """Spend the remaining time on prices and order of the best choice, and on the bound."""
        best = self.best
        if best is None or self._close() or self._left() <= 0:
            return
        self.say(f"improving the stages of {best.choice.title}")
        trial = Trial(self.request, self.prices, best.choice, self.rows)
        try:
            trial.finish(best, self._left())
        finally:
            self._keep(trial)
        if trial.interrupted:
            raise KeyboardInterrupt
        self._polish(self.best or best)
        while not self._close() and not known.lowest.asked and known.may_ask:
            known.ask(known.lowest)

    def _polish(self, best: Candidate) -> None:
        """Look for a better order of the tasks."""
        if best.outcome.gap <= 0 or self._close():
            return
        self.say(f"improving the order of {best.choice.title}")
        order = best.outcome.order
        assert order is not None
        outcome = solve(
            best.instance,
            time_limit=max(self._left(), 0.1),
            warm_starts=[order],
            gap=POLISH_GAP,
        )
        self.late = self.late or outcome.limit_hit is LimitHit.TIME
        found = replace(best, outcome=outcome)
        if found.step_seconds <= best.step_seconds:
            self.best = found
        if outcome.limit_hit is LimitHit.INTERRUPTED:
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
    return (
        f"{counted(row.stages, 'stage')}, {counted(row.microbatches, 'microbatch')}, "
        f"{row.name}: {row.note}"
    )
