"""Who reads a value, in which pass, and from when to when.

* **Phases**: the readers of one value in the forward pass, in the backward pass and after it. A
  resharded copy may serve one phase, or be kept, or be made anew for the second. What is read in
  one pass alone has two phases, too: what the backward pass computes again (`jax.checkpoint`) and
  the rest; else what is read before the longest wait between two readers and what is after it. So
  a copy that a product reads does not wait for the residual sum at the end of the block. Phases
  are facts of the program alone, whatever it runs on: waits are counted in program order.
* **Points**: places in the order in which the compiler runs the ops, see `autoshard.xla.op_order`.
  A value that a loop reads from outside is needed to the end of the loop, and what a fused op reads
  as long as the fused result is.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from autoshard.program.flops import is_matrix_op
from autoshard.program.graph import Op
from autoshard.program.trace import Program
from autoshard.program.vocabulary import STAY


class Phase(enum.IntEnum):
    """When a value is read: see the module docstring."""

    FIRST = 0
    SECOND = 1
    AFTER = 2


@dataclass(frozen=True, slots=True)
class Reader:
    """One use of a value: op index, operand position, phase; the points from and to which it lasts.

    The value is needed until `last`: longer than `at`, if what reads it is fused with others.
    """

    op: int
    position: int
    phase: Phase
    at: int
    last: int


def region_spans(program: Program, when: Sequence[int]) -> list[tuple[int, int]]:
    """The program points of every region: the first, and the one after the last."""
    result = []
    for region in program.regions:
        points = when[region.start : region.stop]
        result.append((min(points, default=0), max(points, default=-1) + 1))
    return result


def find_readers(
    program: Program, when: Sequence[int], spans: Sequence[tuple[int, int]]
) -> list[list[Reader]]:
    result: list[list[Reader]] = [[] for _ in program.values]
    for op in program.ops:
        at = when[op.index]
        last = spans[op.region][1] - 1 if op.primitive in STAY else at
        if op.primitive == "return":
            last = len(program.ops)
        for position, value in enumerate(op.inputs):
            if value >= 0:
                result[value].append(Reader(op.index, position, Phase.FIRST, at, last))
    backward = [op.index for op in program.ops if op.backward]
    for value, uses in enumerate(result):
        ops = [program.ops[use.op] for use in uses]
        last_backward = max((op.index for op in ops if op.backward), default=-1)
        if backward and any(op.index < backward[0] for op in ops):
            # What the backward pass does not read (an embedding) is read after it all the same.
            last_backward = max(last_backward, backward[-1])
        if last_backward < 0:
            continue
        result[value] = [
            replace(use, phase=_phase(op, last_backward)) for use, op in zip(uses, ops, strict=True)
        ]
    products = _products(program)
    return [_in_two(program, uses, products) for uses in result]


def _phase(op: Op, last_backward: int) -> Phase:
    if op.backward:
        return Phase.SECOND
    return Phase.AFTER if op.index > last_backward else Phase.FIRST


def _products(program: Program) -> list[int]:
    """How many products stand before every op, and after the last."""
    return list(accumulate((is_matrix_op(op.primitive) for op in program.ops), initial=0))


def _in_two(program: Program, uses: list[Reader], products: Sequence[int]) -> list[Reader]:
    """Readers of one pass, in two groups: those that compute again and the others, or by order."""
    early = [use for use in uses if use.phase is not Phase.AFTER]
    everyone = {use.op for use in early}
    if len({use.phase for use in early}) != 1:
        return uses
    first = {op for op in everyone if program.ops[op].recomputed}
    if first in (set(), everyone):
        first = _before_the_longest_wait(early, products)
    if first == everyone:
        return uses
    return [
        use
        if use.phase is Phase.AFTER
        else replace(use, phase=Phase.FIRST if use.op in first else Phase.SECOND)
        for use in uses
    ]


def _before_the_longest_wait(uses: Sequence[Reader], products: Sequence[int]) -> set[int]:
    """The ops up to the longest wait, in products, between two readers; all if there is none."""
    ops = sorted({use.op for use in uses})
    waits = [products[after] - products[before + 1] for before, after in pairwise(ops)]
    if not any(waits):
        return set(ops)
    last = ops[waits.index(max(waits))]
    return {op for op in ops if op <= last}


def readers_in_program_order(program: Program) -> list[list[Reader]]:
    """The uses of every value where ops run as the program has them."""
    points = range(len(program.ops))
    return find_readers(program, points, region_spans(program, points))


def through_fusion(
    program: Program, readers: list[list[Reader]], materialised: Sequence[bool]
) -> list[list[Reader]]:
    """The readers, each needing its value as long as what is fused with it."""
    until = [0] * len(program.values)
    result: list[list[Reader]] = [[] for _ in program.values]
    for value in sorted(program.values, key=lambda one: one.producer, reverse=True):
        for use in readers[value.index]:
            fused = [until[o] for o in program.ops[use.op].outputs if not materialised[o]]
            result[value.index].append(replace(use, last=max(use.last, *fused, 0)))
        until[value.index] = max((use.last for use in result[value.index]), default=0)
    return result
