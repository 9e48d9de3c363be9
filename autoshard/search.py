"""The pipeline: a program and a machine in, the best plan found and its proof out.

For every mesh shape that is considered: build the problem, solve it, and solve it again under the
pins of every well-known scheme; schemes are also starting points, so the plan is never worse than
any of them. Mesh shapes whose bound already exceeds the best plan are dropped. The decisions found
are priced by the independent evaluator on the unfolded program, and that price is what a plan says.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autoshard.alternatives import Priced, alternatives
from autoshard.assemble import assemble
from autoshard.baseline_rows import baseline_rows
from autoshard.callable_module import make_callable
from autoshard.conflicts import Conflict
from autoshard.cost.corrections import NONE, Corrections
from autoshard.cost.step import step_prices
from autoshard.dataflow import Dataflow, analyse
from autoshard.decisions import Decisions
from autoshard.demands import demands_of
from autoshard.evaluate import InconsistentPlanError, evaluate
from autoshard.machine import Machine, load
from autoshard.mesh_search import (
    AXIS_NAMES,
    MeshSearcher,
    SearchProgress,
    coarsest_form,
)
from autoshard.meshes import candidate_meshes
from autoshard.plan import Baseline, MeshShape, Plan, Proof
from autoshard.program import Program
from autoshard.repeats import find_repeats
from autoshard.requirements import Requirement
from autoshard.solve import Status
from autoshard.solve.minimum import minimum_limit
from autoshard.subaxes import split
from autoshard.units import format_bytes


class InfeasibleError(ValueError):
    """No plan satisfies what was asked; the message says what would.

    `conflict` is the smallest set of requirements that cannot hold together, where there are any.
    """

    def __init__(self, message: str, conflict: Conflict | None = None) -> None:
        super().__init__(message)
        self.conflict = conflict


class MeshError(ValueError):
    """A mesh that does not use the machine's chips, or an axis of it that divides nothing."""


class NoPlanError(RuntimeError):
    """The time ran out before any plan was found."""


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
    join_sums: bool = True,
    start: Plan | None = None,
    known_bound: float = 0.0,
) -> Plan:
    """Find the best plan for `program` on `machine`.

    Args:
      program: from `autoshard.trace`.
      machine: a `Machine`, the name of a preset such as `v5p-64`, or the path of a TOML file.
      mesh: axis names and sizes, or sizes of the parts into which an axis is split
        (`autoshard.subaxes`); without it, mesh shapes of up to three axes are searched.
      memory_limit: bytes per device; default, what the chip has less its reserve.
      time_limit: seconds for the whole search.
      gap: stop when the plan is proven to be within this fraction of the best.
      baselines: also price the well-known schemes on the same mesh.
      fold: let repeated blocks share their decisions.
      progress: called as the search goes on. An interrupt (Ctrl-C) ends the search with the best
        plan so far, if there is one.
      options: kept in the plan beside those of the trace (`user_rules` of a file, say).
      requirements: records or statements; see `autoshard.requirements`. Only where `mesh` is given
        can they name its axes.
      join_sums: whether terms of a sum of matrix products may stay unreduced until they are added
        up, for one collective to settle them all (`autoshard.sums`).
      constraints: whether shardings that the program itself asks for (`with_sharding_constraint`,
        shardings of a `jax.jit`, `shard_alike`) are requirements too.
      start: a plan to begin with, of this program or one like it (`autoshard.replan.transferred`).
      known_bound: seconds that the caller can prove no plan on these mesh shapes to undercut.

    Raises:
      MeshError: the mesh does not use all chips, or an axis divides nothing.
      RequirementError: requirements name what is not there, or do not fit what they name.
      InfeasibleError: no plan fits; the message names the smallest limit that works, or the
        requirements that cannot hold together.
      NoPlanError: the time limit passed before a plan was found.
    """
    return candidates(
        program,
        machine,
        count=1,
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
        join_sums=join_sums,
        start=start,
        known_bound=known_bound,
    )[0]


def candidates(
    program: Program,
    machine: Machine | str,
    *,
    count: int,
    corrections: Corrections = NONE,
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
    join_sums: bool = True,
    start: Plan | None = None,
    known_bound: float = 0.0,
) -> list[Plan]:
    """The best plan, and other good ones that differ from it, at most `count` in all.

    Args:
      count: how many plans are wanted; see `autoshard.alternatives`.
      corrections: of the prices, from `autoshard.residuals`.

    The other arguments, and what is raised, are those of `search`. The proof of the first plan is
    about the whole space; the others carry its bound.
    """
    machine = load(machine) if isinstance(machine, str) else machine
    searcher, shapes = prepare(
        program,
        machine,
        mesh=mesh,
        memory_limit=memory_limit,
        time_limit=time_limit,
        gap=gap,
        fold=fold,
        progress=progress,
        requirements=requirements,
        constraints=constraints,
        corrections=corrections,
        join_sums=join_sums,
    )
    if start is not None:
        searcher.starts[start.mesh.sizes] = start.decisions
    searcher.ideal = max(searcher.ideal, known_bound)
    found = explore(searcher, shapes)
    baselines = baselines and found.limit_hit != "interrupted"
    return finish(searcher, found, baselines, options, mesh is None, count)


def prepare(
    program: Program,
    machine: Machine,
    *,
    mesh: Mapping[str, int | Sequence[int]] | None = None,
    memory_limit: float | None = None,
    time_limit: float = 60.0,
    gap: float = 0.001,
    fold: bool = True,
    progress: Callable[[SearchProgress], None] | None = None,
    requirements: Sequence[Requirement | str] = (),
    constraints: bool = True,
    corrections: Corrections = NONE,
    analysed: Dataflow | None = None,
    join_sums: bool = True,
) -> tuple[MeshSearcher, list[MeshShape]]:
    """What a search needs, and the mesh shapes that it is to look at.

    `analysed` is `autoshard.dataflow.analyse(program, machine.chip)` where that is known. The
    other arguments, and what is raised, are those of `search`.
    """
    started = time.monotonic()
    limit = machine.chip.usable_bytes if memory_limit is None else float(memory_limit)
    shapes = _shapes(program, machine, mesh)
    given = None if mesh is None else shapes[0]
    demands = demands_of(program, requirements, given, constraints=constraints)
    limit = demands.limit(limit)
    flow = analyse(program, machine.chip) if analysed is None else analysed
    classes = find_repeats(program, fold=fold, marks=demands.marks())
    whole = step_prices(program, flow, machine, (machine.chips,), corrections)
    ideal = whole.ideal_seconds(classes.op_members)
    searcher = MeshSearcher(
        program,
        flow,
        classes,
        machine,
        limit,
        gap,
        progress,
        started,
        time_limit,
        ideal,
        corrections=corrections,
        join_sums=join_sums,
        demands=demands,
    )
    return searcher, shapes


@dataclass(frozen=True, slots=True)
class Explored:
    """The best decisions over all mesh shapes, what ended the search, and a row for every shape.

    `table` has the name of a shape, its bound, and the objective where a plan was found.
    """

    shape: MeshShape
    decisions: Decisions
    limit_hit: str | None
    table: tuple[tuple[str, float, float | None], ...]


def explore(searcher: MeshSearcher, shapes: Sequence[MeshShape]) -> Explored:
    """Search the mesh shapes, one after another.

    Raises:
      InfeasibleError, NoPlanError: as `search`.
    """
    table: list[tuple[str, float, float | None]] = []
    best: MeshShape | None = None
    decisions: Decisions | None = None
    limit_hit: str | None = None
    for number, shape in enumerate(shapes):
        left = searcher.left()
        if number and left <= 0:
            table.append((str(shape), searcher.ideal, None))
            continue
        # The first shape, most alike the network, gets half of the time; the rest share evenly.
        rest = len(shapes) - number
        share = left if rest == 1 else left * (0.5 if number == 0 else 1 / rest)
        try:
            result = searcher.solve(shape.sizes, share)
        except KeyboardInterrupt:
            limit_hit = "interrupted"
            table.extend((str(other), searcher.ideal, None) for other in shapes[number:])
            refined = searcher.refined(shape.sizes)
            if best is None and refined is None:
                raise
            if refined is not None:
                priced = evaluate(searcher.prices(shape.sizes), refined, shape.names)
                if priced.estimate.step_seconds < searcher.cutoff:
                    best, decisions = shape, refined
            break
        report = result.outcome.report
        solved = result.decisions is not None
        table.append(
            (str(shape), max(report.bound, searcher.ideal), report.objective if solved else None)
        )
        if solved and report.objective < searcher.cutoff:
            best, searcher.cutoff = shape, report.objective
            decisions, limit_hit = result.decisions, report.limit_hit
    if best is None or decisions is None:
        raise _failure(searcher)
    return Explored(best, decisions, limit_hit, tuple(table))


def _shapes(
    program: Program, machine: Machine, mesh: Mapping[str, int | Sequence[int]] | None
) -> list[MeshShape]:
    if mesh is None:
        return [MeshShape(AXIS_NAMES[: len(sizes)], sizes) for sizes in candidate_meshes(machine)]
    shape = MeshShape(*split(mesh))
    if math.prod(shape.sizes) != machine.chips or min(shape.sizes, default=0) < 1:
        raise MeshError(
            f"mesh {shape} has {math.prod(shape.sizes)} devices, but {machine.name} has "
            f"{machine.chips} chips; give axes whose sizes multiply to {machine.chips}"
        )
    sizes_seen = {size for value in program.values for size in value.shape}
    useless = [
        f"  axis {name}={size} divides no dimension of any value"
        for name, size in zip(shape.names, shape.sizes, strict=True)
        if size > 1 and not any(dimension % size == 0 for dimension in sizes_seen)
    ]
    if useless:
        raise MeshError(
            f"mesh {shape} cannot be used by {program.name}:\n"
            + "\n".join(useless)
            + "\nchoose axis sizes that divide the batch or the model's dimensions"
        )
    return [shape]


def _failure(searcher: MeshSearcher) -> Exception:
    if not any(f.outcome.status is Status.INFEASIBLE for f in searcher.found.values()):
        return NoPlanError(
            f"the time limit of {searcher.time_limit:g} s passed before any plan was found: give "
            "more time, or fix the mesh"
        )
    conflict = searcher.conflict()
    if conflict is not None and conflict.members:
        text = f"no plan keeps all requirements on {searcher.machine.name}: {conflict}"
        return InfeasibleError(text, conflict)
    reserved = searcher.program.constant_bytes
    smallest = math.inf
    for result in list(searcher.found.values())[:3]:  # the coarsest shapes come first
        needed = minimum_limit(
            result.built.problem, refused=max(searcher.limit - reserved, 0.0), time_limit=15.0
        )
        smallest = min(smallest, needed.achieved + reserved)
    unit, name = (2**20, "MiB") if smallest >= 2**24 else (2**10, "KiB")
    return InfeasibleError(
        f"no plan fits the memory limit of {format_bytes(searcher.limit)} per device on "
        f"{searcher.machine.name}; the smallest limit for which one was found is "
        f"{format_bytes(smallest)}: try --memory-limit {math.ceil(smallest / unit)}{name}"
    )


def finish(
    searcher: MeshSearcher,
    found: Explored,
    baselines: bool = False,
    options: Mapping[str, Any] | None = None,
    free_mesh: bool = True,
    count: int = 1,
) -> list[Plan]:
    """The plans of a search: priced independently, beside the well-known schemes, with a proof."""
    program, machine = searcher.program, searcher.machine
    shape, decisions, table = found.shape, found.decisions, found.table
    demands = searcher.demands
    assert demands is not None
    prices = searcher.prices(shape.sizes)
    evaluation = evaluate(prices, decisions, shape.names)
    penalty = demands.penalty(evaluation, decisions, shape)
    rows: list[tuple[Baseline, Decisions | None]] = []
    if baselines:
        rows = baseline_rows(searcher, shape)
        for _, other in rows:
            if other is None:
                continue
            priced = evaluate(prices, other, shape.names)
            dues = demands.penalty(priced, other, shape)
            seconds = priced.estimate.step_seconds + dues
            if seconds < evaluation.estimate.step_seconds + penalty:
                decisions, evaluation, penalty = other, priced, dues
    schemes = [
        (shape, other, prices, evaluate(prices, other, shape.names))
        for _, other in rows
        if other is not None and count > 1
    ]
    if free_mesh:
        merged = coarsest_form(program, machine, prices, decisions, shape, evaluation)
        if demands.allows(merged[3], merged[0], merged[1]):
            decisions, shape, prices, evaluation = merged
    if not demands.allows(evaluation, decisions, shape):
        broken = [b for b in demands.bounds if demands.broken(b, evaluation, decisions, shape)]
        hard = "; ".join(str(bound) for bound in broken if bound.requirement.hard)
        raise InconsistentPlanError(f"the plan does not keep what must hold: {hard}")
    objective = evaluation.estimate.step_seconds + penalty
    bound = float(min([objective, *(bound for _, bound, _ in table)]))
    left = (objective - bound) / objective if objective > 0 else 0.0
    status = "optimal" if left <= 1e-8 else "feasible"
    proof = Proof(
        status=status,
        objective=objective,
        bound=bound,
        gap=max(left, 0.0),
        seconds=time.monotonic() - searcher.started,
        limit_hit=None if status == "optimal" else found.limit_hit or "time",
        meshes=tuple(
            (name, float(low), None if up is None else float(up)) for name, low, up in table
        ),
    )
    best = (shape, decisions, prices, evaluation)
    others: list[Priced] = []
    if count > 1:
        others = alternatives(searcher, best, schemes, count=count - 1, free_mesh=free_mesh)
    plans = []
    for number, (mesh, chosen, priced, paid) in enumerate((best, *others)):
        seconds = paid.estimate.step_seconds + demands.penalty(paid, chosen, mesh)
        gap = max(seconds - bound, 0.0) / seconds if seconds > 0 else 0.0
        behind = replace(proof, status="feasible", objective=seconds, gap=gap)
        plans.append(
            assemble(
                priced,
                chosen,
                mesh,
                paid,
                proof=behind if number else proof,
                memory_limit=searcher.limit,
                baselines=tuple(baseline for baseline, _ in rows),
                options=options,
                requirements=demands.verdicts(paid, chosen, mesh),
            )
        )
    return plans


make_callable(__name__)
