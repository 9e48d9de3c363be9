"""The compiler in the loop: search, compile the best plans, learn from them, search again.

    round 1    the N best different plans, of whatever mesh shapes, are compiled without devices
    learn      `autoshard.study.residuals` corrects the prices of this program's parts
    round 2    the search again, under the corrected prices; what is new is compiled
    ...        until the best compiled plan stays the same, and what is predicted best is known

With `remat` or `accumulate` these are plans of several choices of what is saved, each of the step
that is rewritten for it. A part of a program is the same part in all of them.

The plan returned is the one whose compiled step is shortest of those whose compiled peak fits the
memory limit. It says both figures.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autoshard.compiler.compiled import Compiled, compile_plan
from autoshard.compiler.target import CompileError, Kind, kind_of
from autoshard.cost.corrections import NONE, Corrections
from autoshard.cost.step_prices import StepPrices, step_prices
from autoshard.interrupts import acknowledge
from autoshard.lower.interpret import LoweringError
from autoshard.lower.spmd import lower
from autoshard.machine.load import load
from autoshard.machine.machine import Machine
from autoshard.plan.decisions import Decisions
from autoshard.plan.evaluate import evaluate
from autoshard.plan.fits import within
from autoshard.plan.plan import MeshShape, Plan
from autoshard.program.facts import Facts
from autoshard.program.trace import Program
from autoshard.search.options import SearchOptions
from autoshard.search.search import InfeasibleError, candidates
from autoshard.solve.limit_hit import LimitHit
from autoshard.study.residuals import Observation, fit
from autoshard.units import format_bytes, format_seconds
from autoshard.xla import analyse

ROUNDS = 4
"""Rounds after which the best compiled plan is returned, stable or not."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A plan and what its compile gave: `compiled`, or `error` where it was refused.

    `round` counts from 1; `program` is the step as the plan has it rewritten, if it was lowered.
    """

    plan: Plan
    round: int
    compiled: Compiled | None
    error: str = ""
    program: Program | None = None

    def __str__(self) -> str:
        estimate = self.plan.estimate
        text = (
            f"round {self.round}: mesh {self.plan.mesh}: predicted "
            f"{format_seconds(estimate.step_seconds)}, {format_bytes(estimate.peak_bytes)}; "
        )
        if self.compiled is None or self.compiled.timeline is None:
            return f"{text}not compiled: {self.error.splitlines()[0] if self.error else '?'}"
        seconds = format_seconds(self.compiled.timeline.seconds)
        return f"{text}compiled {seconds}, {format_bytes(self.compiled.memory.peak_bytes)}"


@dataclass(frozen=True, slots=True)
class Refined:
    """What the loop found.

    Attributes:
      plan: the best compiled one, with `plan.compiled`.
      trials: every compile, in order.
      corrections: what was learned.
      stable: whether another round would have changed nothing.
    """

    plan: Plan
    trials: tuple[Trial, ...]
    corrections: Corrections
    stable: bool

    def __str__(self) -> str:
        end = "stable" if self.stable else "not stable yet: more rounds may find better"
        return "\n".join([*map(str, self.trials), f"the best compiled plan is {end}"])


def refine(
    program: Program,
    machine: Machine | str,
    fn: Callable[..., Any],
    *args: Any,
    count: int = 4,
    rounds: int = ROUNDS,
    kind: Kind | None = None,
    workers: int | None = None,
    cache: Path | None = None,
    heard: Callable[[Trial], None] | None = None,
    memory_limit: float | None = None,
    **options: Any,
) -> Refined:
    """Find the plan that the compiler finds best.

    Args:
      program: `autoshard.trace(fn, *args, ...)`.
      machine: a `Machine`, a preset's name, or the path of a TOML file.
      fn, args: the step, to be lowered.
      count: plans to compile in every round.
      rounds: at most so many.
      kind: which compiler; by default the one for the machine's chips.
      workers: compiles at the same time; by default one per core.
      cache: folder of earlier compiles; by default the user's.
      heard: called with every trial.
      memory_limit: bytes per device that the compiled peak may reach; by default what the chip has
        less its reserve.
      options: of `autoshard.search`: `mesh`, `time_limit` (for each round), `gap`, `progress`,
        `remat`, `accumulate`, ...

    Raises:
      CompileError: there is no compiler that estimates seconds for the machine, or it refuses every
        plan.
      InfeasibleError: no plan fits, by the prediction or by the compiler.
    """
    machine = load(machine) if isinstance(machine, str) else machine
    kind = kind or kind_of(machine)
    if kind == "cpu":
        raise CompileError(
            f"the CPU compiler estimates no seconds for {machine.name}: refining needs a machine "
            "of chips that the TPU or GPU compiler knows"
        )
    limit = machine.chip.usable_bytes if memory_limit is None else memory_limit
    allowed, corrections = limit, NONE
    last: Plan | None = None  # predicted best, under the corrections of its round
    trials: dict[object, Trial] = {}
    best: Trial | None = None
    stable = False
    try:
        for number in range(1, rounds + 1):
            own = {"corrections": corrections, "memory_limit": allowed, "by_schedule": False}
            asked = SearchOptions(count=count, **own, **options)
            plans = candidates(program, machine, asked)
            last = plans[0]
            new = [plan for plan in plans if _key(plan) not in trials]
            known = _key(plans[0]) in trials
            for trial in _compile_all(new, machine, fn, args, number, kind, workers, cache):
                trials[_key(trial.plan)] = trial
                if heard is not None:
                    heard(trial)
            before, best = best, _best(trials.values(), limit)
            if known and best is before and best is not None:
                stable = True
                break
            if number < rounds:
                corrections = fit(_observations(machine, trials.values()))
            if best is None:
                allowed *= _tighter(trials.values())
    except KeyboardInterrupt as interrupt:
        acknowledge(interrupt)
        best = _best(trials.values(), limit)
        if best is None:
            raise
    if best is None or last is None:
        raise _failure(list(trials.values()), limit)
    plan = _priced_again(best, last, machine)
    return Refined(plan, tuple(trials.values()), last.corrections, stable)


def _compile_all(
    plans: Sequence[Plan],
    machine: Machine,
    fn: Callable[..., Any],
    args: Sequence[Any],
    number: int,
    kind: Kind,
    workers: int | None,
    cache: Path | None,
) -> list[Trial]:
    # Lowered one after the other, since tracing holds the interpreter anyway.
    lowered = []
    trials = []
    for plan in plans:
        try:
            lowered.append((plan, lower(plan, fn, *args)))
        except LoweringError as error:
            trials.append(Trial(plan, number, None, str(error)))
    with ThreadPoolExecutor(workers or os.cpu_count()) as pool:
        waiting = {
            pool.submit(compile_plan, one, machine, kind=kind, cache=cache): (plan, one.program)
            for plan, one in lowered
        }
        for done in as_completed(waiting):
            plan, program = waiting[done]
            try:
                trials.append(Trial(plan, number, done.result(), program=program))
            except CompileError as error:
                trials.append(Trial(plan, number, None, str(error)))
    return trials


def _best(trials: Any, limit: float) -> Trial | None:
    """The trial with the shortest compiled step among those that fit."""
    fitting = [
        (trial.compiled.timeline.seconds, position, trial)
        for position, trial in enumerate(trials)
        if trial.compiled is not None
        and trial.compiled.timeline is not None
        and within(trial.compiled.memory.peak_bytes, limit)
    ]
    return min(fitting)[2] if fitting else None


def _observations(machine: Machine, trials: Iterable[Trial]) -> list[Observation]:
    facts: dict[str, Facts] = {}
    prices: dict[object, StepPrices] = {}
    found = []
    for trial in trials:
        if trial.compiled is None or trial.compiled.timeline is None:
            continue
        shape, program = trial.plan.mesh, trial.program
        assert program is not None
        step = trial.plan.fingerprint
        if step not in facts:
            facts[step] = analyse(program, machine.chip)
        which = step, shape.sizes
        if which not in prices:
            prices[which] = step_prices(program, facts[step], machine, shape.sizes)
        plain = evaluate(prices[which], trial.plan.decisions, shape.names)
        plan = replace(
            trial.plan,
            estimate=plain.estimate,
            moves=plain.moves,
            transfers=plain.transfers,
            corrections=NONE,
        )
        found.append(Observation(plan, prices[which], trial.compiled.timeline))
    return found


def _tighter(trials: Any) -> float:
    """By how much the prediction is below the compiled peak, at its worst."""
    ratios = [
        trial.plan.estimate.peak_bytes / trial.compiled.memory.peak_bytes
        for trial in trials
        if trial.compiled is not None
    ]
    return min([1.0, *ratios])


def _priced_again(best: Trial, last: Plan, machine: Machine) -> Plan:
    """The best plan under the prices, and with the bound, of the last search."""
    assert best.compiled is not None
    assert best.compiled.timeline is not None
    assert best.program is not None
    shape = best.plan.mesh
    facts = analyse(best.program, machine.chip)
    prices = step_prices(best.program, facts, machine, shape.sizes, last.corrections)
    priced = evaluate(prices, best.plan.decisions, shape.names)
    seconds = priced.estimate.step_seconds
    bound = min(last.proof.bound, seconds)
    gap = (seconds - bound) / seconds
    proof = replace(
        last.proof,
        status="optimal" if gap <= 1e-8 else "feasible",
        objective=seconds,
        bound=bound,
        gap=gap,
        limit_hit=None if gap <= 1e-8 else LimitHit.COMPILER,
    )
    figures: Mapping[str, Any] = {
        "compiler": best.compiled.kind,
        "step_seconds": best.compiled.timeline.seconds,
        "peak_bytes": best.compiled.memory.peak_bytes,
        "basis": best.compiled.basis,
    }
    return replace(
        best.plan,
        estimate=priced.estimate,
        moves=priced.moves,
        transfers=priced.transfers,
        corrections=last.corrections,
        proof=proof,
        baselines=last.baselines if _which(last) == _which(best.plan) else (),
        compiled=figures,
    )


def _failure(trials: Sequence[Trial], limit: float) -> Exception:
    peaks = [t.compiled.memory.peak_bytes for t in trials if t.compiled is not None]
    if not peaks:
        reasons = dict.fromkeys(trial.error.splitlines()[0] for trial in trials)
        return CompileError("\n  - ".join(["no plan compiles:", *reasons]))
    return InfeasibleError(
        f"none of the {len(peaks)} compiled plans fits the memory limit of {format_bytes(limit)} "
        f"per device; the smallest compiled peak is {format_bytes(min(peaks))}: raise "
        "--memory-limit to that, or take more chips"
    )


def _which(plan: Plan) -> tuple[str, MeshShape]:
    """The step, as it is rewritten, and the mesh, which plans share that schemes can be beside."""
    return plan.fingerprint, plan.mesh


def _key(plan: Plan) -> tuple[str, tuple[int, ...], Decisions]:
    return plan.fingerprint, plan.mesh.sizes, plan.decisions
