"""In which order the dimensions of values lie in memory, and who must transpose what he reads.

JAX numbers dimensions; a compiler decides how they lie. XLA:GPU's ways, as its modules show them:

    an input, and what crosses the edge of a loop, lies in the order of its dimensions
    a product `dot_general` writes batch, left, right; it reads batch, free, contracted on the left
    and batch, contracted, free on the right, each group in one order; the last two may be swapped.
    It may be told to do otherwise (`autoshard.xla.dim_order.choose_products`)
    everything else keeps the order of its operand: a `transpose` only gives it other numbers
    where the operands of an elementwise op disagree, one of them prevails

What does not fit is transposed, and that may be dear: a transposition that neither reads nor writes
along at least 16 elements fetches a whole memory transaction for every element (`is_coalesced`).
Plain attention with grouped queries is the common case: the scores' groups come out innermost, and
the next product wants them outermost.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from autoshard.machine.compiler import LAWS, Compiler
from autoshard.program.dim_order import (
    Order,
    ProductOrder,
    Transposition,
    Transpositions,
    carried_order,
    completed,
    holding,
    large_of,
    operand_groups,
)
from autoshard.program.graph import Op, Program

SCATTERED = frozenset(
    {
        *("conv_general_dilated", "gather", "sort"),
        *("scatter", "scatter-add", "scatter-mul", "scatter-min", "scatter-max"),
    }
)
"""Ops whose layouts are the compiler's own affair: nothing is said of them."""


RENUMBERING = frozenset({"squeeze", "expand_dims", "reshape", "transpose"})
"""Ops that only give the dimensions other numbers."""


@dataclass(frozen=True, slots=True)
class OrderRules:
    """How a compiler lays arrays: each a habit of it.

    Attributes:
      in_order: whether products lie in an order of their own at all, and what is made of them.
      renumbers: whether a transpose only gives the dimensions other numbers.
      one_prevails: whether operands of an elementwise op are put in the order of one of them.
      either_way: whether products read and write matrices transposed as well.
      edges_in_order: whether what crosses the edge of a loop lies in the order of its dimensions.
      alone: whether a batch of one element is none, see `autoshard.xla.dim_order.unbatched`.
    """

    in_order: bool
    renumbers: bool
    one_prevails: bool
    either_way: bool
    edges_in_order: bool
    alone: bool

    @classmethod
    def of(cls, compiler: Compiler) -> OrderRules:
        denies = compiler.denies
        return cls(
            in_order=not denies("gpu.products-write-batch-left-right"),
            renumbers=not denies("gpu.transposes-renumber"),
            one_prevails=not denies("gpu.left-order-prevails"),
            either_way=not denies("gpu.matrices-read-transposed"),
            edges_in_order=not denies("gpu.loop-edges-as-numbered"),
            alone=not denies("gpu.batch-of-one-is-none"),
        )


ANY = OrderRules.of(LAWS)
"""What is taken of any compiler."""


class Orders:
    """One walk over a program, which finds the operands that are transposed.

    Attributes:
      program: the step.
      elementwise: per op, whether it is fused with its neighbours.
      product_orders: by op index, how a product is computed where that is not as JAX writes it.
      rules: the compiler's.
      orders: of every value, those in which it can be had, the first being its own; none: in any.
      made: the same as it was when the value was made; later readers may have transposed it.
      batches: of every value, the dimensions that were the batch of the product it comes from.
      roots: of every value, the first one of the chain whose order it has.
    """

    def __init__(
        self,
        program: Program,
        elementwise: Sequence[bool],
        product_orders: Mapping[int, ProductOrder] | None = None,
        rules: OrderRules = ANY,
    ) -> None:
        self.program = program
        self.rules = rules
        self.elementwise = elementwise
        self.product_orders = product_orders or {}
        self.orders: list[tuple[Order, ...]] = [
            (tuple(range(len(value.shape))),) if value.producer < 0 and not value.free else ()
            for value in program.values
        ]
        self.made = list(self.orders)
        self.batches: list[Order] = [()] * len(program.values)
        self.roots = list(range(len(program.values)))
        self.bases = list(range(len(program.values)))
        self.turned: set[tuple[int, Order]] = set()
        self.written: dict[int, list[Order]] = {}

    def anew(self, product_orders: Mapping[int, ProductOrder]) -> Orders:
        """A walk over some ops, as this one would be with products computed otherwise in them."""
        walk = copy.copy(self)
        walk.product_orders = product_orders
        walk.orders, walk.made = list(self.made), list(self.made)
        walk.batches, walk.roots, walk.bases = [*self.batches], [*self.roots], [*self.bases]
        walk.turned, walk.written = set(), {}
        return walk

    def run(self, ops: Iterable[Op] | None = None) -> Transpositions:
        """The transpositions of the program, or of some of its ops after those walked before."""
        found: dict[int, tuple[Transposition, ...]] = {}
        if not self.rules.in_order:
            return Transpositions(found, {})
        for op in self.program.ops if ops is None else ops:
            if all(self.program.values[o].free for o in op.outputs):
                continue
            if op.boundary:
                here = self._boundary(op)
            elif op.primitive == "dot_general":
                here = self.product(op)
                batch = {
                    factor
                    for d in operand_groups(op.rule)[0][0]
                    for factor in op.rule.operands[0][d]
                }
                self.batches[op.outputs[0]] = holding(batch, op.rule.results[0])
            elif op.primitive in SCATTERED:
                here = ()
            elif op.primitive == "transpose" and not self.rules.renumbers:
                here = self._transpose(op)
            else:
                here = self._carry(op)
            for output in op.outputs:
                self.made[output] = self.orders[output]
            if here:
                found[op.index] = here
        bases = {
            index: tuple(self.bases[self.program.ops[index].inputs[one.position]] for one in here)
            for index, here in found.items()
        }
        return Transpositions(self._written_twice(found), bases)

    def _written_twice(
        self, found: dict[int, tuple[Transposition, ...]]
    ) -> dict[int, tuple[Transposition, ...]]:
        """A value that some read as it lies cannot be made in the order of others alone."""
        ops = self.program.ops
        turned = Counter(ops[o].inputs[one.position] for o, here in found.items() for one in here)
        read = Counter(
            value for op in ops if not self.elementwise[op.index] for value in set(op.inputs)
        )
        return {
            index: tuple(
                replace(one, copy=True)
                if not one.copy
                and ops[index].primitive == "dot_general"
                and read[ops[index].inputs[one.position]] > turned[ops[index].inputs[one.position]]
                else one
                for one in here
            )
            for index, here in found.items()
        }

    def _boundary(self, op: Op) -> tuple[Transposition, ...]:
        for output in op.outputs:
            self.orders[output] = (tuple(range(len(self.program.values[output].shape))),)
        found = []
        for position, value in enumerate(op.inputs if self.rules.edges_in_order else ()):
            if value >= 0:
                plain = tuple(range(len(self.program.values[value].shape)))
                found += self.read(position, value, (plain,), copy=False)
        return tuple(found)

    def product(self, op: Op) -> tuple[Transposition, ...]:
        values = self.program.values
        result = values[op.outputs[0]]
        plain = tuple(range(len(result.shape)))
        told = self.product_orders.get(op.index, ProductOrder(plain))
        groups, order = told.groups(op.rule), told.result
        last = 0 if told.exchanges(op.rule) else 1
        found = []
        for position, (batch, free, contracted) in enumerate(groups):
            value = op.inputs[position]
            if value < 0:
                continue
            wanted = ((*batch, *free, *contracted), (*batch, *contracted, *free))
            wanted = wanted[::-1] if position == last else wanted
            copy = not self.is_made(value)
            apart = batch and not (copy and are_adjacent(batch, self.orders[value]))
            if apart or not self.rules.either_way:
                wanted = wanted[:1]
            found += self.read(position, value, wanted, copy=copy, product=True)
        large = [dimension for dimension in plain if result.shape[dimension] > 1]
        self.orders[result.index] = (order,)
        matrix = len(large) == 2 and not groups[0][0]
        if order == plain and matrix and self.rules.either_way:
            # The product of the transposed matrices is the transposed product.
            swapped = {large[0]: large[1], large[1]: large[0]}
            self.orders[result.index] += (tuple(swapped.get(d, d) for d in plain),)
        return tuple(found)

    def is_made(self, value: int) -> bool:
        """Whether an elementwise op makes the value, and not only cuts it from a buffer."""
        producer = self.program.values[value].producer
        if producer < 0 or not self.elementwise[producer]:
            return False
        while producer >= 0 and self.program.ops[producer].primitive in RENUMBERING:
            producer = self.program.values[self.program.ops[producer].inputs[0]].producer
        return producer < 0 or self.program.ops[producer].primitive != "dynamic_slice"

    def _transpose(self, op: Op) -> tuple[Transposition, ...]:
        """A transpose that is a kernel of its own, and writes the order of its dimensions."""
        (value,), (output,) = op.inputs, op.outputs
        plain = tuple(range(len(self.program.values[output].shape)))
        self.orders[output] = (plain,)
        wanted = carried_order(plain, op.rule, op.rule.results[0], op.rule.operands[0])
        if value < 0 or wanted is None:
            return ()
        return tuple(self.read(0, value, (wanted,), copy=True))

    def _carry(self, op: Op) -> tuple[Transposition, ...]:
        """An op that keeps the order of its largest operands."""
        values = self.program.values
        size = max((math.prod(values[v].shape) for v in op.inputs if v >= 0), default=0)
        mains = [
            (position, value)
            for position, value in enumerate(op.inputs)
            if value >= 0 and self.orders[value] and math.prod(values[value].shape) == size
        ]
        if not mains:
            return ()
        mains.sort(key=lambda main: self.roots[main[1]])
        first, leader = mains[0]
        found: list[Transposition] = []
        offered = self.orders[leader]
        for position, value in mains[1:]:
            # All in the numbers of the leader's dimensions.
            others = {
                carried_order(order, op.rule, op.rule.operands[position], op.rule.operands[first])
                for order in self.orders[value]
            }
            common = tuple(order for order in offered if order in others)
            if common:
                offered = common
                continue
            wanted = carried_order(
                offered[0], op.rule, op.rule.operands[first], op.rule.operands[position]
            )
            if wanted is not None and self.rules.one_prevails:
                found += self.read(position, value, (wanted,), copy=True)
        for number, output in enumerate(op.outputs):
            carried = [
                order
                for one in offered
                if (
                    order := carried_order(
                        one, op.rule, op.rule.operands[first], op.rule.results[number]
                    )
                )
            ]
            if not carried and math.prod(values[output].shape) == size:
                # Dimensions that lie apart become one: the operand is put in its own order first.
                plain = tuple(range(len(values[leader].shape)))
                found += self.read(first, leader, (plain,), copy=True)
                carried = [tuple(range(len(values[output].shape)))]
            self.orders[output] = tuple(dict.fromkeys(carried))
            batch = {f for d in self.batches[leader] for f in op.rule.operands[first][d]}
            self.batches[output] = holding(batch, op.rule.results[number])
            self.roots[output] = self.roots[leader]
            if self.elementwise[op.index] and op.rule.results[number] == op.rule.operands[first]:
                self.bases[output] = self.bases[leader]
        return tuple(found)

    def read(
        self,
        position: int,
        value: int,
        wanted: tuple[Order, ...],
        *,
        copy: bool,
        product: bool = False,
    ) -> Iterable[Transposition]:
        """Read `value` in one of the orders `wanted`; from then on it can be had in it."""
        there = self.orders[value]
        shape = self.program.values[value].shape
        reduced = {large_of(order, shape) for order in wanted}
        if not there:
            return ()
        for order in there:
            if (large := large_of(order, shape)) in reduced:
                # Several orders cost nothing as long as the value is fused; a product's operand
                # is written in every order that some product reads.
                others = self.written.setdefault(value, [])
                if not product or not self.is_made(value) or large in others:
                    return ()
                others.append(large)
                if len(others) == 1:
                    return ()
                return (Transposition(position, others[0], (large,), copy=True, jumps=False),)
        if product:
            others = self.written.setdefault(value, [])
            others.append(large_of(wanted[0], shape))
            copy = copy or len(others) > 1
        full = completed(wanted[0], len(shape))
        self.orders[value] = (*there, full)
        once = (self.bases[value], full)
        if once in self.turned:
            return ()
        self.turned.add(once)
        return (Transposition(position, there[0], wanted, copy),)


def are_adjacent(dimensions: Order, orders: Sequence[Order]) -> bool:
    """Whether some dimensions lie beside each other in the first of `orders`, if there is one."""
    places = sorted(orders[0].index(d) for d in dimensions) if orders else []
    return all(after - before == 1 for before, after in pairwise(places))
