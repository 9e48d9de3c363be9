"""Find stacks that are put in order for products of one row which XLA:GPU sums up itself.

Such a product (`autoshard.cost.vector_products`) sums up rows faster than columns. Where the matrix
is a slice of a loop's stack, and its columns are of several dimensions (heads and their features),
XLA:GPU puts the whole stack in an order before the loop in which what is contracted is innermost.
Not so where the result goes to products whose batch is of one element on a device, as attention
with one key head there: these take their operand in any order, and so the weights stay as they lie.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from autoshard.cost.vector_products import MOST
from autoshard.program.dim_order import Order, RowSum, Transposition, large_of, operand_groups
from autoshard.program.graph import Op, Program


def turned_for_row(
    program: Program, op: Op, groups: Sequence[tuple[Order, ...]], position: int, lies: Order
) -> Transposition | None:
    """How the stack is put in order of which a product reads a slice; None where it is not.

    Args:
      program: the step.
      op: the product.
      groups: of its operands, `autoshard.program.dim_order.operand_groups`.
      position: of the operand that is a slice.
      lies: its order.
    """
    shape = program.values[op.inputs[position]].shape
    batch, own, contracted = groups[position]
    wanted = large_of((*own, *contracted), shape)
    if batch or groups[1 - position][1] or len(own) < 2 or large_of(lies, shape) == wanted:
        return None
    row = RowSum(contracted, own, MOST, batch_after(program, op))
    return Transposition(position, lies, (wanted,), copy=True, row=row)


def batch_after(program: Program, op: Op) -> int:
    """Elements of the batch of the first products that read what is made of a result; 0: no batch.

    What leaves the loop's body is not followed.
    """
    readers = program.consumers()
    todo, met = deque(op.outputs), set[int]()
    while todo:
        value = todo.popleft()
        for reader, position in readers[value]:
            after = program.ops[reader]
            if after.region != op.region or after.boundary:
                continue
            if after.primitive == "dot_general":
                batch = operand_groups(after.rule)[position][0]
                if batch:
                    shape = program.values[value].shape
                    return math.prod(shape[d] for d in batch)
                continue
            todo.extend(output for output in after.outputs if output not in met)
            met.update(after.outputs)
    return 0
