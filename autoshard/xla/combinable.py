"""Which collectives compilers may run as one, and so pay the latency of one for.

Partial sums of one dtype in one region, if nothing there waits for them: gradients are like that.
Gathers of what a region starts with, or what is merely cast or sliced from that: weights are like
that. XLA:GPU combines both kinds, in loops as well; XLA:TPU the sums alone (a ViT with four layers
on `v5e-16`, weights sharded over all chips: one sum of 12 gradients in its loop, and 50 gathers).
How much fits into one collective is a matter of bytes, see `autoshard.cost.combined`.
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
    """Per op, how many ops' partial sums may be settled by one collective, with its own.

    Args:
      program: the step.
      awaited: per value, whether a matrix op waits for it.
      compiler: that combines them, if it is not denied.
    """
    sums = not compiler.denies("gpu.sums-combined", "tpu.sums-are-combined")
    gradients = sums and not compiler.denies("tpu.gradients-are-combined")
    in_loops = not compiler.denies(
        "gpu.sums-combined-in-loops", "tpu.gradients-are-combined-in-loops"
    )
    groups = [
        _unawaited(program, op, awaited)
        if (gradients if op.backward else sums) and (in_loops or op.region == 0)
        else None
        for op in program.ops
    ]
    sizes = Counter(groups)
    return tuple(1 if group is None else sizes[group] for group in groups)


def gathered_together(
    program: Program, early: Sequence[bool], awaited: Sequence[bool], compiler: Compiler
) -> tuple[int, ...]:
    """Per value, how many values may be gathered by one collective, with it.

    Of the values that are made of one another by casts and slices one is gathered, the last.

    Args:
      program: the step.
      early: per value, whether it is there as the region starts, but for a cast or a slice.
      awaited: per value, whether a matrix op waits for it.
      compiler: that combines them, if it is known to.
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
    """Region and dtype of the sums of an op, if nothing in the region waits for them."""
    sums = any(factor.kind is FactorKind.REDUCE for factor in op.rule.factors)
    if not sums or any(awaited[o] for o in op.outputs):
        return None
    return op.region, program.values[op.outputs[0]].dtype
