"""Moves from one plan to the next: for another machine or shape, with few changes of layouts.

A plan in use has its parameters laid out on disk and in memory. `replan` finds the best plan that
changes the layout of at most K of them. It also reports what each further change would gain:

    changes   step       gain
          0   21.6 ms           whatever stays inside of the step is decided anew
          1   20.1 ms    7 %    [0].layers.*.w1

`reprice` prices an existing plan as it is, without the solver. The machine may be another one with
the same number of chips, and the program may have other shapes in the same form.
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
from autoshard.program.select import find_values, named_path, shown_path
from autoshard.program.trace import Program
from autoshard.search.assemble import assemble, forecasted, prices_of
from autoshard.search.search import InfeasibleError, search
from autoshard.search.warm_start import is_like
from autoshard.units import format_percent, format_seconds

ONE_BY_ONE = 4
"""Up to this many changes, the curve has a point for each count; beyond, the count doubles."""


@dataclass(frozen=True, slots=True, eq=False)
class Point:
    """The best plan with at most `changes` changed inputs, and the names of those inputs."""

    changes: int
    plan: Plan
    changed: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Replanned:
    """The new plan, and the curve of cost against the number of changes that leads to it."""

    plan: Plan
    curve: tuple[Point, ...]

    def __str__(self) -> str:
        lines = ["changes  step        gain"]
        first = self.curve[0].plan.proof.objective
        for point in self.curve:
            seconds = point.plan.proof.objective
            gain = format_percent((first - seconds) / first, ".2f") if first > 0 else "-"
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
    """Return the best plan that changes the layouts of only a few inputs of an earlier plan.

    Args:
      program: the same as before, or one with the same inputs.
      machine: as in `search`.
      before: the plan to change; its mesh is kept.
      max_changes: how many inputs may change their layout. Inputs whose paths differ only in
        numbers (the layers of a model) count once.
      of: the inputs that count, as a target such as `params.**`. By default the state counts, or
        all inputs of a program without state. Other inputs may change freely.
      requirements: additional requirements.
      options: options of `search`, such as `time_limit`, which applies to each point of the curve.

    Raises:
      RequirementError: `of` names nothing, or the inputs are not those of the plan.
      InfeasibleError: no plan has so few changes. The requirements may force some changes; the
        curve starts with the smallest feasible number of changes.
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
                by_schedule=False,
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
            break  # more changes gain nothing
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
    """Return an existing plan at the prices of a machine, without the solver.

    Args:
      plan: the plan whose decisions and mesh are kept.
      program: the program of the plan, or one of the same form with other shapes.
      machine: a machine with the same number of chips as before.
      memory_limit: bytes per device; by default the chip's memory less its reserve.
      requirements: requirements to check; the verdicts in the plan report the results.
      constraints: whether the program's own requirements count.

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
        options={**plan.options, **({} if constraints else {"constraints": False})},
        requirements=demands.verdicts(evaluation, decisions, plan.mesh),
    )


def transferred(program: Program, plan: Plan) -> Decisions:
    """Return the decisions of a plan, after checking them against a program of the same form.

    Raises:
      PlanError: the program has other values or operations, or the layouts do not divide some of
        its sizes evenly. The message names those.
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
                faults.append(f"{shown_path(program, value.index) or value}: {value} in {layout}")
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
        shown = ", ".join(named_path(path, program.argument_names) for path in absent[:4])
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
