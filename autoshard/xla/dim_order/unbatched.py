"""Find transpositions where sharding leaves a product's batch with one element per device.

A product whose batch dimensions have one element on a device is a plain matrix product. XLA:GPU is
freer with it: it may write left and right in either order, and it reads the free dimensions in the
order that they have in memory. Attention with few sequences and key heads per device is such a
product. Then most operands that `autoshard.xla.dim_order.walk` transposes already have the right
order.

The sharding decides which case applies, so every transposition records in which case it is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from autoshard.program.dim_order import (
    Order,
    ProductOrder,
    Transposition,
    Transpositions,
    large_of,
    operand_groups,
)
from autoshard.program.graph import Op, Program
from autoshard.xla.dim_order.walk import ANY, OrderRules, Orders


def transpositions(
    program: Program,
    elementwise: Sequence[bool],
    product_orders: Mapping[int, ProductOrder] | None = None,
    rules: OrderRules = ANY,
) -> Transpositions:
    """Return the transposed operands for both cases: batches of one element per device, or more.

    Args:
      program: the step.
      elementwise: per op, whether it fuses with its neighbours.
      product_orders, rules: see `autoshard.xla.dim_order.walk.Orders`.
    """
    walk = Orders(program, elementwise, product_orders, rules)
    plain = walk.run()
    if not rules.alone:
        return plain
    alone = _Unbatched(program, elementwise, product_orders, rules).run()
    of_op: dict[int, tuple[Transposition, ...]] = {}
    bases: dict[int, tuple[int, ...]] = {}
    for index in sorted({*plain.of_op, *alone.of_op}):
        found = list(_merged(program.ops[index], walk, plain, alone))
        of_op[index] = tuple(one for one, _ in found)
        bases[index] = tuple(base for _, base in found)
    return Transpositions(of_op, bases)


def _merged(
    op: Op, walk: Orders, plain: Transpositions, alone: Transpositions
) -> Iterator[tuple[Transposition, int]]:
    """Yield an op's transpositions with their bases: common ones, then those of a single case."""
    groups = operand_groups(op.rule) if op.primitive == "dot_general" else ()
    usual = dict(zip(plain.of_op.get(op.index, ()), plain.bases.get(op.index, ()), strict=True))
    other = dict(zip(alone.of_op.get(op.index, ()), alone.bases.get(op.index, ()), strict=True))
    for found, rest, case in ((usual, other, False), (other, usual, True)):
        for one, base in found.items():
            batch = groups[one.position][0] if groups else walk.batches[op.inputs[one.position]]
            if one in rest or not batch:
                if not case:
                    yield one, base
            else:
                yield replace(one, batch=batch, alone=case), base


class _Unbatched(Orders):
    """The walk in which every batch has one element per device."""

    def product(self, op: Op) -> tuple[Transposition, ...]:
        groups = operand_groups(op.rule)
        if not groups[0][0] or self.sums(op):
            return super().product(op)
        found: list[Transposition] = []
        written: list[list[int]] = []  # the free factors of each side, in memory order
        for position, (batch, free, contracted) in enumerate(groups):
            value = op.inputs[position]
            free = self._lying(value, batch, free, contracted)
            written.append([f for d in free for f in op.rule.operands[position][d]])
            if value >= 0:
                wanted = ((*batch, *free, *contracted), (*batch, *contracted, *free))
                wanted = wanted[::-1] if position else wanted
                wanted = wanted if self.rules.either_way else wanted[:1]
                copy = not self.is_made(value)
                found += self.read(position, value, wanted, copy=copy, product=True)
        result = op.rule.results[0]
        left, right = (
            sorted(
                (d for d, dimension in enumerate(result) if set(dimension) & {*side}),
                key=lambda d, side=side: min(side.index(f) for f in result[d] if f in side),
            )
            for side in written
        )
        batch = [d for d in range(len(result)) if d not in left and d not in right]
        ways = (*batch, *left, *right), (*batch, *right, *left)
        ways = ways if self.rules.either_way else ways[:1]
        self.orders[op.outputs[0]] = tuple(dict.fromkeys(ways))
        return tuple(found)

    def _lying(self, value: int, batch: Order, free: Order, contracted: Order) -> Order:
        """Return the free dimensions in memory order, if the others are in the wanted order."""
        for order in self.orders[value] if value >= 0 else ():
            lying = tuple(d for d in order if d in free)
            large = large_of(order, self.program.values[value].shape)
            if large in ((*batch, *lying, *contracted), (*batch, *contracted, *lying)):
                return lying
        return free
