"""What convolutions read in windows, and which dimensions windows leave alone.

A TPU keeps what is read so by its batch and its features, see `autoshard.cost.tiling`.
"""

from __future__ import annotations

from autoshard.graph import Op, Program
from autoshard.rule_record import FactorKind

INNERMOST = 2
"""So many dimensions has a tile."""


def window_operands(program: Program) -> dict[int, tuple[int, ...]]:
    """By value that a convolution reads in windows, its dimensions that windows leave alone."""
    return {
        op.inputs[0]: alone
        for op in program.ops
        if op.primitive == "conv_general_dilated" and op.inputs[0] >= 0
        if len(alone := _without_windows(op)) == INNERMOST
    }


def _without_windows(op: Op) -> tuple[int, ...]:
    """The dimensions of the first operand of a convolution that are of one factor, cut freely."""
    free = {FactorKind.PASS, FactorKind.REDUCE}
    return tuple(
        dimension
        for dimension, factors in enumerate(op.rule.operands[0])
        if len(factors) == 1 and op.rule.factors[factors[0]].kind in free
    )
