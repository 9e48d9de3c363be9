"""From one plan to the next: another machine or shape, and few changes of what is stored.

A plan that runs has its parameters laid out on disk and in memory. `replan` looks for the best plan
that lays out at most K of them otherwise, and says what each further change would gain:

    changes   step       gain
          0   21.6 ms           whatever stays inside of the step is decided anew
          1   20.1 ms    7 %    [0].layers.*.w1

`reprice` puts a price on a plan as it is, without a solver: on another machine with as many chips,
or for a program of the same form with other shapes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autoshard.machine.load import load
from autoshard.machine.machine import Machine
from autoshard.plan.consistency import InconsistentPlanError
from autoshard.plan.decisions import Decisions
from autoshard.plan.evaluate import evaluate
from autoshard.plan.plan import Plan, PlanError
from autoshard.problem.requirements.bind import bind
from autoshard.problem.requirements.check import changed
from autoshard.problem.requirements.demands import demands_of
from autoshard.problem.requirements.records import ChangeLimit, Requirement
from autoshard.program.layout import divides
from autoshard.program.layout_pattern import Dimension, LayoutPattern
from autoshard.program.select import find_values
from autoshard.program.trace import Program
from autoshard.search.assemble import assemble, forecasted, prices_of
from autoshard.search.search import InfeasibleError, search
from autoshard.search.warm_start import is_like
from autoshard.units import format_seconds

ONE_BY_ONE = 4
"""Up to so many changes the curve has every point; then it doubles."""


@dataclass(frozen=True, slots=True, eq=False)
class Point:
    """The best plan with at most `changes` changes, and which inputs those are."""

    changes: int
    plan: Plan
    changed: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Replanned:
    """The plan, and the curve of cost against changes that leads to it."""

    plan: Plan
    curve: tuple[Point, ...]

    def __str__(self) -> str:
        lines = ["changes  step        gain"]
        first = self.curve[0].plan.proof.objective
        for point in self.curve:
            seconds = point.plan.proof.objective
            gain = f"{100 * (first - seconds) / first:.2f} %" if first > 0 else "-"
            names = ", ".join(point.changed)
            lines.append(f"{point.changes:>7}  {format_seconds(seconds):<10}  {gain:<8} {names}")
        return "\n".join(line.rstrip() for line in lines)


def replan(
    program: Program,
    machine: Machine | str,
    before: Plan,
    *,
    max_changes: int,
    of: str | None = None,
    requirements: Sequence[Requirement | str] = (),
    **options: Any,
) -> Replanned:
    """Find the best plan that lays out few inputs otherwise than an earlier plan.

    Args:
      program: the same as before, or one with the same inputs.
      machine: as in `search`.
      before: the plan to change; its mesh is kept.
      max_changes: how many inputs may change their layout. Those whose paths differ in numbers
        alone (the layers of a model) count once.
      of: the inputs that count, as a target such as `params.**`; by default the state, and all
        inputs of a program without state. The others may change freely.
      requirements: further ones.
      options: of `search`, such as `time_limit`; the limit is for every point of the curve.

    Raises:
      RequirementError: `of` names nothing, or the inputs are not those of the plan.
      InfeasibleError: no plan has so few changes. Requirements may need some: the curve begins with
        the fewest that do.
    """
    layouts = _layouts_before(program, before, of)
    points: list[Point] = []
    start = before
    for count in _counts(max_changes):
        limit = ChangeLimit(layouts, count, of or "state")
        try:
            plan = search(
                program,
                machine,
                mesh=dict(zip(before.mesh.names, before.mesh.sizes, strict=True)),
                requirements=(*requirements, limit),
                start=start,
                **{"baselines": False, **options},
            )
        except InfeasibleError:
            if count < max_changes:
                continue
            raise
        (bound,) = bind(program, [limit], before.mesh)
        points.append(Point(count, plan, tuple(changed(program, bound, plan.mesh, plan.decisions))))
        start = plan
        if len(points[-1].changed) < count:
            break  # more changes are of no use
    return Replanned(points[-1].plan, tuple(points))


def reprice(
    plan: Plan,
    program: Program,
    machine: Machine | str,
    *,
    memory_limit: float | None = None,
    requirements: Sequence[Requirement | str] = (),
    constraints: bool = True,
) -> Plan:
    """A plan as it is, at the prices of a machine; no solver is asked.

    Args:
      plan: with the decisions and the mesh.
      program: that it was made for, or one of the same form with other shapes.
      machine: with as many chips as before.
      memory_limit: bytes per device; by default what the chip has, less its reserve.
      requirements: what the plan is held to; its verdicts tell.
      constraints: whether the program's own count.

    Raises:
      PlanError: the plan does not fit the program, or the machine's number of chips.
      RequirementError: requirements do not fit the program or mesh.
    """
    machine = load(machine) if isinstance(machine, str) else machine
    decisions = transferred(program, plan)
    demands = demands_of(program, requirements, plan.mesh, constraints=constraints)
    try:
        prices = prices_of(plan, program, machine)
        plain = evaluate(prices, decisions, plan.mesh.names)
        evaluation = forecasted(prices, decisions, plain)
    except (InconsistentPlanError, ValueError) as error:
        raise PlanError(str(error)) from error
    return assemble(
        prices,
        decisions,
        plan.mesh,
        evaluation,
        proof=plan.proof,
        memory_limit=machine.chip.usable_bytes if memory_limit is None else memory_limit,
        options=plan.options,
        requirements=demands.verdicts(evaluation, decisions, plan.mesh),
    )


def transferred(program: Program, plan: Plan) -> Decisions:
    """The decisions of a plan, for a program of the same form.

    Raises:
      PlanError: the program has other values or operations, or sizes that the layouts do not cut
        into equal parts; all of those are named.
    """
    if not is_like(program, plan.decisions, len(plan.mesh.sizes)):
        raise PlanError(
            f"the plan was made for {plan.program!r}, and {program.name!r} is not of that form: "
            "other operations, or other ranks; search again"
        )
    faults = []
    stored, copies = plan.decisions.stored, plan.decisions.copy
    for value in program.values:
        for layout in (stored[value.index], copies[value.index]):
            if layout is not None and not divides(value.shape, layout, plan.mesh.sizes):
                faults.append(f"{value.path or value}: {value} in {layout}")
    if faults:
        more = [f"and {len(faults) - 12} more"] if len(faults) > 12 else []
        heading = f"the layouts do not divide the shapes of {program.name!r}; search again:"
        raise PlanError("\n  - ".join([heading, *faults[:12], *more]))
    return plan.decisions


def _layouts_before(program: Program, before: Plan, of: str | None) -> Mapping[str, LayoutPattern]:
    if of is not None:
        inputs = set(program.inputs)
        values = [value for value in find_values(program, of) if value in inputs]
    else:
        values = [program.inputs[i] for i, _ in program.ties] or list(program.inputs)
    specs = before.specs["inputs"]
    paths = [program.values[value].path for value in values if not program.values[value].free]
    absent = [path for path in paths if path not in specs]
    if absent:
        shown = ", ".join(absent[:4])
        raise PlanError(f"the plan has no input {shown}: it was made for {before.program!r}")
    ranks = {program.values[v].path: len(program.values[v].shape) for v in values}
    return {path: _closed(specs[path], ranks[path]) for path in paths}


def _closed(spec: Any, rank: int) -> LayoutPattern:
    entries = [*spec, *(None for _ in range(rank - len(spec)))]
    return LayoutPattern(
        tuple(
            Dimension(() if e is None else (e,) if isinstance(e, str) else tuple(e))
            for e in entries
        )
    )


def _counts(most: int) -> list[int]:
    counts = list(range(min(most, ONE_BY_ONE) + 1))
    while counts[-1] < most:
        counts.append(min(2 * counts[-1], most))
    return counts
