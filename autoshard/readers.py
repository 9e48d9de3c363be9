"""Who reads a value, in which pass, and from when to when.

* **Phases**: the readers of one value in the forward pass, in the backward pass and after it. A
  resharded copy may serve one phase, or be kept, or be made anew for the second.
* **Points**: places in the order in which the compiler runs the ops, see `autoshard.sequence`. A
  value that a loop reads from outside is needed to the end of the loop, and what a fused op reads
  as long as the fused result is.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace

from autoshard.program import Program

STAY = frozenset({"enter", "unstack"})


class Phase(enum.IntEnum):
    """When a value is read, seen from the pass that it belongs to."""

    FORWARD = 0
    BACKWARD = 1
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
                result[value].append(Reader(op.index, position, Phase.FORWARD, at, last))
    backward = [op.index for op in program.ops if op.backward]
    for value, uses in enumerate(result):
        last_backward = max((r.op for r in uses if program.ops[r.op].backward), default=-1)
        if backward and any(r.op < backward[0] for r in uses):
            # What the backward pass does not read (an embedding) is read after it all the same.
            last_backward = max(last_backward, backward[-1])
        if last_backward < 0:
            continue
        result[value] = [
            Reader(
                r.op,
                r.position,
                Phase.BACKWARD
                if program.ops[r.op].backward
                else Phase.AFTER
                if r.op > last_backward
                else Phase.FORWARD,
                r.at,
                r.last,
            )
            for r in uses
        ]
    return result


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
