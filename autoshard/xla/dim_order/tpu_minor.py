"""Which dimensions may be the innermost ones of an array, where the compiler does not take any.

A TPU keeps arrays in tiles of two dimensions, see `autoshard.cost.tiling`. What a convolution reads
in windows lies there by the dimensions that windows leave alone: its batch and its features. What a
product writes or reads lies by those that are no batch, and so does what is made of it element by
element, or transposed: scores `[batch, heads, queries, keys]` by queries and keys.
"""

from __future__ import annotations

from collections.abc import Sequence

from autoshard.program.dim_order import operand_groups, sides
from autoshard.program.graph import Op, Program
from autoshard.program.rules.record import FactorKind

INNERMOST = 2
"""So many dimensions has a tile."""


def innermost_dimensions(
    program: Program, elementwise: Sequence[bool]
) -> dict[int, tuple[int, ...]]:
    """By value, the dimensions of which two are innermost; those that are missing lie anyhow.

    Args:
      program: the step.
      elementwise: per op, whether it is computed element by element.
    """
    found: dict[int, tuple[int, ...]] = {}
    values = program.values
    for op in program.ops:
        if op.primitive == "dot_general":
            batch, left, right = sides(op.rule)
            if batch and len(left) + len(right) >= INNERMOST:
                found[op.outputs[0]] = tuple(sorted((*left, *right)))
            for value, (shared, *others) in zip(op.inputs, operand_groups(op.rule), strict=True):
                own = tuple(sorted(d for group in others for d in group))
                if shared and len(own) >= INNERMOST:
                    found.setdefault(value, own)
        elif op.primitive == "transpose" and op.inputs[0] in found:
            (before,), (after,) = op.rule.operands, op.rule.results
            kept = [before[d] for d in found[op.inputs[0]]]
            found[op.outputs[0]] = tuple(d for d, held in enumerate(after) if held in kept)
        elif elementwise[op.index]:
            for output in op.outputs:
                for value in op.inputs:
                    if value in found and values[value].shape == values[output].shape:
                        found.setdefault(output, found[value])
    for op in program.ops:
        if op.primitive == "conv_general_dilated" and op.inputs[0] >= 0:
            alone = _without_windows(op)
            if len(alone) == INNERMOST:
                found[op.inputs[0]] = alone
    return found


def _without_windows(op: Op) -> tuple[int, ...]:
    """The dimensions of the first operand of a convolution that are of one factor, cut freely."""
    free = {FactorKind.PASS, FactorKind.REDUCE}
    return tuple(
        dimension
        for dimension, factors in enumerate(op.rule.operands[0])
        if len(factors) == 1 and op.rule.factors[factors[0]].kind in free
    )
