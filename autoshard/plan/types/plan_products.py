"""What of the orders in which a plan computes and keeps products its program does not have."""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.plan.plan import Plan
from autoshard.program.dim_order import possible_orders
from autoshard.program.trace import Program


def product_faults(program: Program, plan: Plan) -> Iterator[str]:
    """What is wrong with `product_orders` and `row_major`, a sentence each."""
    count = len(program.ops)
    for index, order in plan.product_orders.items():
        if not 0 <= index < count:
            yield f"product_orders: there is no op {index}"
            continue
        op = program.ops[index]
        if op.primitive != "dot_general" or order not in set(possible_orders(op.rule)):
            yield f"product_orders: {op} cannot be computed as {order}"
    for index in plan.row_major:
        if not 0 <= index < count:
            yield f"row_major: there is no op {index}"
            continue
        if (op := program.ops[index]).primitive != "dot_general":
            yield f"row_major: {op} is no product"
