"""Products that are added to what is there already.

    dx = dq Wq^T + dk Wk^T + dv Wv^T

A matrix product can start from an array instead of zero (``beta = 1`` of BLAS), and compilers make
sums of products so. Then one of two products has no buffer of its own, the addition costs nothing,
and the sum lies where the other term lay, if nothing else reads that. XLA tries the left operand
first. It does so, too, where a product is added to another array, such as a residual stream; that
is left out here, for under many plans the product is partial, and settled before it is added. Terms
of a sum stay partial together (`autoshard.plan.unreduced_sums`).

XLA:GPU does so with two terms. A third one it adds by itself, on whichever side it stands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autoshard.program.graph import Program
from autoshard.program.vocabulary import ADDITIONS

"""Ops that add up two arrays."""


def find_accumulated(
    program: Program, readers: Sequence[Sequence[tuple[int, int]]]
) -> Mapping[int, int]:
    """By addition, the product that makes it: op indices.

    Args:
      program: the step.
      readers: per value, the (op, operand) pairs that read it.
    """
    values, found = program.values, {}
    for op in program.ops:
        if op.primitive not in ADDITIONS or len(op.inputs) != 2 or min(op.inputs) < 0:
            continue
        for number, term in enumerate(op.inputs):
            other, sum_ = values[op.inputs[1 - number]], values[op.outputs[0]]
            maker = values[term].producer
            if (
                maker >= 0
                and program.ops[maker].primitive == "dot_general"
                and program.ops[maker].region == op.region
                and len(readers[term]) == 1
                and term not in program.outputs
                and other.producer >= 0
                and program.ops[other.producer].primitive == "dot_general"
                and values[term].shape == other.shape == sum_.shape
                and values[term].dtype == other.dtype == sum_.dtype
            ):
                found[op.index] = maker
                break
    return found
