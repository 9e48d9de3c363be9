"""Weights cast before the loops that read them, as a choice of a search.

A loop that casts a slice of its weights in each turn gathers them turn by turn, in the narrow type,
or all at once before it, in the wide one. Cast before it (`autoshard.program.keep.early_casts`),
they are gathered all at once in the narrow type where there is room for that, once for all
microbatches and for both passes, and each turn reads half the bytes; for this the narrow copy is
there while the loops run. What a step saves is chosen first, and then tried with its weights cast
so. It has to gain something (`LEAST`): gathered turn by turn weights need less memory, and a
schedule may hide more of that than prices know (Llama-3-8B on h100-64, JAX 0.12: 0.444 s predicted
either way, 0.422 s compiled turn by turn and 0.444 s at once).

For XLA:TPU nothing is tried: it casts weights before loops itself (ViT-L/16 on v5e-16 compiles to
the same 0.3481 s either way), and gathers at once gain nothing there (Llama-3-8B on v5p-64: 0.745
and 0.746 s compiled, JAX 0.12, where 0.690 and 0.662 s were predicted).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autoshard.machine.compiler import Compiler
from autoshard.program.keep import find_residuals
from autoshard.program.keep.early_casts import cast_inputs
from autoshard.program.rewritten import casting_early
from autoshard.program.trace import Program, TraceError
from autoshard.search.keep.accumulate import microbatches_of
from autoshard.search.keep.proposals import Proposal
from autoshard.search.keep.trials import Base, Trial, hosted_by, named, saved_by
from autoshard.units import counted, format_seconds

LEAST = 0.02
"""Of a step, what early casts must gain."""

EARLY = "weights cast before their loops"


Beside = tuple[Base, Proposal, Trial, float]
"""A step rewritten and what it is to save, the trial that it comes from, and what it must gain."""


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
        made.append(rewritten(one, step, EARLY, LEAST))
    return made


def best_with_plan(trials: Sequence[Trial]) -> list[Trial]:
    """The best choice in each number of microbatches that has a plan, the cheapest first."""
    best: dict[int, Trial] = {}
    for one in sorted(trials, key=lambda one: one.objective):
        best.setdefault(one.microbatches, one)
    return [one for one in best.values() if one.plan is not None]


def rewritten(trial: Trial, step: Program, how: str, least: float) -> Beside:
    """What a trial saves, as a choice of a step that is its own rewritten; `how`, in words."""
    own, residuals = find_residuals(trial.base.written), find_residuals(step.written)
    saved = frozenset(saved_by(trial.program, own)).intersection(residuals.homes)
    away = hosted_by(trial.program).intersection(residuals.stacks(saved))
    title = trial.title.removesuffix(named("", microbatches_of(trial.base)))
    ahead = trial.program.options.get("prefetch", False)
    return Base(step), Proposal(f"{title}, {how}", saved, away, ahead), trial, least


def worth_it(trial: Trial, before: Trial, least: float) -> Trial:
    """The trial of a rewritten step, without its plan where that gains less than `least`."""
    if trial.plan is None or trial.objective < (1 - least) * before.objective:
        return trial
    took = format_seconds(trial.objective)
    return replace(trial, plan=None, explored=None, why=f"it takes {took} a step, hardly less")


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
