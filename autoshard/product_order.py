"""How one product is computed: which operand comes first, and in which order their dimensions lie.

    out[b, i, j] = sum over (k, l) of left[b, i, k, l] right[b, k, l, j]
    out[b, j, i] = sum over (l, k) of right[b, j, l, k] left[b, l, k, i]

are the same product, but for the order in which its result lies in memory, and those in which it
can read its operands.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations, product

from autoshard.coalescing import Order
from autoshard.order_maps import operand_groups
from autoshard.rules import Rule


@dataclass(frozen=True, slots=True)
class ProductOrder:
    """How a `dot_general` is computed.

    Attributes:
      result: its dimensions, in the order in which they lie: the batch first, then those of either
        operand.
      contracted: places of the contracted dimensions of the left operand, which lie in that order;
        none: in their own.
    """

    result: Order
    contracted: Order = ()

    def exchanges(self, rule: Rule) -> bool:
        """Whether the right operand comes first."""
        batch, left, right = sides(rule)
        return bool(left and right) and self.result[len(batch)] in right

    def groups(self, rule: Rule) -> tuple[tuple[Order, Order, Order], ...]:
        """As `autoshard.order_maps.operand_groups`, in this order."""
        place = {f: self.result.index(d) for d in self.result for f in rule.results[0][d]}
        summed = [d for d in rule.operands[0] if d and not place.keys() & {*d}]
        for number, at in enumerate(self.contracted or range(len(summed))):
            place.update(dict.fromkeys(summed[at], number))
        found = []
        for tensor, (batch, free, contracted) in zip(
            rule.operands, operand_groups(rule), strict=True
        ):
            key = {d: min((place[f] for f in tensor[d]), default=0) for d in range(len(tensor))}
            lying = (tuple(sorted(group, key=key.__getitem__)) for group in (free, contracted))
            found.append((batch, *lying))
        return tuple(found)


def sides(rule: Rule) -> tuple[Order, Order, Order]:
    """The dimensions of a product's result: of its batch, of its left and its right operand."""
    left, right = ({f for dimension in tensor for f in dimension} for tensor in rule.operands)
    result = [set(dimension) for dimension in rule.results[0]]
    mine = tuple(d for d, factors in enumerate(result) if factors & left - right)
    other = tuple(d for d, factors in enumerate(result) if factors & right - left)
    return tuple(d for d in range(len(result)) if d not in {*mine, *other}), mine, other


def as_written(rule: Rule) -> ProductOrder:
    """How JAX computes a product."""
    kept = {f for dimension in rule.results[0] for f in dimension}
    summed = sum(not kept & {*dimension} for dimension in rule.operands[0])
    return ProductOrder(tuple(range(len(rule.results[0]))), tuple(range(summed)))


def possible_orders(rule: Rule) -> Iterator[ProductOrder]:
    """Every way to compute a product; none where it is not known what a dimension of it is."""
    if not all(dimension for tensor in (*rule.operands, *rule.results) for dimension in tensor):
        return
    batch, left, right = sides(rule)
    for first, second, contracted in product(
        permutations(left), permutations(right), permutations(as_written(rule).contracted)
    ):
        yield ProductOrder((*batch, *first, *second), contracted)
        if left and right:
            yield ProductOrder((*batch, *second, *first), contracted)
