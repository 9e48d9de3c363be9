"""What a search over rewrites has tried: the records."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from autoshard.plan.plan import Plan, Proof
from autoshard.plan.records import KeptValue
from autoshard.program.facts import Facts
from autoshard.program.keep import Residuals, find_residuals
from autoshard.program.trace import Program
from autoshard.search.all_shapes import Explored
from autoshard.search.keep.accumulate import microbatches_of
from autoshard.search.keep.kept_values import kept_values, stacked_bytes
from autoshard.search.keep.proposals import Proposal
from autoshard.search.one_shape import MeshSearcher
from autoshard.search.scheduled.near import scheduled_faster
from autoshard.solve import Status
from autoshard.solve.limit_hit import LimitHit
from autoshard.units import counted, format_seconds

NOTHING = (
    "no loop and no jax.checkpoint of the backward pass reads what the forward pass makes, so that "
    "there is nothing to choose to save"
)


@dataclass(frozen=True, slots=True, eq=False)
class Base:
    """The program in some number of microbatches, its facts, and choices of what it may save.

    A step whose loops run in parts is never planned as it is written: its facts are not asked for.
    `lean` are choices for where none of these has a plan.
    """

    step: Program
    facts: Facts | None = None
    choices: tuple[Proposal, ...] = ()
    lean: tuple[Proposal, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """One choice, planned on some mesh shapes; `plan` is None if it cannot beat the best.

    `base` is the program in as many microbatches and parts of loops, saving what it saves as it is
    written.
    """

    title: str
    base: Program
    program: Program
    searcher: MeshSearcher
    bound: float
    explored: Explored | None = None
    plan: Plan | None = None
    why: str = ""

    @property
    def objective(self) -> float:
        return float("inf") if self.plan is None else self.plan.proof.objective

    @property
    def microbatches(self) -> int:
        return microbatches_of(self.base)


def saved_by(program: Program, residuals: Residuals) -> Collection[str]:
    """The names of what a program saves, of its candidates as it is written."""
    return program.options.get("saved", residuals.saved_as_written())


def hosted_by(program: Program) -> frozenset[str]:
    """The names of the stacks that a program keeps on the host."""
    return frozenset(program.options.get("offloaded", ()))


def device_bytes(trial: Trial) -> float:
    """Bytes of the stacks that a trial keeps on devices, of all devices together."""
    residuals = find_residuals(trial.base.written)
    saved = saved_by(trial.program, residuals)
    return stacked_bytes(residuals, saved, hosted_by(trial.program))


def by_number(trials: Iterable[Trial]) -> dict[int, str]:
    """What became of each number of microbatches, in words."""
    found: dict[int, list[Trial]] = {}
    for one in trials:
        found.setdefault(one.microbatches, []).append(one)
    best = {k: min(tried, key=lambda one: one.objective) for k, tried in found.items()}
    return {k: one.why or f"{format_seconds(one.objective)} a step" for k, one in best.items()}


def proof_of_all(proof: Proof, bounds: Iterable[float], seconds: float) -> Proof:
    """The proof of a choice's plan, with the least bound of all choices."""
    bound = min([proof.bound, *bounds])
    objective = proof.objective
    gap = max(objective - bound, 0.0) / objective if objective > 0 else 0.0
    status = proof.status if gap <= 1e-8 else "feasible"
    hit = proof.limit_hit or (LimitHit.GAP if status == "feasible" else None)
    told = {"bound": bound, "gap": gap, "status": status, "limit_hit": hit}
    return replace(proof, seconds=seconds, **told)


def named(title: str, microbatches: int) -> str:
    """What a choice is called in a number of microbatches."""
    return title if microbatches == 1 else f"{title}, in {microbatches} microbatches"


def best_of(trials: Sequence[Trial], *, by_bytes: bool, by_schedule: bool) -> Trial:
    """The cheapest trial, or one that is scheduled faster.

    Where nothing fits, more microbatches and fewer stacks need less memory.

    Args:
      trials: one at least.
      by_bytes: whether trials without plans are told apart by the bytes of their stacks.
      by_schedule: whether the compiler's schedules count.
    """

    def key(one: Trial) -> tuple[float, int, float]:
        return one.objective, -one.microbatches, device_bytes(one) if by_bytes else 0.0

    best = min(trials, key=key)
    for one in trials if by_schedule else ():
        if one.plan and best.plan and scheduled_faster(one.plan, best.plan):
            best = one
    return best


def cheapest_first(trials: Iterable[Trial]) -> list[tuple[Trial, Plan]]:
    """The choices that have a plan, and that plan, by its price."""
    planned = [(one, one.plan) for one in trials if one.plan is not None]
    return sorted(planned, key=lambda pair: pair[0].objective)


def dearest_wanted(trials: Iterable[Trial], count: int) -> float:
    """Seconds that a plan of another choice must undercut to be among so many cheapest ones."""
    objectives = sorted(one.objective for one in trials)
    return objectives[count - 1] if len(objectives) >= count else float("inf")


def among(found: Sequence[Plan], others: Sequence[Plan]) -> list[Plan]:
    """The first plan that was found, then one of the others and one of its own, by turns.

    All have the bound of the first.
    """
    if not found:
        return []
    mine = found[0].proof
    told = [
        replace(one, proof=proof_of_all(one.proof, [mine.bound], mine.seconds)) for one in others
    ]
    turns = itertools.chain(*itertools.zip_longest(told, found[1:]))
    return [found[0], *(plan for plan in turns if plan is not None)]


def said_of(mine: Trial, best: Trial, trials: Sequence[Trial]) -> str:
    """What a choice saves, and among what it was chosen: `best` is the cheapest of the trials."""
    said = f"what is saved for the backward pass: {mine.title}"
    others = [one for one in trials if one is not mine]
    if not others:
        return f"{said}; nothing else was tried, and the bound holds for it alone"
    times = Counter(one.title for one in others)
    titles = ", ".join(title if n == 1 else f"{title} ({n} of them)" for title, n in times.items())
    place = "the best" if mine is best else "one"
    return (
        f"{said}, {place} of {counted(len(trials), 'choice')} (the others: {titles}); "
        "no choice between them was tried, and the bound holds for the others on the mesh on which "
        "they were planned"
    )


def kept_by(trial: Trial) -> tuple[KeptValue, ...]:
    """What a choice saves, and the products that it computes again."""
    residuals = find_residuals(trial.base.written)
    return kept_values(residuals, saved_by(trial.program, residuals), hosted_by(trial.program))


def bound_below(searcher: MeshSearcher, sizes: tuple[int, ...], cutoff: float) -> float:
    """What no plan on a mesh shape undercuts, where none was found that is below `cutoff`."""
    found = searcher.found.get(sizes)
    if found is None:
        return searcher.ideal
    if found.outcome.status is Status.INFEASIBLE:
        return cutoff
    return max(min(found.outcome.report.bound, cutoff), searcher.ideal)
