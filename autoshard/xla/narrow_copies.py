"""Copies that XLA:TPU makes in a narrower type: what reads them converts them first.

A weight that is gathered in float32 and then looked up, sliced by a loop or given another shape,
and converted to bfloat16, is converted before it is gathered: Llama's embedding and the stacks that
a scan reads arrive in half the bytes. But a table of which every device looks up its own rows is
converted after the lookup. XLA:GPU gathers float32 in all these cases.
"""

from __future__ import annotations

from collections.abc import Sequence

from autoshard.program.facts import Narrowed
from autoshard.program.flops import is_matrix_op
from autoshard.program.trace import Program

_MOVES = frozenset(
    {
        *("unstack", "dynamic_slice", "slice", "gather", "transpose", "rev"),
        *("reshape", "squeeze", "expand_dims", "broadcast_in_dim", "copy"),
        *("enter", "sharding_constraint"),
    }
)
"""Ops that take elements of their first operand to other places."""


def narrowed(program: Program, awaited: Sequence[bool]) -> dict[int, Narrowed]:
    """By value, what its copies are like, if they are narrower than the value.

    What does not convert must be no reason for a copy: it is not in a loop, no product and no
    lookup, and no product waits for it. An optimizer is like that.

    Args:
      program: the step.
      awaited: per value, whether a matrix op waits for it.
    """
    consumers = program.consumers()
    found: dict[int, int | None] = {}

    def width(value: int) -> int | None:
        """Bytes per element that all that reads the value makes of it, if they are fewer."""
        if value not in found:
            found[value] = None
            widths = {read_as(value, op, position) for op, position in consumers[value]}
            found[value] = widths.pop() if len(widths) == 1 else None
        return found[value]

    def read_as(value: int, op: int, position: int) -> int | None:
        reader = program.ops[op]
        result = program.values[reader.outputs[0]]
        if reader.primitive == "convert_element_type":
            return _narrower(program, value, result.index)
        return width(result.index) if reader.primitive in _MOVES and position == 0 else None

    result: dict[int, Narrowed] = {}
    for value in program.values:
        widths, is_table = set[int](), False
        for op, position in consumers[value.index]:
            one = read_as(value.index, op, position)
            if one is not None:
                widths.add(one)
                is_table = is_table or program.ops[op].primitive == "gather"
            elif not _is_aside(program, op, awaited):
                widths.clear()
                break
        if len(widths) == 1:
            result[value.index] = Narrowed(widths.pop(), is_table)
    return result


def _narrower(program: Program, value: int, converted: int) -> int | None:
    before, after = program.values[value], program.values[converted]
    floats = "float" in before.dtype and "float" in after.dtype
    return int(after.itemsize) if floats and after.itemsize < before.itemsize else None


def _is_aside(program: Program, op: int, awaited: Sequence[bool]) -> bool:
    reader = program.ops[op]
    wanted = is_matrix_op(reader.primitive) or any(awaited[o] for o in reader.outputs)
    return reader.region == 0 and reader.primitive not in _MOVES and not wanted
