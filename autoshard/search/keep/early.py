"""Weights cast before the loops that read them, as a choice of a search.

A loop that casts a slice of its weights in each turn gathers them turn by turn, in the narrow type,
or all at once before it, in the wide one. Cast before it (`autoshard.program.keep.early_casts`),
they are gathered all at once in the narrow type where there is room for that, once for all
microbatches and for both passes, and each turn reads half the bytes; for this the narrow copy is
there while the loops run. What a step saves is chosen first, and then tried with its weights cast
so. It has to gain something (`LEAST`), by prices and as it is scheduled: gathered turn by turn
weights need less memory, and a schedule may hide more of that than prices know (Llama-3-8B on
h100-64, JAX 0.12: priced 0.426 s turn by turn and 0.397 s at once, scheduled 0.445 and 0.457 s,
compiled 0.422 and 0.447 s).

For XLA:TPU nothing is tried: it casts weights before loops itself (ViT-L/16 on v5e-16 compiles to
the same 0.3481 s either way), and gathers at once gain nothing there (Llama-3-8B on v5p-64: 0.745
and 0.746 s compiled, JAX 0.12, where 0.690 and 0.662 s were predicted).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from autoshard.machine.compiler import Compiler
from autoshard.plan.plan import MeshShape
from autoshard.program.keep import find_residuals
from autoshard.program.keep.early_casts import cast_inputs
from autoshard.program.rewritten import casting_early
from autoshard.program.trace import Program, TraceError
from autoshard.search.keep.accumulate import microbatches_of
from autoshard.search.keep.proposals import Proposal
from autoshard.search.keep.trials import Base, Trial, hosted_by, named, saved_by
from autoshard.search.scheduled.near import beyond_prices
from autoshard.units import counted, format_seconds

LEAST = 0.02
"""Of a step, what early casts must gain."""

EARLY = "weights cast before their loops"


@dataclass(frozen=True, slots=True)
class Beside:
    """A step rewritten, to be tried beside the choice that it comes from.

    Attributes:
      base: the step.
      choice: what it is to save.
      before: the trial that it comes from, which has a plan.
      least: of a step, what it must gain.
      scheduled: whether it must gain so much as scheduled, too.
    """

    base: Base
    choice: Proposal
    before: Trial
    least: float = 0.0
    scheduled: bool = True

    @property
    def shape(self) -> MeshShape:
        """The mesh shape of the plan before."""
        assert self.before.explored is not None
        return self.before.explored.shape

    def judged(self, trial: Trial, *, by_schedule: bool) -> Trial:
        """The trial of it, without its plan where that gains less than it must.

        With `by_schedule`, schedules count.
        """
        ways = (False, True) if by_schedule and self.scheduled else (False,)
        for scheduled in ways if trial.plan is not None else ():
            took = _seconds(trial, scheduled)
            if took >= (1.0 - self.least) * _seconds(self.before, scheduled):
                why = f"it takes {format_seconds(took)} a step, hardly less"
                return replace(trial, plan=None, explored=None, why=why)
        return trial


def _seconds(trial: Trial, scheduled: bool) -> float:
    """Of a trial that has a plan, by its prices or as it is scheduled."""
    assert trial.plan is not None
    return trial.objective + (beyond_prices(trial.plan.estimate) if scheduled else 0.0)


def cast_before(trials: Sequence[Trial], compiler: Compiler) -> list[Beside]:
    """The best choice in each number of microbatches, with weights cast early, and its trial.

    None of those that have no plan, or nothing to cast, or that cast early already.
    """
    if compiler.name == "xla:tpu":
        return []
    made = []
    for one in best_with_plan(trials):
        if "early_casts" in one.program.options:
            continue
        try:
            step = casting_early(one.base)
        except TraceError:
            continue
        made.append(rewritten(one, step, EARLY, least=LEAST))
    return made


def best_with_plan(trials: Sequence[Trial]) -> list[Trial]:
    """The best choice in each number of microbatches that has a plan, the cheapest first."""
    best: dict[int, Trial] = {}
    for one in sorted(trials, key=lambda one: one.objective):
        best.setdefault(one.microbatches, one)
    return [one for one in best.values() if one.plan is not None]


def rewritten(
    trial: Trial, step: Program, how: str, *, least: float = 0.0, scheduled: bool = True
) -> Beside:
    """What a trial saves, as a choice of a step that is its own rewritten; `how`, in words.

    `least` and `scheduled` are those of `Beside`.
    """
    own, residuals = find_residuals(trial.base.written), find_residuals(step.written)
    saved = frozenset(saved_by(trial.program, own)).intersection(residuals.homes)
    away = hosted_by(trial.program).intersection(residuals.stacks(saved))
    title = trial.title.removesuffix(named("", microbatches_of(trial.base)))
    ahead = trial.program.options.get("prefetch", False)
    choice = Proposal(f"{title}, {how}", saved, away, ahead)
    return Beside(Base(step), choice, trial, least, scheduled)


def cast_early_note(program: Program) -> list[str]:
    """A note on the weights that a program casts before its loops; none where there are none."""
    if "early_casts" not in program.options:
        return []
    by_type: dict[str, list[str]] = {}
    for place, dtype in cast_inputs(program.written):
        by_type.setdefault(dtype.name, []).append(program.input_paths[place])
    listed = []
    for dtype, paths in by_type.items():
        more = f" and {counted(len(paths) - 1, 'other')}" if len(paths) > 1 else ""
        listed.append(f"{paths[0]}{more} to {dtype}")
    return [
        f"{EARLY}: {', '.join(listed)}, as WEIGHT.astype(TYPE) ahead of jax.lax.scan casts them"
    ]
