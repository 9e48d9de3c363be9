"""Which values of a plan are dearest as they lie: what brings them there, and what they hold.

A value costs what its collectives add to the step: those that settle the partial sums of which it
is made, and those that make its resharded copy. Values of repeated layers that lie alike are one
entry.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from autoshard.machine.load import load
from autoshard.machine.machine import Machine
from autoshard.plan.moves import copy_moves, op_moves
from autoshard.plan.plan import Move, Plan
from autoshard.plan.same_program import as_planned_for
from autoshard.plan.strategies_of import ChosenStrategies
from autoshard.problem.requirements.bind import shown_layout
from autoshard.program.select import shown_path
from autoshard.program.trace import Program
from autoshard.search.assemble import prices_of


@dataclass(frozen=True, slots=True)
class Dear:
    """A value, or values of repeated layers, with what their layout costs.

    Attributes:
      target: how a requirement or `autoshard explain` names them.
      type: type and layout of one, as `f32[8@x, 4]`.
      count: how many of them there are.
      exposed_seconds, seconds: of their collectives in a step, exposed and in all.
      bytes: what all of them hold on a device; 0 where they are not arguments or results.
    """

    target: str
    type: str
    count: int
    exposed_seconds: float
    seconds: float
    bytes: float


def dearest(program: Program, machine: Machine | str, plan: Plan) -> list[Dear]:
    """All values that have a layout and cost seconds or hold state, the dearest first.

    Args:
      program, machine: those of the plan.
      plan: a plan of the program.

    Raises:
      PlanError: the plan is for another program.
    """
    machine = load(machine) if isinstance(machine, str) else machine
    plan, program = as_planned_for(plan, program)
    prices = prices_of(plan, program, machine)
    names, decisions = plan.mesh.names, plan.decisions
    chosen = ChosenStrategies(decisions, prices.mesh_shape, prices.evaluated)
    costs: dict[int, list[Move]] = defaultdict(list)
    for op in program.ops:
        if decisions.assignment[op.index] is not None:
            for move in op_moves(prices, op, chosen(op), names):
                costs[op.outputs[0]].append(move)
    for value, copy in enumerate(decisions.copy):
        if copy is not None:
            costs[value] += copy_moves(prices, decisions, value, names)
    ends = {*program.inputs, *program.outputs}
    alike: dict[tuple[str, str], list[int]] = defaultdict(list)
    for value in sorted(ends | costs.keys()):
        layout = decisions.stored[value]
        if layout is not None:
            kind = shown_layout(program, value, layout, plan.mesh)
            alike[target_of(program, value, every=True), kind].append(value)
    found = []
    for (target, kind), values in alike.items():
        moves = [move for value in values for move in costs[value]]
        held = [prices.local_bytes(v, np.array(decisions.stored[v])) for v in values if v in ends]
        found.append(
            Dear(
                target=target if len(values) > 1 else target_of(program, values[0]),
                type=kind,
                count=len(values),
                exposed_seconds=sum(move.exposed_seconds for move in moves),
                seconds=sum(move.seconds for move in moves),
                bytes=float(np.sum(held)),
            )
        )
    return sorted(found, key=lambda one: (-one.exposed_seconds, -one.seconds, -one.bytes))


def target_of(program: Program, value: int, *, every: bool = False) -> str:
    """A target that names a value, or of repeated layers every one (`layers[*].w1`)."""
    path = shown_path(program, value)
    if not path:
        op = program.ops[program.values[value].producer]
        side = "backward " if op.backward else ""
        return f"{side}line {op.line}:{op.primitive}" if op.line else f"{side}scope {op.scope}"
    if not every:
        return path
    first = re.match(r"result\[\d+\]", path)
    kept = first[0] if first else ""
    return kept + re.sub(r"\[\d+\]", "[*]", path.removeprefix(kept))
