"""What is fused: which results reach memory, and what a kernel reads.

An elementwise result that only fusing ops of the same region read does not reach memory where
making it anew for each of them moves fewer bytes than writing and reading it: with `k` readers, a
result of `b` bytes that is made of values of `s` bytes is fused where

    k s  <=  s + b + k b

So what the backward pass wants of an activation function is computed from its argument, which waits
in memory, and a residual stream that many read is written. XLA's fusion is led by such costs too.
"""

from __future__ import annotations

from dataclasses import dataclass

from autoshard.cost.flops import is_matrix_op
from autoshard.graph import Op, Program
from autoshard.strategy import is_layout_determined

FUSING_REDUCTIONS = frozenset(
    {"reduce_sum", "reduce_max", "reduce_min", "reduce_and", "reduce_or", "reduce_prod"}
)


def is_elementwise(op: Op) -> bool:
    """Whether the op is fused with its neighbours: layout in, same layout out, nothing summed."""
    return not op.boundary and not is_matrix_op(op.primitive) and is_layout_determined(op.rule)


@dataclass(frozen=True, slots=True)
class Fusion:
    """What is fused in a program.

    Attributes:
      elementwise: per op, whether it is fused with its neighbours.
      materialised: per value, whether it is written to memory.
      fetched: per op and operand, the bytes of whole values that are read from memory for it:
        those of the operand, or where it is fused of what its maker reads; what two operands have
        in common counts for the first.
    """

    elementwise: tuple[bool, ...]
    materialised: tuple[bool, ...]
    fetched: tuple[tuple[int, ...], ...]


def fuse(program: Program) -> Fusion:
    """Decide what is fused."""
    readers = program.consumers()
    elementwise = tuple(is_elementwise(op) for op in program.ops)
    values = program.values
    materialised: list[bool] = []
    sources: list[frozenset[int]] = []  # what is read from memory for a reader of the value
    for value in values:
        materialised.append(not value.free)
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
            materialised[-1], sources[-1] = False, made_of
    fetched = []
    for op in program.ops:
        seen: set[int] = set()
        sizes = []
        for value in op.inputs:
            fresh = sources[value] - seen if value >= 0 else frozenset[int]()
            seen |= fresh
            sizes.append(sum(values[one].bytes for one in fresh))
        fetched.append(tuple(sizes))
    return Fusion(elementwise, tuple(materialised), tuple(fetched))
