"""Find collectives that a compiler may combine into one, so that they pay its latency once.

Two kinds can be combined. The first is reductions of partial sums of one dtype in one region, if
nothing in the region depends on the results; gradients are the usual case. The second is gathers of
a region's inputs, or of casts and slices of these; weights are the usual case. XLA:GPU combines
both kinds, in loops as well. XLA:TPU combines only the reductions (a ViT with four layers on
`v5e-16`, weights sharded over all chips: one sum of 12 gradients in its loop, and 50 gathers). The
size limit of one combined collective is in bytes, see `autoshard.cost.combined`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

from autoshard.machine.compiler import LAWS, Compiler
from autoshard.program.flops import is_matrix_op
from autoshard.program.graph import Op
from autoshard.program.rules.record import FactorKind
from autoshard.program.trace import Program


def summed_together(
    program: Program, awaited: Sequence[bool], compiler: Compiler = LAWS
) -> tuple[int, ...]:
    """Return, per op, how many ops' partial sums one collective may reduce, its own included.

    Args:
      program: the step.
      awaited: per value, whether a matrix op depends on it.
      compiler: the compiler; it combines them unless its habits deny it.
    """
    sums = not compiler.denies("gpu.sums-combined", "tpu.sums-are-combined")
    in_loops = not compiler.denies(
        "gpu.sums-combined-in-loops", "tpu.gradients-are-combined-in-loops"
    )
    groups = [
        _unawaited(program, op, awaited) if sums and (in_loops or op.region == 0) else None
        for op in program.ops
    ]
    sizes = Counter(groups)
    return tuple(1 if group is None else sizes[group] for group in groups)


def gathered_together(
    program: Program, early: Sequence[bool], awaited: Sequence[bool], compiler: Compiler
) -> tuple[int, ...]:
    """Return, per value, how many values one collective may gather, this one included.

    In a chain of casts and slices only the last value is gathered.

    Args:
      program: the step.
      early: per value, whether it is an input of the region, or a cast or slice of one.
      awaited: per value, whether a matrix op depends on it.
      compiler: the compiler; it combines them only if it is known to.
    """
    if not compiler.has("gpu.gathers-combined"):
        return (1,) * len(program.values)
    in_loops = compiler.has("gpu.gathers-combined-in-loops")
    read = [False] * len(program.values)
    for op in program.ops:
        last = not any(early[output] for output in op.outputs)
        if last and (is_matrix_op(op.primitive) or any(awaited[o] for o in op.outputs)):
            for value in op.inputs:
                if value >= 0:
                    read[value] = True
    groups: list[Hashable] = []
    for value in program.values:
        region = _region(program, value.index)
        shared = early[value.index] and value.shape and not value.free
        groups.append(region if shared and (in_loops or region == 0) else None)
    sizes = Counter(group for group, one in zip(groups, read, strict=True) if one)
    return tuple(1 if group is None else max(sizes[group], 1) for group in groups)


def _region(program: Program, value: int) -> int:
    producer = program.values[value].producer
    return program.ops[producer].region if producer >= 0 else 0


def _unawaited(program: Program, op: Op, awaited: Sequence[bool]) -> tuple[int, str] | None:
    """Return the region and dtype of an op's sums; None if something there depends on them."""
    sums = any(factor.kind is FactorKind.REDUCE for factor in op.rule.factors)
    if not sums or not op.outputs or any(awaited[o] for o in op.outputs):
        return None
    return op.region, program.values[op.outputs[0]].dtype
