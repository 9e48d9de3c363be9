"""Find copies that XLA:TPU makes in a narrower type, because their readers convert them first.

Take a weight that is gathered in float32, then looked up, sliced by a loop or reshaped, and then
converted to bfloat16. XLA:TPU converts it before the gather. So Llama's embedding, and the stacks
that a scan reads, arrive in half the bytes. But if every device looks up its own rows of a table,
the conversion follows the lookup. XLA:GPU gathers tables and stacks in float32.
"""

from __future__ import annotations

from collections.abc import Sequence

from autoshard.machine.compiler import Compiler
from autoshard.program.facts import Narrowed
from autoshard.program.flops import is_matrix_op
from autoshard.program.trace import Program
from autoshard.program.vocabulary import RESHARDS

_SLICES = frozenset({"scan_slice", "dynamic_slice"})
_SHAPES = frozenset(
    {
        *("slice", "transpose", "rev", "reshape", "squeeze", "expand_dims", "broadcast_in_dim"),
        *("copy", "enter", *RESHARDS),
    }
)
_MOVES = frozenset({"gather", *_SLICES, *_SHAPES})
"""Ops that only move elements of their first operand."""


def _passed(compiler: Compiler) -> frozenset[str]:
    """Return the ops of `_MOVES` whose operand the compiler converts first."""
    lookups = compiler.has("tpu.lookups-gather-narrow-tables") or compiler.denies(
        "gpu.lookups-gathered-as-stored"
    )
    slices = compiler.has("tpu.loops-gather-narrow-slices") or compiler.denies(
        "gpu.stacks-gathered-as-stored"
    )
    shapes = compiler.has("tpu.reshaped-weights-gathered-narrow")
    each = ({"gather"}, lookups), (_SLICES, slices), (_SHAPES, shapes)
    return frozenset(op for ops, passes in each if passes for op in ops)


def narrowed(program: Program, awaited: Sequence[bool], compiler: Compiler) -> dict[int, Narrowed]:
    """Return, by value, the type width of its copies where that is narrower than the value.

    A reader that does not convert must not need the copy. It is outside loops, it is neither a
    product nor a lookup, and no product depends on it. The optimizer is such a reader.

    Args:
      program: the step.
      awaited: per value, whether a matrix op depends on it.
      compiler: the compiler; if it never moves values in a narrower type, the result is empty.
    """
    passed = _passed(compiler)
    if not passed:
        return {}
    consumers = program.consumers()
    width: dict[int, int | None] = {}
    """By value, the bytes per element to which all readers convert, if fewer; otherwise None."""

    def read_as(value: int, op: int, position: int) -> int | None:
        reader = program.ops[op]
        if not reader.outputs:
            return None
        result = program.values[reader.outputs[0]]
        if reader.primitive == "convert_element_type":
            return _narrower(program, value, result.index)
        moves = reader.primitive in passed and position == 0
        return width.get(result.index) if moves else None

    for value in reversed(program.values):  # readers come first
        widths = {read_as(value.index, op, position) for op, position in consumers[value.index]}
        width[value.index] = widths.pop() if len(widths) == 1 else None

    result: dict[int, Narrowed] = {}
    for value in program.values:
        narrow, is_table = set[int](), False
        for op, position in consumers[value.index]:
            one = read_as(value.index, op, position)
            if one is not None:
                narrow.add(one)
                is_table = is_table or program.ops[op].primitive == "gather"
            elif not _is_aside(program, op, awaited):
                narrow.clear()
                break
        if len(narrow) == 1:
            result[value.index] = Narrowed(narrow.pop(), is_table)
    return result


def _narrower(program: Program, value: int, converted: int) -> int | None:
    before, after = program.values[value], program.values[converted]
    floats = "float" in before.dtype and "float" in after.dtype
    return int(after.itemsize) if floats and after.itemsize < before.itemsize else None


def _is_aside(program: Program, op: int, awaited: Sequence[bool]) -> bool:
    reader = program.ops[op]
    wanted = is_matrix_op(reader.primitive) or any(awaited[o] for o in reader.outputs)
    return reader.region == 0 and reader.primitive not in _MOVES and not wanted
