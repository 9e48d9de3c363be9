"""The search pipeline: takes a program and a machine, returns the best plan found and its proof.

For each candidate mesh shape, the search builds the problem and solves it. It solves the problem
again with the pins of each well-known scheme. Schemes also serve as starting points, so the plan is
never worse than any of them. The search drops mesh shapes whose bound already exceeds the best
plan. The independent evaluator prices the decisions on the unfolded program, and the plan reports
that price.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from autoshard.lower.facts.platforms import platform_to_read
from autoshard.machine.load import load
from autoshard.machine.machine import Machine
from autoshard.plan.plan import Plan
from autoshard.problem.requirements.records import Requirement
from autoshard.program.rewritten import on_platforms
from autoshard.program.trace import Program
from autoshard.search.all_shapes import InfeasibleError, NoPlanError
from autoshard.search.finish import finish
from autoshard.search.keep.search import search_rewrites
from autoshard.search.memory_loop import explore_fitting
from autoshard.search.options import Remat, SearchOptions, WarmStart
from autoshard.search.padded_steps import with_notes, with_sentences, without_their_time
from autoshard.search.padding import paddings, unpriced
from autoshard.search.prepare import MeshError, prepare
from autoshard.search.progress import SearchProgress
from autoshard.search.scheduled.overlap import searched_again

__all__ = [
    "InfeasibleError",
    "MeshError",
    "NoPlanError",
    "SearchOptions",
    "SearchProgress",
    "WarmStart",
    "candidates",
    "prepare",
    "search",
]


def search(
    program: Program,
    machine: Machine | str,
    *,
    mesh: Mapping[str, int | Sequence[int]] | None = None,
    memory_limit: float | None = None,
    time_limit: float = 60.0,
    gap: float = 0.001,
    baselines: bool = True,
    fold: bool = True,
    progress: Callable[[SearchProgress], None] | None = None,
    options: Mapping[str, Any] | None = None,
    requirements: Sequence[Requirement | str] = (),
    constraints: bool = True,
    complete: bool = False,
    join_sums: bool = True,
    start: Plan | None = None,
    known_bound: float = 0.0,
    remat: Remat = "respect",
    accumulate: Sequence[int] = (1,),
    by_schedule: bool = True,
) -> Plan:
    """Return the best plan found for `program` on `machine`.

    Args:
      program: the traced program, from `autoshard.trace`.
      machine: a `Machine`, the name of a preset such as `v5p-64`, or the path of a TOML file.
      mesh, memory_limit, time_limit, gap, baselines, fold, progress, options, requirements,
        constraints, complete, join_sums, start, known_bound, remat, accumulate, by_schedule:
        see `autoshard.search.SearchOptions`.

    Raises:
      MeshError: the mesh does not use all chips, or an axis divides nothing.
      RequirementError: a requirement names something that does not exist, or does not fit what it
        names.
      InfeasibleError: no plan fits. The message gives the smallest memory limit that works, or the
        requirements that cannot all hold.
      NoPlanError: the time limit passed before a plan was found.
      TraceError: the step cannot be cut into any of the numbers of microbatches.
    """
    words = SearchOptions(
        mesh=mesh,
        memory_limit=memory_limit,
        time_limit=time_limit,
        gap=gap,
        baselines=baselines,
        fold=fold,
        progress=progress,
        options=options,
        requirements=requirements,
        constraints=constraints,
        complete=complete,
        join_sums=join_sums,
        start=start,
        known_bound=known_bound,
        remat=remat,
        accumulate=accumulate,
        by_schedule=by_schedule,
    )
    return candidates(program, machine, words)[0]


def candidates(program: Program, machine: Machine | str, asked: SearchOptions) -> list[Plan]:
    """Return the best plan followed by other good plans, at most `asked.count` in all.

    The other plans differ from the best one. The proof of the first plan covers the whole search
    space; the other plans carry the same bound. Raises the same errors as `search`.
    """
    machine = load(machine) if isinstance(machine, str) else machine
    read = (platform_to_read(program),)  # by the judges, where no compiler is known
    program = on_platforms(program, machine.chip.compiler.platforms or read)
    if asked.remat != "respect" or tuple(asked.accumulate) != (1,):
        plans = search_rewrites(program, machine, asked)
        why = "--remat and --accumulate"
        return with_sentences(plans, unpriced(program, machine.chips, why))

    def find(now: SearchOptions) -> list[Plan]:
        return _as_written(program, machine, now)

    return searched_again(find, program, machine, asked)


def _as_written(program: Program, machine: Machine, asked: SearchOptions) -> list[Plan]:
    tried = paddings(program, machine.chips) if asked.baselines else []
    searcher, shapes = prepare(program, machine, without_their_time(asked, tried))
    plans = finish(searcher, explore_fitting(searcher, shapes), asked)
    return with_notes(program, machine, plans, asked, tried)
