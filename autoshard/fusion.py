"""What is fused: which results reach memory, and what a kernel reads.

An elementwise result that only fusing ops of the same region read does not reach memory where
making it anew for each of them moves fewer bytes than writing and reading it: with `k` readers, a
result of `b` bytes that is made of values of `s` bytes is fused where

    k s  <=  s + b + k b

So what the backward pass wants of an activation function is computed from its argument, which waits
in memory, and a residual stream that many read is written. XLA's fusion is led by such costs too.
"""

from __future__ import annotations

from collections.abc import Sequence

from autoshard.cost.flops import is_matrix_op
from autoshard.graph import Op, Program
from autoshard.strategy import is_layout_determined

FUSING_REDUCTIONS = frozenset(
    {"reduce_sum", "reduce_max", "reduce_min", "reduce_and", "reduce_or", "reduce_prod"}
)


def is_elementwise(op: Op) -> bool:
    """Whether the op is fused with its neighbours: layout in, same layout out, nothing summed."""
    return not op.boundary and not is_matrix_op(op.primitive) and is_layout_determined(op.rule)


def materialised(program: Program) -> list[bool]:
    """Per value, whether it is written to memory."""
    readers = program.consumers()
    elementwise = [is_elementwise(op) for op in program.ops]
    values = program.values
    result: list[bool] = []
    sources: list[frozenset[int]] = []  # what is read from memory to make a value once more
    for value in values:
        result.append(not value.free)
        sources.append(frozenset() if value.free else frozenset((value.index,)))
        if value.free or value.producer < 0 or not elementwise[value.producer]:
            continue
        maker = program.ops[value.producer]
        uses = readers[value.index]
        if not uses or not all(
            (elementwise[reader] or program.ops[reader].primitive in FUSING_REDUCTIONS)
            and program.ops[reader].region == maker.region
            for reader, _ in uses
        ):
            continue
        made_of = frozenset().union(*(sources[i] for i in maker.inputs if i >= 0))
        again = sum(values[source].bytes for source in made_of)
        if len(uses) * again <= again + (1 + len(uses)) * value.bytes:
            result[-1], sources[-1] = False, made_of
    return result


def fetched(program: Program, written: Sequence[bool]) -> tuple[tuple[int, ...], ...]:
    """Per op and operand, the bytes of whole values that are read from memory for it.

    They are those of the operand, or where it is fused of what its maker reads; what two operands
    have in common counts for the first.

    Args:
      program: the step.
      written: what `materialised` says of it.
    """
    values = program.values
    sources: list[frozenset[int]] = []

    def source(value: int) -> frozenset[int]:
        return frozenset((value,)) if written[value] else sources[value]

    for value in values:
        found = frozenset[int]()
        if not written[value.index] and value.producer >= 0 and not value.free:
            inputs = program.ops[value.producer].inputs
            found = frozenset().union(*(source(i) for i in inputs if i >= 0))
        sources.append(found)
    result = []
    for op in program.ops:
        seen: set[int] = set()
        sizes = []
        for value in op.inputs:
            fresh = source(value) - seen if value >= 0 else frozenset[int]()
            seen |= fresh
            sizes.append(sum(values[one].bytes for one in fresh))
        result.append(tuple(sizes))
    return tuple(result)
