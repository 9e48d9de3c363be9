"""What the program and the machine say of a plan, op by op: seconds, collectives, bytes in memory.

A plan file holds sums. The evaluator that made them walks the program once more here, and what it
finds must be what the plan says, to the last digits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields

from autoshard.cost.step_prices import StepPrices
from autoshard.machine.machine import Machine
from autoshard.plan.consistency import InconsistentPlanError
from autoshard.plan.copies import ANEW, FIRST, SECOND
from autoshard.plan.evaluate import Evaluation, compute_seconds, evaluate
from autoshard.plan.moves import copy_moves, op_moves
from autoshard.plan.plan import Move, Plan, PlanError
from autoshard.plan.same_program import as_planned_for
from autoshard.plan.strategies_of import ChosenStrategies
from autoshard.program.readers import Phase
from autoshard.program.trace import Program
from autoshard.search.assemble import prices_of

TOLERANCE = 1e-9
"""Relative; sums of many prices may be taken in another order."""


@dataclass(frozen=True, slots=True)
class PlacedMove:
    """A planned collective: `op` reads what it makes (`before`), or leaves what it settles."""

    move: Move
    op: int
    before: bool


@dataclass(frozen=True, slots=True, eq=False)
class Profile:
    """A plan, op by op.

    Attributes:
      plan: with its figures.
      program, prices: what it was made for; the prices know the machine.
      evaluation: the evaluator's answer; its bytes in use are by program point.
      op_seconds: compute seconds in one step, by op index; ops that are free are left out.
      moves: every planned collective, where it runs.
    """

    plan: Plan
    program: Program
    prices: StepPrices
    evaluation: Evaluation
    op_seconds: Mapping[int, float]
    moves: tuple[PlacedMove, ...]

    @property
    def order(self) -> Sequence[int]:
        """Op indices in the order in which they run: the k-th stands at program point k."""
        when = self.prices.dataflow.when
        return sorted(range(len(when)), key=lambda op: when[op])

    @property
    def machine(self) -> Machine:
        """The machine at whose prices the plan stands."""
        return self.prices.machine


def profile(plan: Plan, program: Program, machine: Machine) -> Profile:
    """Walk the program of a plan once more.

    Raises:
      PlanError: the program is another one, or at the prices of this machine the plan costs
        otherwise than it says; the figures that differ are listed.
    """
    plan, program = as_planned_for(plan, program)
    try:
        prices = prices_of(plan, program, machine)
        found = evaluate(prices, plan.decisions, plan.mesh.names)
    except (InconsistentPlanError, ValueError) as error:
        raise PlanError(str(error)) from error
    differences = list(_differences(plan, found))
    if differences:
        heading = (
            f"the plan's figures are not those of its decisions on {machine.name}; it was made for "
            f"{plan.machine}, or by another version: price it with `autoshard check`, or search "
            "again"
        )
        raise PlanError("\n  - ".join([heading, *differences]))
    seconds = {op.index: took for op, _, took in compute_seconds(prices, plan.decisions)}
    moves = tuple(placed_moves(prices, plan))
    return Profile(plan, program, prices, found, seconds, moves)


def placed_moves(prices: StepPrices, plan: Plan) -> Iterator[PlacedMove]:
    """Every collective of a plan, in the order of the ops that it serves or settles."""
    program, flow, names = prices.program, prices.dataflow, plan.mesh.names
    before: dict[int, list[Move]] = {}
    for value in program.values:
        if plan.decisions.copy[value.index] is None:
            continue
        mode = plan.decisions.mode[value.index]
        first = {use.phase: use.op for use in reversed(flow.readers[value.index])}
        places = [
            first[phase]
            for phase, bit in ((Phase.FIRST, FIRST), (Phase.SECOND, SECOND))
            if mode & bit and phase in first
        ]
        # A copy that is made anew has every move twice in a row, one for each pass.
        for number, move in enumerate(copy_moves(prices, plan.decisions, value.index, names)):
            place = places[number % 2 if mode == ANEW else 0]
            before.setdefault(place, []).append(move)
    chosen = ChosenStrategies(plan.decisions, prices.mesh_shape)
    for op in program.ops:
        for move in before.get(op.index, ()):
            yield PlacedMove(move, op.index, before=True)
        if plan.decisions.assignment[op.index] is not None:
            for move in op_moves(prices, op, chosen(op), names):
                yield PlacedMove(move, op.index, before=False)


def _differences(plan: Plan, found: Evaluation) -> Iterator[str]:
    for field in fields(plan.estimate):
        said, is_ = getattr(plan.estimate, field.name), getattr(found.estimate, field.name)
        if isinstance(said, str) or is_ is None:  # `scheduled_bytes` is not the evaluator's
            continue
        slack = 1.0 if isinstance(said, int) else 0.0
        if not math.isclose(said, is_, rel_tol=TOLERANCE, abs_tol=slack):
            yield f"{field.name}: {said!r} in the plan, {is_!r} now"
