"""What the cost model must know of the program's data flow, before any decision.

* **Fusion**: an elementwise result that only fusing ops of the same region and pass read never
  reaches memory; its bytes are counted neither as traffic nor as occupancy.
* **Exposure**: a collective whose inputs are there long before its result is needed (a gather of
  parameters), or whose result nothing in the step waits for (a gradient's reduction), can run
  beside compute; every other collective stands in the way.
* **Phases**: the readers of one value in the forward pass, in the backward pass and after it. A
  resharded copy may serve one phase, or be kept, or be made anew for the second.
* **Liveness**: program points are op indices; a buffer is alive from its op to its last reader, a
  value that a loop reads from outside to the end of the loop.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from autoshard.cost.flops import is_matrix_op
from autoshard.program import Op, Program
from autoshard.strategy import is_layout_determined

FUSING_REDUCTIONS = frozenset(
    {"reduce_sum", "reduce_max", "reduce_min", "reduce_and", "reduce_or", "reduce_prod"}
)
PREFETCHED = frozenset(
    {
        "enter",
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
    """

    readers: tuple[tuple[Reader, ...], ...]
    materialised: tuple[bool, ...]
    prefetchable: tuple[bool, ...]
    awaited: tuple[bool, ...]
    start: tuple[int, ...]
    stop: tuple[int, ...]
    end: int


def analyse(program: Program) -> Dataflow:
    """Derive fusion, exposure, phases and liveness of every value of `program`."""
    readers = _readers(program)
    materialised = _materialised(program, readers)
    start, stop = _liveness(program, readers, materialised)
    return Dataflow(
        readers=tuple(tuple(uses) for uses in readers),
        materialised=tuple(materialised),
        prefetchable=_prefetchable(program),
        awaited=_awaited(program, readers),
        start=tuple(start),
        stop=tuple(stop),
        end=len(program.ops) + 1,
    )


def is_elementwise(op: Op) -> bool:
    """Whether the op is fused with its neighbours: layout in, same layout out, nothing summed."""
    return not op.boundary and not is_matrix_op(op.primitive) and is_layout_determined(op.rule)


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


def _materialised(program: Program, readers: list[list[Reader]]) -> list[bool]:
    elementwise = [is_elementwise(op) for op in program.ops]
    result = []
    for value in program.values:
        if value.free:
            result.append(False)
            continue
        if value.producer < 0 or not elementwise[value.producer]:
            result.append(True)
            continue
        maker = program.ops[value.producer]
        fused = bool(readers[value.index]) and all(
            (elementwise[use.op] or program.ops[use.op].primitive in FUSING_REDUCTIONS)
            and program.ops[use.op].region == maker.region
            and program.ops[use.op].backward == maker.backward
            for use in readers[value.index]
        )
        result.append(not fused)
    return result


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
    program: Program, readers: list[list[Reader]], materialised: list[bool]
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
            elif is_elementwise(maker) and _overwrites(program, maker, readers, value.index):
                start = min(maker.index + 1, stop)
        if not materialised[value.index] or (
            value.producer >= 0 and program.ops[value.producer].primitive in ALIASING
        ):
            stop = start
        starts.append(start)
        stops.append(stop)
    return starts, stops


def _overwrites(program: Program, maker: Op, readers: list[list[Reader]], output: int) -> bool:
    """Whether an elementwise op can write over an operand that dies with it."""
    size = program.values[output].bytes
    for operand in maker.inputs:
        if operand < 0 or program.values[operand].bytes != size:
            continue
        kept = (
            program.values[operand].producer < 0
            and operand in program.inputs
            and program.inputs.index(operand) not in program.donated
        )
        if not kept and max(use.last for use in readers[operand]) == maker.index:
            return True
    return False
