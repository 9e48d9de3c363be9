"""What a search must obey: the requirements on one program, and the problem under them.

Priorities are settled one after the other. With d_k the number of dropped requirements of p_k, the
search first finds the least d_0 that any plan has, then the least d_1 of all plans with that d_0,
and so on; these become rows of the problem, and seconds decide among what is left.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from autoshard.cost.step_prices import StepPrices
from autoshard.plan.decisions import Decisions
from autoshard.plan.evaluate import Evaluation
from autoshard.plan.plan import MeshShape, Plan
from autoshard.problem.build import Built
from autoshard.problem.requirements import text as statements
from autoshard.problem.requirements.bind import Bound, axes_of, bind, marks
from autoshard.problem.requirements.check import broken, found_rules
from autoshard.problem.requirements.from_program import Constraint, constraints_of, own_mesh_notes
from autoshard.problem.requirements.preferred import Preferred, laid_out
from autoshard.problem.requirements.records import MemoryLimit, Pin, Requirement
from autoshard.problem.requirements.reshard_places import all_places, reshard_places
from autoshard.problem.requirements.restrict import restricted
from autoshard.program.facts import Facts
from autoshard.program.layout_pattern import LayoutPattern
from autoshard.program.trace import Program
from autoshard.solve import Problem, Usage
from autoshard.solve.pipeline import solve
from autoshard.units import counted


@dataclass(frozen=True, slots=True, eq=False)
class Demands:
    """Requirements that are bound to a program.

    Attributes:
      program: what they are about.
      bounds: the requirements.
      names: of the mesh axes, where the mesh is given; they may be named then.
      own: what the program itself demands, with the meshes on which it does.
      completed: further layouts, of as many bytes of values as can be kept at once.
    """

    program: Program
    bounds: tuple[Bound, ...] = ()
    names: tuple[str, ...] | None = None
    own: tuple[Constraint, ...] = ()
    completed: Preferred | None = None

    @property
    def fixed(self) -> bool:
        """Whether they speak of the axes of one mesh, and so cannot be put to a coarser one."""
        return self.completed is not None or any(axes_of(bound) for bound in self.bounds)

    def facts(self, flow: Facts, *, everywhere: bool = False) -> Facts:
        """The facts of the program, with the places where requirements make it reshard.

        Args:
          flow: of the program.
          everywhere: in all kernels that requirements touch, for a mesh on which nothing else does.
        """
        places = all_places if everywhere else reshard_places
        bounds = (*self.bounds, *self._also)
        return replace(flow, parted=places(self.program, flow, bounds))

    @property
    def _also(self) -> tuple[Bound, ...]:
        """What is completed, as a requirement."""
        if not self.completed:
            return ()
        pin = Pin("all", LayoutPattern((), more=True))
        return (Bound(pin, pins=tuple(self.completed.values.items())),)

    def marks(self) -> Mapping[int, tuple[str, ...]]:
        """What is asked of every value, for `find_repeats`."""
        found = dict(marks((*self.bounds, *self._also)))
        for op, layouts in self.completed.ops.items() if self.completed else ():
            value = self.program.ops[op].outputs[0]
            found[value] = (*found.get(value, ()), str(layouts))
        return found

    def limit(self, limit: float) -> float:
        """The least of a memory limit and those that must hold, in bytes."""
        hard = [b.requirement for b in self.bounds if b.requirement.hard]
        return min([limit, *(one.bytes for one in hard if isinstance(one, MemoryLimit))])

    def mesh(self, sizes: Sequence[int]) -> MeshShape:
        """A mesh of these sizes, with the names of the search where it has as many axes."""
        names = self.names or ()
        if len(names) != len(sizes):  # a coarser mesh, or one that is searched
            names = tuple(f"axis_{number}" for number in range(len(sizes)))
        return MeshShape(names, tuple(sizes))

    def applied(self, built: Built, *, seconds: float, counted: StepPrices | None = None) -> Built:
        """The problem under all requirements, priorities settled.

        Args:
          built: the problem without them.
          seconds: for settling priorities; what is found in that time stands.
          counted: prices by which reshards have the sequences of collectives that limits count;
            by default those of the problem.

        Raises:
          EmptyDomainError: no choice is left to some value.
        """
        if not self.bounds and not self.completed:
            return built
        shape = self.mesh(built.prices.mesh_shape)
        asked = built if counted is None else replace(built, prices=counted)
        asked = restricted(asked, self.bounds, shape)
        if self.completed:
            asked = laid_out(asked, self.completed, shape, seconds=seconds)
        found = _prioritised(asked, seconds)
        return found if counted is None else replace(found, prices=built.prices)

    def penalty(self, evaluation: Evaluation, decisions: Decisions, mesh: MeshShape) -> float:
        """The prices, in seconds, of the requirements that a plan breaks."""
        return sum(
            bound.requirement.price
            for bound in self.bounds
            if bound.requirement.price and self.broken(bound, evaluation, decisions, mesh)
        )

    def broken(
        self, bound: Bound, evaluation: Evaluation, decisions: Decisions, mesh: MeshShape
    ) -> list[str]:
        """How a plan breaks one of the requirements; see `autoshard.problem.requirements.check`."""
        estimate, moves = evaluation.estimate, evaluation.moves
        return broken(self.program, bound, mesh, decisions, estimate, moves)

    def allows(self, evaluation: Evaluation, decisions: Decisions, mesh: MeshShape) -> bool:
        """Whether a plan keeps every requirement that must hold."""
        return not any(
            self.broken(bound, evaluation, decisions, mesh)
            for bound in self.bounds
            if bound.requirement.hard
        )

    def notes(self, mesh: MeshShape) -> tuple[str, ...]:
        """What a reader of a plan on this mesh should know of how requirements were read."""
        notes = own_mesh_notes(self.own, mesh)
        if self.completed:
            completed = (
                f"{len(self.completed.values)} arrays lie as Shardy's propagation completes the "
                "program's own annotations, wherever a plan can have them so; the search was for "
                "the rest"
            )
            notes = (*notes, completed)
        return notes

    def verdicts(
        self, evaluation: Evaluation, decisions: Decisions, mesh: MeshShape
    ) -> tuple[Mapping[str, Any], ...]:
        """For every requirement, what a plan says of it; plain data.

        Keys: `text`, `source`, `kept`, `how` (it is broken), `rules` (found for logical names), and
        the requirement itself, unless it is the program's own.
        """
        found = []
        for bound in self.bounds:
            how = self.broken(bound, evaluation, decisions, mesh)
            verdict: dict[str, Any] = {
                "text": str(bound.requirement),
                "source": bound.requirement.source,
                "kept": not how,
                "how": how[:4],
            }
            if bound.names and not how:
                rules = found_rules(bound, mesh, decisions)
                verdict["rules"] = {name: list(axes) for name, axes in rules.items()}
            if not bound.own:
                verdict["requirement"] = statements.to_json(bound.requirement)
            found.append(verdict)
        return tuple(found)


def demands_of(
    program: Program,
    requirements: Sequence[Requirement | str],
    mesh: MeshShape | None,
    *,
    constraints: bool = True,
) -> Demands:
    """The demands of a user and of the program itself.

    Args:
      program: what is planned.
      requirements: records or statements.
      mesh: where it is given.
      constraints: whether what the program itself says counts.

    Raises:
      RequirementError: with everything that is wrong with them.
    """
    own = constraints_of(program) if constraints else ()
    bounds = bind(program, statements.requirements_of(requirements), mesh, constraints=own)
    return Demands(program, bounds, None if mesh is None else mesh.names, own)


def refuted(program: Program, plan: Plan, evaluation: Evaluation) -> tuple[int, list[str]]:
    """How many requirements a plan is held to, and a sentence for each that refutes it.

    The program's own are read from it anew, so that none is lost on the way to the plan.

    Args:
      program: of the plan.
      plan: with the requirements that it says it keeps.
      evaluation: of its decisions.

    Raises:
      RequirementError: a requirement of the plan makes no sense for the program.
    """
    given = [one["requirement"] for one in plan.requirements if "requirement" in one]
    counts = bool(plan.options.get("constraints", True))
    asked = [statements.from_json(one) for one in given]
    demands = demands_of(program, asked, plan.mesh, constraints=counts)
    said = {one["text"]: bool(one["kept"]) for one in plan.requirements}
    faults = []
    for bound in demands.bounds:
        how = demands.broken(bound, evaluation, plan.decisions, plan.mesh)
        if how and (bound.requirement.hard or said.get(str(bound.requirement))):
            faults.append(f"{bound} is broken: {how[0]}")
    own = sum(bound.own for bound in demands.bounds)
    known = len(plan.requirements) - len(given)
    if counts and known < own:
        faults.append(
            f"the plan knows {known} of the {counted(own, 'requirement')} of the program itself"
        )
    return len(demands.bounds), faults


def _prioritised(built: Built, seconds: float) -> Built:
    """The problem in which as many requirements of every priority are kept as can be."""
    hubs = [hub for hub in built.hubs if not hub.name]
    levels = sorted({hub.bound.requirement.priority for hub in hubs} - {None})
    stop = time.monotonic() + seconds
    start: list[tuple[int, ...]] = []
    for number, level in enumerate(levels):
        ours = [(hub.node, hub.dropped) for hub in hubs if hub.bound.requirement.priority == level]
        left = max(stop - time.monotonic(), 0.5) / (len(levels) - number)
        counted = _counting(built.problem, ours)
        outcome = solve(counted, time_limit=left, gap=0.0, warm_start=start)
        if outcome.solution is None:
            return built  # the search says why
        start = [outcome.solution.choices]
        most = round(outcome.report.objective)
        built = replace(built, problem=_at_most(built.problem, ours, most))
    return built


def _counting(problem: Problem, hubs: Sequence[tuple[int, int | None]]) -> Problem:
    """The problem whose price is the number of dropped hubs."""
    dropped = dict(hubs)
    nodes = []
    for number, node in enumerate(problem.nodes):
        costs = np.zeros(node.costs.size)
        if dropped.get(number) is not None:
            costs[dropped[number]] = 1.0
        nodes.append(replace(node, costs=costs))
    return replace(problem, nodes=tuple(nodes), offset=0.0)


def _at_most(problem: Problem, hubs: Sequence[tuple[int, int | None]], most: int) -> Problem:
    """The problem with a row: at most so many of the hubs are dropped."""
    usages, limit = list(problem.usages), problem.limit
    if limit is None:
        usages, limit = [], 1.0
    end = max((usage.stop for usage in usages), default=0)
    for node, dropped in hubs:
        if dropped is not None:
            amounts = np.zeros(problem.nodes[node].costs.size)
            amounts[dropped] = limit / (most + 0.5)
            usages.append(Usage(node, amounts, end, end + 1))
    return replace(problem, usages=tuple(usages), limit=limit)
