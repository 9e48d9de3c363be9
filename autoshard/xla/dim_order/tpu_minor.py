"""Which dimensions may be the innermost ones of an array, where the compiler does not take any.

A TPU keeps arrays in tiles of two dimensions, see `autoshard.cost.tiling`. What a convolution reads
in windows lies there by the dimensions that windows leave alone: its batch and its features. What a
product writes or reads lies by those that are no batch, and so does what is made of it element by
element, or transposed: scores `[batch, heads, queries, keys]` by queries and keys. Images of three
channels lie so where a step has the gradient of their layer, which is taken for granted here.
"""

from __future__ import annotations

from collections.abc import Sequence

from autoshard.machine.compiler import LAWS, Compiler
from autoshard.program.dim_order import operand_groups, sides
from autoshard.program.graph import Op, Program
from autoshard.program.rules.record import FactorKind

INNERMOST = 2
"""So many dimensions has a tile."""


FEW_CHANNELS = 4
"""What has no more of either lies as images of three channels do."""


def innermost_dimensions(
    program: Program, elementwise: Sequence[bool], compiler: Compiler = LAWS
) -> dict[int, tuple[int, ...]]:
    """By value, the dimensions of which two are innermost; those that are missing lie anyhow.

    Args:
      program: the step.
      elementwise: per op, whether it is computed element by element.
      compiler: that lays them so, if it is not denied.
    """
    found: dict[int, tuple[int, ...]] = {}
    if not compiler.denies("tpu.scores-lie-by-positions"):
        found = _of_products(program, elementwise)
    windows = not compiler.denies("tpu.windows-lie-by-batch-and-features")
    images = not compiler.denies("tpu.images-lie-by-batch-and-channels")
    for op in program.ops:
        if op.primitive == "conv_general_dilated" and op.inputs[0] >= 0:
            alone = _without_windows(op)
            sizes = [program.values[op.inputs[0]].shape[d] for d in alone]
            if len(alone) == INNERMOST and (images if min(sizes) <= FEW_CHANNELS else windows):
                found[op.inputs[0]] = alone
    return found


def _of_products(program: Program, elementwise: Sequence[bool]) -> dict[int, tuple[int, ...]]:
    """Those of what products write and read, and of what is made of that."""
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
    return found


def _without_windows(op: Op) -> tuple[int, ...]:
    """The dimensions of the first operand of a convolution that are of one factor, cut freely."""
    free = {FactorKind.PASS, FactorKind.REDUCE}
    return tuple(
        dimension
        for dimension, factors in enumerate(op.rule.operands[0])
        if len(factors) == 1 and op.rule.factors[factors[0]].kind in free
    )
