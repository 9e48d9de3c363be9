"""Find matrix products that accumulate into another product's result.

    dx = dq Wq^T + dk Wk^T + dv Wv^T

A matrix product can start from an array instead of zero (``beta = 1`` of BLAS). Compilers compute
sums of products this way. Then one of the two products needs no buffer, and the addition costs
nothing. The sum overwrites the other term if nothing else reads that term. XLA:GPU tries the left
operand first. Compilers do the same when a product is added to another array, such as a residual
stream. That case is not modelled here: under many plans the product is a partial sum, which is
reduced before the addition. The terms of a sum stay partial together
(`autoshard.plan.unreduced_sums`).

XLA:GPU accumulates two terms. A third term, right of a sum of two, is added by a separate kernel.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from autoshard.machine.compiler import LAWS, Compiler
from autoshard.program.graph import Op, Program
from autoshard.program.vocabulary import ADDITIONS


def find_accumulated(
    program: Program, readers: Sequence[Sequence[tuple[int, int]]], compiler: Compiler = LAWS
) -> Mapping[int, int]:
    """Return, by addition, the product that computes it, both as op indices.

    Args:
      program: the step.
      readers: per value, the (op, operand) pairs that read it.
      compiler: the compiler; it accumulates products unless its habits deny it.
    """
    found: dict[int, int] = {}
    if compiler.denies("gpu.products-start-from-products", "tpu.products-added-to-products"):
        return found
    sums = found if compiler.denies("gpu.third-product-added") else {}
    for op in program.ops:
        if op.primitive not in ADDITIONS or len(op.inputs) != 2 or min(op.inputs) < 0:
            continue
        for number in (0, 1):
            term, other = op.inputs[number], op.inputs[1 - number]
            if len(readers[term]) == 1 and _can_start(program, op, term, other, sums):
                found[op.index] = program.values[term].producer
                break
    return found


def _can_start(program: Program, op: Op, term: int, other: int, sums: Collection[int]) -> bool:
    """Whether the product `term` can compute the addition `op` by starting from `other`.

    `other` must be a product too, or the result of one of the additions `sums`.
    """
    values = program.values
    maker, base, total = values[term].producer, values[other], values[op.outputs[0]]
    if not _is_product(program, maker) or program.ops[maker].region != op.region:
        return False
    if term in program.outputs or not (
        _is_product(program, base.producer) or base.producer in sums
    ):
        return False
    kinds = {(value.shape, value.dtype) for value in (values[term], base, total)}
    return len(kinds) == 1


def _is_product(program: Program, op: int) -> bool:
    return op >= 0 and program.ops[op].primitive == "dot_general"
