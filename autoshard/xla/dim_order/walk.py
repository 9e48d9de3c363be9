"""Find the dimension order of every value in memory, and which ops must transpose an operand.

JAX numbers dimensions; the compiler decides their order in memory. XLA:GPU's compiled modules show
these rules:

    an input, and a value that crosses a loop boundary, has the default order of its dimensions
    a product `dot_general` writes batch, left, right; it reads batch, free, contracted on the left
    and batch, contracted, free on the right, each group in one order; the last two may be swapped.
    It can be told to use other orders (`autoshard.xla.dim_order.choose_products`)
    every other op keeps the order of its operand: a `transpose` only renumbers the dimensions
    where the operands of an elementwise op have different orders, one of them prevails

Any other operand is transposed, which can be expensive. A transposition that neither reads nor
writes runs of at least 16 elements fetches a whole memory transaction per element (`is_coalesced`).
The common case is plain attention with grouped queries: the product writes the groups of the scores
innermost, and the next product reads them outermost.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from autoshard.cost.vector_products import HABIT as SUMS
from autoshard.cost.vector_products import is_sum
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
from autoshard.xla.dim_order.wide_rows import turned_for_row
from autoshard.xla.in_place import carry_of, stack_of

SCATTERED = frozenset(
    {
        *("conv_general_dilated", "gather", "sort"),
        *("scatter", "scatter-add", "scatter-mul", "scatter-min", "scatter-max"),
    }
)
"""Ops for which the compiler chooses layouts freely: no order is assumed for them."""
RENUMBERING = frozenset({"squeeze", "expand_dims", "reshape", "transpose"})
"""Ops that only renumber the dimensions."""


@dataclass(frozen=True, slots=True)
class OrderRules:
    """How a compiler lays out arrays. Each field is one of its habits.

    Attributes:
      in_order: whether products, and values derived from them, have a fixed order at all.
      renumbers: whether a transpose only renumbers the dimensions.
      one_prevails: whether the operands of an elementwise op are transposed to the order of one of
        them.
      either_way: whether products can also read and write matrices transposed.
      edges_in_order: whether values that cross a loop boundary have their default order.
      alone: whether a batch of one element counts as no batch, see
        `autoshard.xla.dim_order.unbatched`.
      rows: whether small products of one row are sums (`autoshard.cost.vector_products`), and read
        slices of stacks with what they contract innermost.
      sums: whether they read all else in whatever order it lies.
      wide_rows: whether they do so where they have no batch and several dimensions of their own.
    """

    in_order: bool
    renumbers: bool
    one_prevails: bool
    either_way: bool
    edges_in_order: bool
    alone: bool
    rows: bool
    sums: bool
    wide_rows: bool
    carries: bool

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
            rows=compiler.has(SUMS),
            sums=compiler.has(SUMS) and not compiler.has("gpu.caches-put-in-order-for-sums"),
            carries=compiler.has(SUMS) and compiler.has("gpu.caches-put-in-order-for-sums"),
            wide_rows=compiler.has(SUMS) and compiler.has("gpu.stacks-turned-for-wide-rows"),
        )


ANY = OrderRules.of(LAWS)
"""The rules that are assumed for any compiler."""


class Orders:
    """One walk over a program that finds the transposed operands.

    Attributes:
      program: the step.
      elementwise: per op, whether it fuses with its neighbours.
      product_orders: by op index, the orders of a product that differ from JAX's own form.
      rules: the compiler's rules.
      orders: per value, the orders in which it is available, its own first; empty if any order.
      made: the same at the op that computes the value, before later readers transpose it.
      batches: per value, the dimensions that were batch dimensions of the product it comes from.
      roots: per value, the first value of the chain whose order it inherits.
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
        self.sizes = [math.prod(value.shape) for value in program.values]
        self._carried: dict[tuple[int, int, int, Order], Order | None] = {}
        self._groups: dict[tuple[int, ProductOrder], Any] = {}
        self._read = Counter(
            value for op in program.ops if not elementwise[op.index] for value in set(op.inputs)
        )

    def anew(self, product_orders: Mapping[int, ProductOrder]) -> Orders:
        """Return a walk with other product orders, for a part of the ops; both share answers."""
        walk = copy.copy(self)
        walk.product_orders = product_orders
        walk.orders, walk.made = list(self.made), list(self.made)
        walk.batches, walk.roots, walk.bases = [*self.batches], [*self.roots], [*self.bases]
        walk.turned, walk.written = set(), {}
        return walk

    def run(self, ops: Iterable[Op] | None = None) -> Transpositions:
        """Return the transpositions of the program, or of some of its ops after earlier ones."""
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
        """Mark the transpositions that need a copy because other ops read the original order."""
        ops, read = self.program.ops, self._read
        turned = Counter(ops[o].inputs[one.position] for o, here in found.items() for one in here)
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

    def sums(self, op: Op) -> bool:
        """Whether a product is a sum, which reads operands in whatever order they lie."""
        return self.rules.sums and self._is_row(op) and not self._reads_stack(op)

    def _order_of(self, value: int) -> Order:
        """The large dimensions of a value in the order in which it lies; none if in any."""
        there = self.orders[value]
        return large_of(there[0], self.program.values[value].shape) if there else ()

    def _is_row(self, op: Op) -> bool:
        return self.rules.rows and min(op.inputs) >= 0 and is_sum(op)

    def _reads_stack(self, op: Op) -> bool:
        return any(stack_of(self.program, value) is not None for value in op.inputs)

    def product(self, op: Op) -> tuple[Transposition, ...]:
        values = self.program.values
        result = values[op.outputs[0]]
        plain = tuple(range(len(result.shape)))
        if self.sums(op):
            self.orders[result.index] = (plain,)
            return ()
        told = self.product_orders.get(op.index, ProductOrder(plain))
        if (groups := self._groups.get((op.index, told))) is None:
            groups = self._groups[op.index, told] = told.groups(op.rule)
        order = told.result
        last = 0 if told.exchanges(op.rule) else 1
        row = bool(groups[0][0]) and self._is_row(op)
        found = []
        for position, (batch, free, contracted) in enumerate(groups):
            value = op.inputs[position]
            if value < 0:
                continue
            wanted = ((*batch, *free, *contracted), (*batch, *contracted, *free))
            inside = row and self._is_sliced(value)
            wanted = wanted[::-1] if position == last and not inside else wanted
            copy = not self.is_made(value)
            apart = batch and not (copy and are_adjacent(batch, self.orders[value]))
            if apart or inside or not self.rules.either_way:
                wanted = wanted[:1]
            if self.rules.wide_rows and self._order_of(value) and stack_of(self.program, value):
                lies = self.orders[value][0]
                if turned := turned_for_row(self.program, op, groups, position, lies):
                    found.append(turned)
                    continue
            if inside and large_of(wanted[0], values[value].shape) == self._order_of(value):
                # Then the stack is put in an order in which its turns are not outermost.
                wanted = ((*batch, *contracted, *free),)
            found += self.read(position, value, wanted, copy=copy, product=True)
        large = [dimension for dimension in plain if result.shape[dimension] > 1]
        self.orders[result.index] = (order,)
        matrix = len(large) == 2 and not groups[0][0]
        if order == plain and matrix and self.rules.either_way:
            # The product can write its transpose: (A B)^T = B^T A^T.
            swapped = {large[0]: large[1], large[1]: large[0]}
            self.orders[result.index] += (tuple(swapped.get(d, d) for d in plain),)
        return tuple(found)

    def _is_sliced(self, value: int) -> bool:
        """Whether a value is a slice of a stack, or of a carry that is put in order for sums."""
        carried = self.rules.carries and carry_of(self.program, value) >= 0
        return carried or stack_of(self.program, value) is not None

    def is_made(self, value: int) -> bool:
        """Whether an elementwise op computes the value, rather than slicing it from a buffer."""
        producer = self.program.values[value].producer
        if producer < 0 or not self.elementwise[producer]:
            return False
        while producer >= 0 and self.program.ops[producer].primitive in RENUMBERING:
            producer = self.program.values[self.program.ops[producer].inputs[0]].producer
        return producer < 0 or self.program.ops[producer].primitive != "dynamic_slice"

    def _transpose(self, op: Op) -> tuple[Transposition, ...]:
        """Handle a transpose that is a kernel of its own and writes the default order."""
        (value,), (output,) = op.inputs, op.outputs
        plain = tuple(range(len(self.program.values[output].shape)))
        self.orders[output] = (plain,)
        wanted = carried_order(plain, op.rule, op.rule.results[0], op.rule.operands[0])
        if value < 0 or wanted is None:
            return ()
        return tuple(self.read(0, value, (wanted,), copy=True))

    def _carry(self, op: Op) -> tuple[Transposition, ...]:
        """Handle an op that keeps the order of its largest operands."""
        values = self.program.values
        size = max((self.sizes[v] for v in op.inputs if v >= 0), default=0)
        mains = [
            (position, value)
            for position, value in enumerate(op.inputs)
            if value >= 0 and self.orders[value] and self.sizes[value] == size
        ]
        if not mains:
            return ()
        mains.sort(key=lambda main: self.roots[main[1]])
        first, leader = mains[0]
        found: list[Transposition] = []
        offered = self.orders[leader]
        for position, value in mains[1:]:
            # All orders are expressed in the leader's dimension numbers.
            others = {
                self._carried_order(op, order, position, first) for order in self.orders[value]
            }
            common = tuple(order for order in offered if order in others)
            if common:
                offered = common
                continue
            wanted = self._carried_order(op, offered[0], first, position)
            if wanted is not None and self.rules.one_prevails:
                found += self.read(position, value, (wanted,), copy=True)
        for number, output in enumerate(op.outputs):
            ways = (self._carried_order(op, one, first, ~number) for one in offered)
            carried = [order for order in ways if order]
            if not carried and self.sizes[output] == size:
                # A reshape merges non-adjacent dimensions: first restore the default order.
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

    def _carried_order(self, op: Op, order: Order, before: int, after: int) -> Order | None:
        """Return `carried_order` between tensors of an op: operands, or results as `~position`."""
        key = op.index, before, after, order
        if key not in self._carried:
            sides = (*op.rule.operands, *op.rule.results[::-1])  # ~0 is the last
            self._carried[key] = carried_order(order, op.rule, sides[before], sides[after])
        return self._carried[key]

    def read(
        self,
        position: int,
        value: int,
        wanted: tuple[Order, ...],
        *,
        copy: bool,
        product: bool = False,
    ) -> Iterable[Transposition]:
        """Return the transpositions to read `value` in an order of `wanted`.

        From then on the value is available in that order.
        """
        there = self.orders[value]
        shape = self.program.values[value].shape
        reduced = {large_of(order, shape) for order in wanted}
        if not there:
            return ()
        for order in there:
            if (large := large_of(order, shape)) in reduced:
                # A fused value is available in several orders at no cost. A product's operand is
                # written in every order that some product reads.
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
    """Whether some dimensions are adjacent in the first of `orders`, if there is one."""
    places = sorted(orders[0].index(d) for d in dimensions) if orders else []
    return all(after - before == 1 for before, after in pairwise(places))
