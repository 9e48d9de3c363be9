"""The search pipeline: takes a program and a machine, returns the best plan found and its proof.

For each candidate mesh shape, the search builds the problem and solves it. It solves the problem
again with the pins of each well-known scheme. Schemes also serve as starting points, so the plan is
never worse than any of them. The search drops mesh shapes whose bound already exceeds the best
plan. The independent evaluator prices the decisions on the unfolded program, and the plan reports
that price.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from autoshard.cost.mesh_shapes import candidate_meshes
from autoshard.cost.step_prices import step_prices
from autoshard.lower.facts.platforms import without_lowering
from autoshard.machine.load import load
from autoshard.machine.machine import Machine
from autoshard.plan.plan import MeshShape, Plan
from autoshard.problem.requirements.demands import demands_of
from autoshard.problem.requirements.records import Requirement
from autoshard.program.repeats import find_repeats
from autoshard.program.subaxes import split
from autoshard.program.trace import Program
from autoshard.search.all_shapes import InfeasibleError, NoPlanError
from autoshard.search.finish import finish
from autoshard.search.memory_loop import explore_fitting
from autoshard.search.one_shape import AXIS_NAMES, MeshSearcher
from autoshard.search.options import SearchOptions, WarmStart
from autoshard.search.progress import SearchProgress
from autoshard.xla import analyse

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


class MeshError(ValueError):
    """The mesh does not use all of the machine's chips, or one of its axes divides nothing."""


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
    """Return the best plan found for `program` on `machine`.

    Args:
      program: the traced program, from `autoshard.trace`.
      machine: a `Machine`, the name of a preset such as `v5p-64`, or the path of a TOML file.
      mesh, memory_limit, time_limit, gap, baselines, fold, progress, options, requirements,
        constraints, join_sums, start, known_bound: see `autoshard.search.SearchOptions`.

    Raises:
      MeshError: the mesh does not use all chips, or an axis divides nothing.
      RequirementError: a requirement names something that does not exist, or does not fit what it
        names.
      InfeasibleError: no plan fits. The message gives the smallest memory limit that works, or the
        requirements that cannot all hold.
      NoPlanError: the time limit passed before a plan was found.
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
        join_sums=join_sums,
        start=start,
        known_bound=known_bound,
    )
    return candidates(program, machine, words)[0]


def candidates(program: Program, machine: Machine | str, asked: SearchOptions) -> list[Plan]:
    """Return the best plan followed by other good plans, at most `asked.count` in all.

    The other plans differ from the best one. The proof of the first plan covers the whole search
    space; the other plans carry the same bound. Raises the same errors as `search`.
    """
    machine = load(machine) if isinstance(machine, str) else machine
    searcher, shapes = prepare(program, machine, asked)
    return finish(searcher, explore_fitting(searcher, shapes), asked)


def prepare(
    program: Program, machine: Machine, asked: SearchOptions, known: WarmStart | None = None
) -> tuple[MeshSearcher, list[MeshShape]]:
    """Return a configured searcher and the mesh shapes to search; raises the same as `search`."""
    known = known or WarmStart()
    started = time.monotonic()
    _check_platform(program, machine)
    limit = machine.chip.usable_bytes if asked.memory_limit is None else float(asked.memory_limit)
    shapes = _shapes(program, machine, asked.mesh)
    given = None if asked.mesh is None else shapes[0]
    demands = demands_of(program, asked.requirements, given, constraints=asked.constraints)
    flow = analyse(program, machine.chip) if known.facts is None else known.facts
    flow = demands.facts(flow)
    classes = find_repeats(program, fold=asked.fold, marks=demands.marks())
    whole = step_prices(program, flow, machine, (machine.chips,), asked.corrections)
    start = asked.start
    searcher = MeshSearcher(
        program,
        flow,
        classes,
        machine,
        demands.limit(limit),
        asked.gap,
        asked.progress,
        started,
        asked.time_limit,
        max(whole.ideal_seconds(classes.op_members), asked.known_bound),
        corrections=asked.corrections,
        join_sums=asked.join_sums,
        demands=demands,
        starts={} if start is None else {start.mesh.sizes: start.decisions},
        earlier=known.earlier,
        shared=known.shared,
        only_better=known.only_better,
        seeks_limit=known.seeks_limit,
        counted_on=known.counted_on,
    )
    return searcher, shapes


def _check_platform(program: Program, machine: Machine) -> None:
    """Refuse what JAX cannot lower for the machine's chips. Raises InfeasibleError."""
    platforms = machine.chip.compiler.platforms
    missing = without_lowering(program, *platforms) if platforms else []
    if missing:
        raise InfeasibleError(
            f"JAX cannot lower these for {machine.chip.name} ({' or '.join(platforms)}):\n"
            + "\n".join(f"  {op}" for op in missing)
            + "\ncompute them on the host, outside of the step or in jax.pure_callback"
        )


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
