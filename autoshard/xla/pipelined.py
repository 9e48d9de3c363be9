"""What of a program XLA:GPU may run in another turn of a loop, before its layouts are known.

Where its flags say so (`autoshard.machine.compiler.FLAGS`), copies of what a loop is given are made
a turn ahead, and sums that a loop only stacks are made a turn behind; a turn does not wait for
them. What of it is communicated in a plan, and what that changes, says
`autoshard.xla.forecast.pipelined`.

* A copy may move if its value is made of slices of stacks and arrays that the loop does not change.
* A sum may move if its results, converted or turned perhaps, are stacked and read by nothing else.

Source: `xla/service/collective_pipeliner.cc`, in `xla/service/gpu/gpu_compiler.cc` backward for
gathers and forward for sums.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from autoshard.machine.compiler import Compiler
from autoshard.program.facts import Reader
from autoshard.program.graph import Op, Program, Region
from autoshard.program.vocabulary import LEAVING

GATHERS = "gpu.gathers-a-turn-ahead-by-recipe"
SUMS = "gpu.sums-a-turn-behind-by-recipe"
_GIVEN = frozenset({"scan_slice", "enter"})
_FORMATS = frozenset(
    {"convert_element_type", "transpose", "reshape", "broadcast_in_dim", "squeeze", "expand_dims"}
)
_REDUCTIONS = frozenset({"reduce_sum", "reduce_max", "reduce_min", "reduce_prod"})


def made_ahead(program: Program, compiler: Compiler) -> dict[int, frozenset[int]]:
    """Return the values whose copies may be made a turn ahead, each with what it is made of.

    That is around the loop: stacks, and arrays that the loop does not change.
    """
    if not (compiler.pipelines and compiler.has(GATHERS)):
        return {}
    found: dict[int, frozenset[int]] = {}
    for op in program.ops:
        if not turns(program.regions[op.region]) or op.primitive in (*LEAVING, "carry"):
            continue
        read = [one for one in op.inputs if one >= 0]
        if op.primitive in _GIVEN:
            made = frozenset(read)
        elif all(one in found for one in read):
            made = frozenset[int]().union(*(found[one] for one in read))
        else:
            continue
        found.update(dict.fromkeys(op.outputs, made))
    return {value: made for value, made in found.items() if made}


def summed_behind(
    program: Program, readers: Sequence[Sequence[Reader]], compiler: Compiler
) -> frozenset[int]:
    """Return the ops whose partial sums may be settled a turn behind."""
    if not (compiler.pipelines and compiler.has(SUMS)):
        return frozenset()
    return frozenset(
        op.index
        for op in program.ops
        if turns(program.regions[op.region]) and _is_stacked(program, readers, op)
    )


def turns(region: Region) -> bool:
    """Whether a region is a loop of several turns."""
    return region.kind == "scan" and region.trips > 1


def _is_stacked(program: Program, readers: Sequence[Sequence[Reader]], op: Op) -> bool:
    """Whether results of an op are stacked by its loop, and nothing else reads them."""
    stack, stacked = list(op.outputs), False
    while stack:
        for use in readers[stack.pop()]:
            one = program.ops[use.op]
            if one.region != op.region:
                return False
            if one.primitive == "scan_stack":
                stacked = True
            elif _is_format(program, one):
                stack += one.outputs
            else:
                return False
    return stacked


def _is_format(program: Program, op: Op) -> bool:
    """Whether an op leaves an array's elements as they are, but for their type and their shape."""
    if op.primitive in _FORMATS:
        return True
    before, after = program.values[op.inputs[0]], program.values[op.outputs[0]]
    return op.primitive in _REDUCTIONS and math.prod(before.shape) == math.prod(after.shape)
