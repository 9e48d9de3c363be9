"""What the cost model must know of the program's data flow, before any decision.

* **Fusion**: see `autoshard.fusion`; bytes of what is fused count neither as traffic nor as
  occupancy.
* **Exposure**: a collective whose inputs are there long before its result is needed (a gather of
  parameters), or whose result nothing in the step waits for (a gradient's reduction), can run
  beside compute; every other collective stands in the way.
* **Phases**: the readers of one value in the forward pass, in the backward pass and after it. A
  resharded copy may serve one phase, or be kept, or be made anew for the second.
* **Transpositions**: operands that lie in memory otherwise than their op reads them.
* **Liveness**: program points are op indices; a buffer is alive from its op to its last reader, a
  value that a loop reads from outside to the end of the loop. What a fused op reads is read where
  the fused result is, so it stays until then.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from autoshard.cost.flops import is_matrix_op
from autoshard.fusion import Fusion, fuse
from autoshard.orders import Transposition, transpositions
from autoshard.program import Op, Program

PREFETCHED = frozenset(
    {
        "enter",
        "sharding_constraint",
        "unstack",
        "slice",
        "convert_element_type",
        "reshape",
        "squeeze",
        "transpose",
        "broadcast_in_dim",
    }
)
ALIASING = frozenset({"enter", "return", "unstack"})
STAY = frozenset({"enter", "unstack"})


class Phase(enum.IntEnum):
    """When a value is read, seen from the pass that it belongs to."""

    FORWARD = 0
    BACKWARD = 1
    AFTER = 2


@dataclass(frozen=True, slots=True)
class Reader:
    """One use of a value: op index, operand position, phase, and the last time it is needed."""

    op: int
    position: int
    phase: Phase
    last: int


@dataclass(frozen=True, slots=True)
class Dataflow:
    """Facts per value (see the module docstring).

    Attributes:
      readers: the uses of every value.
      materialised: whether the value reaches memory.
      prefetchable: whether a reshard of the value can be started early.
      awaited: whether a matrix op of the step waits for the value.
      start, stop: program points between which the value's own buffer is alive (start == stop for
        a value without a buffer of its own).
      end: number of program points.
      temporary: whether the value lies in the compiler's heap: all but inputs, and results that
        take the place of a donated one.
      fetched: per op and operand, the bytes that are read from memory for it, see
        `autoshard.fusion.Fusion`.
      transposed: by op index, the operands that lie otherwise than the op reads them.
      turned_stop: by op index, the program point until which copies of those are alive.
    """

    readers: tuple[tuple[Reader, ...], ...]
    materialised: tuple[bool, ...]
    prefetchable: tuple[bool, ...]
    awaited: tuple[bool, ...]
    start: tuple[int, ...]
    stop: tuple[int, ...]
    end: int
    temporary: tuple[bool, ...]
    fetched: tuple[tuple[int, ...], ...]
    transposed: Mapping[int, tuple[Transposition, ...]]
    turned_stop: Mapping[int, int]

    def surroundings(self, op: Op) -> Hashable:
        """What stands around `op` and changes its price: copies of a block may differ in it."""
        written = tuple(self.materialised[o] for o in op.outputs)
        return self.fetched[op.index], written, self.transposed.get(op.index)


def analyse(program: Program) -> Dataflow:
    """Derive fusion, exposure, phases, orders and liveness of every value of `program`."""
    readers = _readers(program)
    fusion = fuse(program)
    readers = _through_fusion(program, readers, fusion.materialised)
    start, stop = _liveness(program, readers, fusion)
    turned = transpositions(program, fusion.elementwise)
    return Dataflow(
        readers=tuple(tuple(uses) for uses in readers),
        materialised=fusion.materialised,
        prefetchable=_prefetchable(program),
        awaited=_awaited(program, readers),
        start=tuple(start),
        stop=tuple(stop),
        end=len(program.ops) + 1,
        temporary=_temporary(program),
        fetched=fusion.fetched,
        transposed=turned.of_op,
        turned_stop={
            index: 1 + max(_last_read(program, readers, index, base) for base in bases)
            for index, bases in turned.bases.items()
        },
    )


def _readers(program: Program) -> list[list[Reader]]:
    result: list[list[Reader]] = [[] for _ in program.values]
    for op in program.ops:
        last = program.regions[op.region].stop - 1 if op.primitive in STAY else op.index
        if op.primitive == "return":
            last = len(program.ops)
        for position, value in enumerate(op.inputs):
            if value >= 0:
                result[value].append(Reader(op.index, position, Phase.FORWARD, last))
    for value, uses in enumerate(result):
        last_backward = max((r.op for r in uses if program.ops[r.op].backward), default=-1)
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
                r.last,
            )
            for r in uses
        ]
    return result


def _through_fusion(
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


def _temporary(program: Program) -> tuple[bool, ...]:
    result = [value.producer >= 0 for value in program.values]
    for _, position in program.ties:
        value = program.outputs[position]
        while value >= 0 and program.values[value].producer >= 0:
            result[value] = False
            maker = program.ops[program.values[value].producer]
            value = maker.inputs[0] if maker.primitive == "return" else -1
    return tuple(result)


def _last_read(program: Program, readers: list[list[Reader]], op: int, base: int) -> int:
    """When a copy of `base` that `op` is the first to read is read last."""
    region = program.ops[op].region
    if program.ops[op].primitive == "dot_general":
        return op
    return max(op, *(r.last for r in readers[base] if program.ops[r.op].region == region))


def _prefetchable(program: Program) -> tuple[bool, ...]:
    result = [value.producer < 0 for value in program.values]
    for op in program.ops:
        if op.primitive in PREFETCHED and all(i < 0 or result[i] for i in op.inputs):
            for output in op.outputs:
                result[output] = True
    return tuple(result)


def _awaited(program: Program, readers: list[list[Reader]]) -> tuple[bool, ...]:
    """Values on which, within their region or in a later one, some matrix op depends."""
    result = [False] * len(program.values)
    carried = {output: argument for argument, output in program.carries}
    for _ in range(2):  # twice, so that what a carry brings to the next iteration is seen
        for op in reversed(program.ops):
            if op.primitive == "stack":
                continue
            waits = is_matrix_op(op.primitive) or any(result[o] for o in op.outputs)
            if op.primitive == "yield":
                waits = waits or result[carried[op.outputs[0]]]
            if waits:
                for value in op.inputs:
                    if value >= 0:
                        result[value] = True
    return tuple(result)


def _liveness(
    program: Program, readers: list[list[Reader]], fusion: Fusion
) -> tuple[list[int], list[int]]:
    end = len(program.ops) + 1
    starts, stops = [], []
    position_of = {value: k for k, value in enumerate(program.inputs)}
    for value in program.values:
        uses = readers[value.index]
        last = max((use.last for use in uses), default=value.producer)
        start, stop = value.producer, last + 1
        if value.producer < 0:
            start = 0
            kept = value.index in position_of and position_of[value.index] not in program.donated
            stop = end if kept else stop
        else:
            maker = program.ops[value.producer]
            region = program.regions[maker.region]
            if maker.primitive == "stack":
                start = region.start
            elif maker.primitive == "yield":
                start = region.stop
                stop = max(stop, start)
            elif fusion.elementwise[maker.index] and _overwrites(
                program, maker, readers, fusion.materialised, value.index
            ):
                start = min(maker.index + 1, stop)
        if not fusion.materialised[value.index] or (
            value.producer >= 0 and program.ops[value.producer].primitive in ALIASING
        ):
            stop = start
        starts.append(start)
        stops.append(stop)
    return starts, stops


def _overwrites(
    program: Program,
    maker: Op,
    readers: list[list[Reader]],
    materialised: Sequence[bool],
    output: int,
) -> bool:
    """Whether an elementwise op, with what is fused with it, can write over what dies with it."""
    size = program.values[output].bytes
    operands, seen = list(maker.inputs), set[int]()
    while operands:
        operand = operands.pop()
        if operand < 0 or operand in seen or program.values[operand].free:
            continue
        seen.add(operand)
        if not materialised[operand]:
            operands += program.ops[program.values[operand].producer].inputs
            continue
        if program.values[operand].bytes != size:
            continue
        kept = (
            program.values[operand].producer < 0
            and operand in program.inputs
            and program.inputs.index(operand) not in program.donated
        )
        if not kept and max(use.last for use in readers[operand]) == maker.index:
            return True
    return False
