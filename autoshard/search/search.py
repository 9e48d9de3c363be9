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
from typing import Any

from autoshard.cost.corrections import NONE, Corrections
from autoshard.cost.mesh_shapes import candidate_meshes
from autoshard.cost.step_prices import step_prices
from autoshard.machine.machine import Machine, load
from autoshard.plan.plan import MeshShape, Plan
from autoshard.problem.requirements.demands import demands_of
from autoshard.problem.requirements.records import Requirement
from autoshard.program.facts import Facts
from autoshard.program.repeats import find_repeats
from autoshard.program.subaxes import split
from autoshard.program.trace import Program
from autoshard.search.all_shapes import InfeasibleError, NoPlanError
from autoshard.search.finish import finish
from autoshard.search.memory_loop import explore_fitting
from autoshard.search.one_shape import AXIS_NAMES, MeshSearcher, SearchProgress
from autoshard.xla.facts import analyse

__all__ = [
    "InfeasibleError",
    "MeshError",
    "NoPlanError",
    "SearchProgress",
    "candidates",
    "prepare",
    "search",
]


class MeshError(ValueError):
    """A mesh that does not use the machine's chips, or an axis of it that divides nothing."""


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
        (`autoshard.program.subaxes`); without it, mesh shapes of up to three axes are searched.
      memory_limit: bytes per device; default, what the chip has less its reserve. It holds in the
        order in which the compiler runs the plan, too, where such a plan is found
        (`autoshard.search.memory_loop`).
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
        up, for one collective to settle them all (`autoshard.plan.unreduced_sums`).
      constraints: whether shardings that the program itself asks for (`with_sharding_constraint`,
        shardings of a `jax.jit`, `shard_alike`) are requirements too.
      start: a plan to begin with, of this program or one like it
      (`autoshard.search.replan.transferred`).
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
      count: how many plans are wanted; see `autoshard.search.alternatives`.
      corrections: of the prices, from `autoshard.study.residuals`.

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
    found = explore_fitting(searcher, shapes)
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
    analysed: Facts | None = None,
    join_sums: bool = True,
) -> tuple[MeshSearcher, list[MeshShape]]:
    """What a search needs, and the mesh shapes that it is to look at.

    `analysed` is `autoshard.xla.facts.analyse(program, machine.chip)` where that is known. The
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
