"""Buffers that an update writes a part of, and the rest of which stays in place.

A cache that a loop carries is the common case: donated, updated in every iteration, returned.

* An update takes the place of its operand, if nobody reads that afterwards; where the buffer is a
  donated input's whose place the result takes, nothing else is ever allocated.
* Where a product reads a slice of such a carry in another order, XLA:GPU does not transpose slices:
  the whole carry is put in that order before the loop, and in its own again at the end. A second
  one of the same size is written where the first lay.
"""

from __future__ import annotations

from collections.abc import Mapping

from autoshard.machine.compiler import LAWS, Compiler
from autoshard.program.graph import Op, Program
from autoshard.program.vocabulary import UPDATES

BITCASTS = frozenset({"reshape", "squeeze", "expand_dims"})
_CUTS = frozenset({"dynamic_slice", *BITCASTS, *UPDATES})
"""Ops whose result is a part of their first operand, or all of it but for what is written."""


def updated_in_place(program: Program, compiler: Compiler = LAWS) -> frozenset[int]:
    """The values that lie where a donated input lies whose place a result of the step takes."""
    if compiler.denies("gpu.updates-in-place", "tpu.updates-in-place"):
        return frozenset()
    readers = program.consumers()
    arguments = {output: argument for argument, output in program.carries}
    found = set[int]()
    for position, number in program.ties:
        if position in program.donated:
            value, root = program.outputs[number], program.inputs[position]
            found.update(_written_over(program, readers, arguments, value, root))
    return frozenset(found)


def _written_over(
    program: Program,
    readers: list[list[tuple[int, int]]],
    arguments: Mapping[int, int],
    value: int,
    root: int,
) -> tuple[int, ...]:
    """The values from `value` back to the input `root` in whose buffer they lie; none if not."""
    found, loops = list[int](), list[int]()  # of the loops that were entered from behind, arguments
    while value != root:
        maker = maker_of(program, value)
        if maker is None or not maker.inputs or maker.inputs[0] < 0:
            return ()
        if maker.primitive == "yield" and value in arguments:
            loops.append(arguments[value])
        elif maker.primitive in ("carry", *UPDATES):
            if maker.primitive == "carry" and (not loops or loops.pop() != value):
                return ()
            if not _is_last(readers, maker, maker.inputs[0]):
                return ()
        elif maker.primitive != "return":
            return ()
        found.append(value)
        value = maker.inputs[0]
    return tuple(found)


def _is_last(readers: list[list[tuple[int, int]]], op: Op, value: int) -> bool:
    """Whether `op` is the last, in program order, to read `value`."""
    return all(reader <= op.index for reader, _ in readers[value])


def carry_of(program: Program, value: int) -> int:
    """The carry of a loop, inside of it, that `value` is cut from; -1 if there is none."""
    while (maker := maker_of(program, value)) is not None:
        if maker.primitive == "carry":
            return value
        if maker.primitive not in _CUTS:
            break
        value = maker.inputs[0]
    return -1


def maker_of(program: Program, value: int) -> Op | None:
    """The op that makes a value; None for inputs and literals."""
    producer = program.values[value].producer if value >= 0 else -1
    return program.ops[producer] if producer >= 0 else None
