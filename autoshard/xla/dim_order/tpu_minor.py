"""Find which dimensions may be the minor-most ones of an array, where the compiler restricts them.

A TPU stores arrays in tiles of two dimensions, see `autoshard.cost.tiling`. For the input of a
convolution with windows, the tile covers the dimensions that windows do not slide over: batch and
features. For the operands and result of a product, it covers dimensions that are not batch
dimensions. Elementwise results and transposes of these inherit it: scores
`[batch, heads, queries, keys]` are tiled by queries and keys. Images of three channels are tiled by
batch and channels where a step computes the gradient of their layer, which is assumed here.

A kernel of Pallas reads and writes arrays in the order in which their dimensions are numbered, and
so do loops that hand it slices of stacks, or stack what it makes.
"""

from __future__ import annotations

from collections.abc import Sequence

from autoshard.machine.compiler import LAWS, Compiler
from autoshard.program.dim_order import operand_groups, sides
from autoshard.program.graph import Op, Program
from autoshard.program.rules.record import FactorKind

INNERMOST = 2
"""The number of dimensions of a tile."""


_EDGES = frozenset({"scan_slice", "scan_stack", "enter"})
"""Ops that hand a value into a loop or out of it."""

FEW_CHANNELS = 4
"""Arrays with at most this batch or feature size are laid out like images of three channels."""


def innermost_dimensions(
    program: Program, elementwise: Sequence[bool], compiler: Compiler = LAWS
) -> dict[int, tuple[int, ...]]:
    """Return, by value, the dimensions two of which are minor-most; other values are unrestricted.

    The last dimension alone stands for the order in which all are numbered.

    Args:
      program: the step.
      elementwise: per op, whether it is elementwise.
      compiler: the compiler; it uses these layouts unless its habits deny it.
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
    if not compiler.denies("tpu.kernels-read-as-numbered"):
        found |= _of_kernels(program)
    return found


def _of_kernels(program: Program) -> dict[int, tuple[int, ...]]:
    """Return the last dimension of what kernels read and write, and of the stacks of that."""
    values = program.values
    wanted = {
        value
        for op in program.ops
        if op.kernel is not None
        for value in (*op.inputs, *op.outputs)
        if value >= 0
    }
    edges = [op for op in program.ops if op.primitive in _EDGES and op.inputs[0] >= 0]
    for op in (*edges, *reversed(edges)):  # into loops and out of them
        if wanted.intersection((op.inputs[0], op.outputs[0])):
            wanted |= {op.inputs[0], op.outputs[0]}
    ranks = {value: len(values[value].shape) for value in wanted}
    return {value: (rank - 1,) for value, rank in ranks.items() if rank >= INNERMOST}


def _of_products(program: Program, elementwise: Sequence[bool]) -> dict[int, tuple[int, ...]]:
    """Return these dimensions for products' operands and results, and what derives from them."""
    found: dict[int, tuple[int, ...]] = {}
    values = program.values
    for op in program.ops:
        if op.primitive == "dot_general":
            batch, left, right = sides(op.rule)
            if batch and len(left) + len(right) >= INNERMOST:
                found[op.outputs[0]] = tuple(sorted((*left, *right)))
            for value, (shared, *others) in zip(op.inputs, operand_groups(op.rule), strict=True):
                own = tuple(sorted(d for group in others for d in group))
                if value >= 0 and shared and len(own) >= INNERMOST:
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
    """Return the dimensions of a convolution's input that have one factor and shard freely."""
    free = {FactorKind.PASS, FactorKind.REDUCE}
    return tuple(
        dimension
        for dimension, factors in enumerate(op.rule.operands[0])
        if len(factors) == 1 and op.rule.factors[factors[0]].kind in free
    )
