"""Plans and prices stages on meshes, each different stage once.

Stages that differ only in their number of blocks, or in the memory left to them, have plans of the
same form. So the pricer first applies a known plan to such a stage as it is. It accepts the plan if
it is within a gap of the stage's lower bound (`autoshard.search.meshes.bounds.bricks`). Otherwise
the plan is a warm start for the solver. The gap is small if the price is final, and larger while
choices are compared (`rough`). Mesh shapes are tried in the order of their bounds. Shapes whose
bound is above the best price found are skipped.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from autoshard.cost.mesh_shapes import candidate_meshes
from autoshard.cost.step_prices import StepPrices
from autoshard.machine.machine import Machine
from autoshard.plan.evaluate import evaluate
from autoshard.plan.fits import within
from autoshard.plan.plan import MeshShape, Plan
from autoshard.program.trace import Program
from autoshard.search.assemble import prices_of
from autoshard.search.meshes.price import StagePrice, price
from autoshard.search.meshes.stage_program import Mode, StageProgram, kind_of
from autoshard.search.replan import reprice, transferred
from autoshard.search.search import InfeasibleError, NoPlanError, search
from autoshard.solve.limit_hit import LimitHit

GAP = 0.005
"""The relative gap at which a stage's plan is good enough."""
POOR = 0.05
"""The relative gap to the stage's lower bound above which later plans of other stages may replace
a plan. While choices are compared, a plan within this gap is good enough."""

COMPARED = 3
"""How many known plans of the same form are tried on a stage."""


@dataclass(frozen=True, slots=True)
class Known:
    """A price under a memory limit, or why there is none; if rough, a better one may exist."""

    limit: float
    found: StagePrice | str
    rough: bool = False


@dataclass(slots=True)
class Pricer:
    """Prices stages.

    Args:
      memory_limit: bytes per device; by default the chip's memory less its reserve.
      seconds: seconds for the plan of one stage on one mesh shape, if one is found by then.
      shapes: how many mesh shapes of at most two axes are tried, those most like the network first.
      known: the results under each memory limit, by program, machine and mesh shape.
      plans: the plans of all stages with their microbatches and mode, by machine and mesh shape.
      seen: how many of `plans` were tried again, by program, machine and mesh shape.
      programs: equal programs of stages, by fingerprint: the first of them stands for all.
      slowest: the most seconds that the plan of one stage on one mesh shape took.
    """

    memory_limit: float | None = None
    seconds: float = 5.0
    shapes: int = 2
    known: dict[Any, list[Known]] = field(default_factory=dict)
    plans: dict[Any, list[tuple[tuple[int, Mode], Plan]]] = field(default_factory=dict)
    slowest: float = 0.0
    seen: dict[Any, int] = field(default_factory=dict)
    programs: dict[str, list[Program]] = field(default_factory=dict)
    _last: tuple[tuple[Any, ...], StepPrices] | None = None

    def limit(self, machine: Machine) -> float:
        """Return the usable bytes of each of a machine's devices."""
        return machine.chip.usable_bytes if self.memory_limit is None else self.memory_limit

    def traced(self, stage: StageProgram) -> Program:
        """Return the traced program of a stage, or an equal one that is known.

        What is found out about that one (`autoshard.xla.analyse`) is known of this one, too.
        """
        program = stage.traced()
        known = self.programs.setdefault(program.fingerprint, [])
        for other in known:
            if _equal(other, program):
                return other
        known.append(program)
        return program

    def candidates(self, machine: Machine) -> list[MeshShape]:
        """Return the mesh shapes to try."""
        sizes = candidate_meshes(machine, axes=2)[: self.shapes]
        return [MeshShape(("x", "y")[: len(one)], one) for one in sizes]

    def price(
        self,
        stage: StageProgram,
        machine: Machine,
        least: Mapping[MeshShape, float] | None,
        limit: float,
        seconds: float,
        *,
        rough: bool = False,
        program: Program | None = None,
        most: float = 0.0,
    ) -> StagePrice | str:
        """Return the price of a stage, or why it has no plan.

        Args:
          least: the mesh shapes to try, with their lower bounds in seconds of a step; None for
            the candidates.
          limit: bytes per device that the stage may use.
          seconds: the time limit in seconds.
          rough: whether the price only serves to compare choices.
          program: the program of the stage (`traced`), if already known.
          most: a larger time limit in seconds that applies until any plan is found.
        """
        program = self.traced(stage) if program is None else program
        if least is None:
            least = dict.fromkeys(self.candidates(machine), 0.0)
        best: StagePrice | None = None
        failure = "no mesh shape was tried"
        for shape, bound in sorted(least.items(), key=lambda item: item[1]):
            if best is not None and bound * (1 + GAP) >= best.busy_seconds(stage.microbatches):
                continue
            key = (program.fingerprint, machine.name, shape)
            found = self._known(key, limit, rough)
            if found is None:
                share, begun = seconds / len(least), time.monotonic()
                times = share, max(share, most / len(least))
                made = self._plan(program, stage, machine, shape, limit, times, bound, rough)
                found = made.found
                self.slowest = max(self.slowest, time.monotonic() - begun)
                if isinstance(found, str) and found.startswith("no time"):
                    return found if best is None else best
                self.known.setdefault(key, []).insert(0, made)
            elif isinstance(found, StagePrice) and _busy(found, stage) > bound * (1 + POOR):
                other = self._again(program, stage, machine, shape, limit, found)
                if other is not found:
                    self.known[key].insert(0, Known(limit, other, rough))
                found = other
            if isinstance(found, str):
                failure = found
            elif best is None or _busy(found, stage) < _busy(best, stage):
                best = found
        return failure if best is None else best

    def _again(
        self,
        program: Program,
        stage: StageProgram,
        machine: Machine,
        shape: MeshShape,
        limit: float,
        found: StagePrice,
    ) -> StagePrice:
        """Return a stage's known price, or that of another stage's plan if it is now better."""
        plans = self.plans.get((machine.name, shape), [])
        key = (program.fingerprint, machine.name, shape)
        fresh = plans[self.seen.get(key, 0) :]
        self.seen[key] = len(plans)
        most = _busy(found, stage)
        other = self._best_of(_closest(fresh, stage), program, machine, limit, most)
        return found if other is None else self._priced(other, program, machine, stage)

    def _best_of(
        self,
        earlier: list[Plan],
        program: Program,
        machine: Machine,
        limit: float,
        most: float = math.inf,
    ) -> Plan | None:
        """Return the fastest of a few plans of this form that fit, at this program's prices.

        Args:
          most: seconds of a step; a plan that is not faster is none.
        """
        fitting: list[tuple[float, Plan]] = []
        for plan in earlier:
            if len(fitting) == COMPARED:
                break
            try:
                decisions = transferred(program, plan)
                prices = self._prices(plan, program, machine)
                found = evaluate(prices, decisions, plan.mesh.names).estimate
            except ValueError:  # it is not of this form
                continue
            if within(found.peak_bytes, limit):
                fitting.append((found.step_seconds, plan))
        seconds, best = min(fitting, key=lambda one: one[0], default=(math.inf, None))
        if best is None or seconds >= most:
            return None
        return reprice(best, program, machine, memory_limit=limit)

    def _prices(self, plan: Plan, program: Program, machine: Machine) -> StepPrices:
        """Return the prices of a program under which a plan is, those of the last one again."""
        key = program, machine, plan.mesh, plan.corrections
        last = self._last
        if last is None or any(a != b for a, b in zip(last[0], key, strict=True)):
            last = self._last = key, prices_of(plan, program, machine)
        return last[1]

    def _priced(
        self, plan: Plan, program: Program, machine: Machine, stage: StageProgram
    ) -> StagePrice:
        prices = self._prices(plan, program, machine)
        return price(plan, program, machine, stage.arguments, prices=prices)

    def _known(self, key: Any, limit: float, rough: bool) -> StagePrice | str | None:
        """Return what an earlier search says for this limit, or None.

        That search had at least this limit, and its plan needs no more than this limit, or it
        failed.
        """
        for one in self.known.get(key, ()):
            if one.rough and not rough:
                continue
            fits = isinstance(one.found, str) or within(one.found.peak_bytes, limit)
            if one.limit >= limit and fits:
                return one.found
        return None

    def _plan(
        self,
        program: Program,
        stage: StageProgram,
        machine: Machine,
        shape: MeshShape,
        limit: float,
        times: tuple[float, float],
        bound: float,
        rough: bool,
    ) -> Known:
        earlier = self.plans.setdefault((machine.name, shape), [])
        start = self._best_of(_closest(earlier, stage), program, machine, limit)
        plan: Plan | None = None
        poor = False
        near = POOR if rough else GAP
        if start is not None and start.estimate.step_seconds * (1 - near) <= bound:
            best = start.estimate.step_seconds * (1 - GAP) <= bound
            return Known(limit, self._priced(start, program, machine, stage), rough=not best)
        mesh = dict(zip(shape.names, shape.sizes, strict=True))
        usual, most = times
        # Without a warm start, the plan found here becomes the warm start of other stages.
        few = min(self.seconds, usual if start is not None else most)
        for allowed in sorted({few, max(few, usual), max(few, most)}):
            if plan is not None and allowed > usual:
                break
            try:
                plan = search(
                    program,
                    machine,
                    mesh=mesh,
                    memory_limit=limit,
                    time_limit=max(allowed, 0.1),
                    gap=GAP,
                    baselines=False,
                    start=start,
                    known_bound=bound,
                )
                poor = plan.estimate.step_seconds > max(bound, plan.proof.bound) * (1 + POOR)
                if not poor or plan.proof.limit_hit is LimitHit.INTERRUPTED:
                    break
                start = plan  # continue from it, if there is more time
            except NoPlanError as error:
                if allowed == max(few, most) and plan is None:
                    return Known(limit, f"no time: {error}")
            except InfeasibleError as error:
                # A stage runs as several programs in the order of the schedule. The compiler's
                # order of the stage as one program does not say what memory they need.
                plan = error.plan
                if plan is None:
                    return Known(limit, str(error))
                break
            except ValueError as error:  # an axis divides nothing
                return Known(limit, str(error))
        assert plan is not None
        if plan.proof.limit_hit is LimitHit.INTERRUPTED:
            raise KeyboardInterrupt
        earlier.append(((stage.microbatches, stage.mode), plan))
        return Known(limit, self._priced(plan, program, machine, stage), rough=poor)


def _equal(one: Program, other: Program) -> bool:
    """Return whether two programs of one fingerprint differ in names and lines alone."""

    def told(program: Program) -> Iterator[object]:
        yield program.inputs, program.outputs, program.ties, program.donated, program.carries
        yield from ((replace(op, scope="", line=""), kind_of(op.scope)) for op in program.ops)
        yield from (replace(value, path="") for value in program.values)

    if len(one.ops) != len(other.ops) or len(one.values) != len(other.values):
        return False
    return all(a == b for a, b in zip(told(one), told(other), strict=True))


def _closest(earlier: Sequence[tuple[tuple[int, Mode], Plan]], stage: StageProgram) -> list[Plan]:
    """Return the newest plans, those with the same microbatches and mode first."""
    newest = earlier[::-1]
    own = (stage.microbatches, stage.mode)
    return [plan for _, plan in sorted(newest, key=lambda one: one[0] != own)]


def _busy(found: StagePrice, stage: StageProgram) -> float:
    return found.busy_seconds(stage.microbatches)
