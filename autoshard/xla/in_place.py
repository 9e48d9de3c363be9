"""Find buffers that are updated in place: an update writes a part, and the rest stays.

The common case is a cache that a loop carries: donated, updated in every iteration, returned.

* An update is done in place if nothing reads its operand afterwards. If the buffer belongs to a
  donated input that the result aliases, nothing else is ever allocated.
* A stack that a loop makes of a donated input is not done in place where the loop, or what comes
  after it began, still reads that input: it lies beside it, and is copied over it at the end.
* A product may read a slice of such a carry in another dimension order. XLA:GPU does not transpose
  the slices. It transposes the whole carry before the loop, and back at the end. A second carry of
  the same size reuses the buffer of the first. Likewise a stack of which a loop reads slices, which
  stays in its own order beside its copy.
"""

from __future__ import annotations

from collections.abc import Mapping

from autoshard.machine.compiler import LAWS, Compiler
from autoshard.program.graph import Op, Program
from autoshard.program.vocabulary import UPDATES

BITCASTS = frozenset({"reshape", "squeeze", "expand_dims"})
_CUTS = frozenset({"dynamic_slice", *BITCASTS, *UPDATES})
"""Ops whose result is a part of their first operand, or the whole operand with a part updated."""


def updated_in_place(program: Program, compiler: Compiler = LAWS) -> frozenset[int]:
    """Return the values that share the buffer of a donated input aliased with a result."""
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


def stacked_beside(program: Program, compiler: Compiler = LAWS) -> frozenset[int]:
    """Return the stacks that cannot be made in the place of the donated input that they are for.

    A cache is such a stack if a loop reads it slice by slice and stacks the slices anew, as
    `lax.scan` does with what it is given and what it gives back.
    """
    if compiler.denies("gpu.stacks-beside-what-they-renew", "tpu.stacks-beside-what-they-renew"):
        return frozenset()
    readers = program.consumers()
    found = set[int]()
    for position, number in program.ties:
        value = program.outputs[number]
        maker = maker_of(program, value)
        while maker is not None and maker.primitive == "return":
            value = maker.inputs[0]
            maker = maker_of(program, value)
        if position not in program.donated or maker is None or maker.primitive != "scan_stack":
            continue
        start = program.regions[maker.region].start
        if any(reader >= start for reader, _ in readers[program.inputs[position]]):
            found.add(value)
    return frozenset(found)


def _written_over(
    program: Program,
    readers: list[list[tuple[int, int]]],
    arguments: Mapping[int, int],
    value: int,
    root: int,
) -> tuple[int, ...]:
    """Return the values from `value` back to the input `root` that share its buffer; else none."""
    found, loops = list[int](), list[int]()  # loops: carries of the loops being walked
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
    """Whether `op` is the last reader of `value` in program order."""
    return all(reader <= op.index for reader, _ in readers[value])


def carry_of(program: Program, value: int) -> int:
    """Return the loop carry, inside the loop, that `value` is sliced from; -1 if there is none."""
    while (maker := maker_of(program, value)) is not None:
        if maker.primitive == "carry":
            return value
        if maker.primitive not in _CUTS:
            break
        value = maker.inputs[0]
    return -1


def stack_of(program: Program, value: int) -> Op | None:
    """Return what slices a stack, turn by turn, where `value` is such a slice."""
    while (maker := maker_of(program, value)) is not None:
        if maker.primitive == "scan_slice":
            return maker
        if maker.primitive not in BITCASTS:
            break
        value = maker.inputs[0]
    return None


def maker_of(program: Program, value: int) -> Op | None:
    """Return the op that computes a value; None for inputs and literals."""
    producer = program.values[value].producer if value >= 0 else -1
    return program.ops[producer] if producer >= 0 else None
