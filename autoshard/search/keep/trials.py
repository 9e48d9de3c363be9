"""What a search over rewrites has tried: the records."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from autoshard.plan.plan import Plan
from autoshard.program.facts import Facts
from autoshard.program.keep import Residuals
from autoshard.program.trace import Program
from autoshard.search.all_shapes import Explored
from autoshard.search.keep.accumulate import microbatches_of
from autoshard.search.keep.proposals import Proposal
from autoshard.search.one_shape import MeshSearcher


@dataclass(frozen=True, slots=True, eq=False)
class Base:
    """The program in some number of microbatches, its facts, and choices of what it may save."""

    step: Program
    facts: Facts
    choices: tuple[Proposal, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """One choice, planned on some mesh shapes; `plan` is None if it cannot beat the best.

    `base` is the program in as many microbatches, saving what it saves as it is written.
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
