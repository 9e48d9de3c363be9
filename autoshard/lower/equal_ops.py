"""Equal ops that a plan lays out otherwise, kept apart: XLA:TPU makes one of them before it cuts.

    forward    h / n     n: f32[b, 1] is broadcast to h's shape, cut by rows
    backward   g / n     the same broadcast, cut by rows and columns

The two broadcasts are one instruction by then, in the layout of one of its readers, and the other
reader gathers it. So the operand of the second has one more constraint, which says nothing of where
it lies: ops of other operands are not equal.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from autoshard.plan.decisions import Decisions
from autoshard.plan.strategies_of import ChosenStrategies
from autoshard.program.trace import Op, Program


def constraints_apart(
    program: Program, decisions: Decisions, chosen: ChosenStrategies
) -> dict[tuple[int, int], int]:
    """How many constraints an operand has beyond those planned, by op and position.

    Ops are taken for equal if they might be: of one kind, operands, shapes and region. Those that
    are not are kept apart in vain, at no cost.
    """
    layouts: dict[Hashable, dict[Hashable, int]] = {}  # numbered, by what may be equal
    found: dict[tuple[int, int], int] = {}
    for op in program.ops:
        if op.boundary or decisions.assignment[op.index] is None or not op.outputs:
            continue
        for position, layout, key in _questions(program, decisions, chosen, op):
            known = layouts.setdefault(key, {})
            if number := known.setdefault(layout, len(known)):
                found[op.index, position] = number
    return found


def _questions(
    program: Program, decisions: Decisions, chosen: ChosenStrategies, op: Op
) -> Iterator[tuple[int, Hashable, Hashable]]:
    """Operands of an op that could be read by an equal one: position, layout that is made, key."""
    strategy, shape = chosen(op), program.values[op.outputs[0]].shape
    written = tuple(strategy.written[0][0].tolist())
    reads = tuple(tuple(read[0].tolist()) for read in strategy.reads)
    planned = [k for k, v in enumerate(op.inputs) if v >= 0 and decisions.stored[v] is not None]
    for position in planned:
        value = op.inputs[position]
        given = program.values[value].shape
        if len(given) == len(shape) and any(a == 1 < b for a, b in zip(given, shape, strict=True)):
            yield position, written, (op.region, value, reads[position], shape)
    if planned:
        shapes = tuple(program.values[v].shape for v in op.outputs)
        made = written, tuple(decisions.stored[v] for v in op.outputs)
        yield (
            planned[0],
            made,
            (op.region, op.primitive, op.inputs, op.literal_shapes, reads, shapes),
        )
