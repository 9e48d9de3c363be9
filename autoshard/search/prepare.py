"""Makes a search ready: the searcher of a program on a machine, and the mesh shapes to search."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from autoshard.cost.mesh_shapes import candidate_meshes
from autoshard.cost.step_prices import step_prices
from autoshard.lower.facts.completed import completed
from autoshard.lower.facts.platforms import without_lowering
from autoshard.machine.machine import Machine
from autoshard.plan.plan import MeshShape
from autoshard.problem.requirements.demands import Demands, demands_of
from autoshard.problem.requirements.preferred import Preferred
from autoshard.program.repeats import find_repeats
from autoshard.program.subaxes import split
from autoshard.program.trace import Program
from autoshard.search.all_shapes import InfeasibleError
from autoshard.search.mesh_axes import AXIS_NAMES
from autoshard.search.one_shape import MeshSearcher
from autoshard.search.options import SearchOptions, WarmStart
from autoshard.units import counted
from autoshard.xla import analyse


class MeshError(ValueError):
    """The mesh is not of the machine's chips, an axis divides nothing, or one that is needed is not
    given."""


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
    if asked.complete:
        demands = replace(demands, completed=_completed(program, given, demands))
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


def _completed(program: Program, mesh: MeshShape | None, demands: Demands) -> Preferred:
    """The layouts that propagation completes. Raises MeshError where it has nothing to go by."""
    if program.explicit:
        raise MeshError(
            f"{program.name} is written for Explicit mesh axes, whose types say how all arrays "
            "lie: nothing is left to complete; search for its plan without complete"
        )
    if mesh is None:
        own = [dict(one.mesh) for one in demands.own if one.mesh]
        shown = ",".join(f"{k}={n}" for k, n in own[0].items() if n > 1) if own else "x=8"
        raise MeshError(
            "what a program says of its arrays is completed on a mesh, which is still to be found: "
            f"give it, as --mesh {shown}"
        )
    return completed(program, mesh, demands.own)


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
            f"mesh {shape} has {counted(math.prod(shape.sizes), 'device')}, but {machine.name} has "
            f"{counted(machine.chips, 'chip')}; give axes whose sizes multiply to {machine.chips}"
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
