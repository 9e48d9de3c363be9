"""In which order the dimensions of a value lie in memory, and what it takes to change that.

An order is carried from one tensor of an op to another by the factors of the op's rule. A product
can be computed in several orders:

    out[b, i, j] = sum over (k, l) of left[b, i, k, l] right[b, k, l, j]
    out[b, j, i] = sum over (l, k) of right[b, j, l, k] left[b, l, k, i]

are the same product, but for the order in which its result lies in memory, and those in which it
can read its operands. An operand that lies otherwise than its op reads it is turned, and that may
be dear: XLA:GPU transposes through tiles in shared memory where the dimension that is innermost
before and the one that is innermost after are both large enough; else it reads element by element,
and each read fetches a whole transaction. The rule is that of its own timeline, found by
transposing arrays of many shapes: 4 bytes an element of bfloat16 where it is coalesced, 66 where it
is not.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import permutations, product

from autoshard.program.rules.ask_shardy import Rule


def large_of(order: Order, shape: Sequence[int]) -> Order:
    """Without the dimensions of size one."""
    return tuple(dimension for dimension in order if shape[dimension] > 1)


def holding(factors: Set[int], tensor: Sequence[Sequence[int]]) -> Order:
    """The dimensions that hold some of the factors."""
    return tuple(d for d, dimension in enumerate(tensor) if not factors.isdisjoint(dimension))


def completed(order: Order, rank: int) -> Order:
    """The order with the dimensions of size one, which may lie anywhere."""
    return (*(d for d in range(rank) if d not in order), *order)


def operand_groups(rule: Rule) -> tuple[tuple[Order, Order, Order], ...]:
    """(batch, free, contracted) dimensions of both operands of a product, each in its one order."""
    left, right = rule.operands
    result = [factor for dimension in rule.results[0] for factor in dimension]
    groups = []
    for mine, other in ((left, right), (right, left)):
        shared = {factor for dimension in other for factor in dimension}
        whose = {factor: d for d, dimension in enumerate(mine) for factor in dimension}
        large = {f: d for f, d in whose.items() if rule.factors[f].size > 1}
        contracting = [f for dimension in left for f in dimension if f not in result]
        batch = [large[f] for f in result if f in shared and f in large]
        free = [d for f, d in large.items() if f in result and f not in shared]
        contracted = [large[f] for f in contracting if f in large]
        groups.append(tuple(tuple(dict.fromkeys(group)) for group in (batch, free, contracted)))
    return tuple(groups)


def carried_order(
    order: Order,
    rule: Rule,
    before: Sequence[Sequence[int]],
    after: Sequence[Sequence[int]],
) -> Order | None:
    """The order that a tensor has whose factors lie as those of another; None where none can."""
    large = [[f for f in dimension if rule.factors[f].size > 1] for dimension in after]
    kept = {factor for dimension in large for factor in dimension}
    lying = [f for dimension in order for f in before[dimension] if f in kept]
    place = {factor: number for number, factor in enumerate(lying)}
    if any(f not in place for f in kept):
        return None
    for dimension in large:
        first = place[dimension[0]] if dimension else 0
        if [place[f] for f in dimension] != list(range(first, first + len(dimension))):
            return None
    few = tuple(d for d, dimension in enumerate(large) if not dimension)
    many = [d for d, dimension in enumerate(large) if dimension]
    return (*few, *sorted(many, key=lambda d: place[large[d][0]]))


Order = tuple[int, ...]
"""Dimensions, the outermost in memory first."""

TILE, FLAT_TILE, FLAT_TILE_AREA = 16, 8, 64 * 64
"""Elements along which a transposing kernel of XLA:GPU must read and write; fewer are enough where
the two dimensions together have more elements than an area."""


def is_coalesced(sizes: Sequence[int], lies: Order, wanted: Order) -> bool:
    """Whether whole memory transactions are used where `lies` is read and `wanted` is written.

    Args:
      sizes: of the dimensions.
      lies, wanted: orders of the dimensions larger than one.

    >>> is_coalesced((8, 4096, 512, 4), (0, 1, 2, 3), (0, 1, 3, 2))
    False
    """
    before, extents = _merged(sizes, lies, wanted)
    rank = len(before)
    if rank < 2 or before[-1] == rank - 1:
        return True
    # `before` numbers the merged dimensions as they lie by their place in the wanted order.
    read, written = extents[before[-1]], extents[rank - 1]
    if min(read, written) >= (FLAT_TILE if read * written > FLAT_TILE_AREA else TILE):
        return True
    if written < TILE:
        return False
    # Few elements lie together, but a kernel that reverses three dimensions packs them.
    return before[-3:] == [rank - 1, rank - 2, rank - 3] and before[:-3] == list(range(rank - 3))


def _merged(sizes: Sequence[int], lies: Order, wanted: Order) -> tuple[list[int], list[int]]:
    """Dimensions that stay neighbours become one: (places in `wanted` as they lie, sizes there)."""
    place = {dimension: number for number, dimension in enumerate(wanted)}
    runs: list[list[int]] = []
    for dimension in lies:
        if runs and place[dimension] == runs[-1][-1] + 1:
            runs[-1].append(place[dimension])
        else:
            runs.append([place[dimension]])
    ranked = {run[0]: number for number, run in enumerate(sorted(runs))}
    extents = [math.prod(sizes[wanted[place]] for place in run) for run in sorted(runs)]
    return [ranked[run[0]] for run in runs], extents


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
        """As `autoshard.program.dim_order.operand_groups`, in this order."""
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


@dataclass(frozen=True, slots=True)
class RowSum:
    """The matrix of a product of one row that may be a sum: see `autoshard.cost.vector_products`.

    Attributes:
      contracted, own: its dimensions.
      most: elements of the product's operands from which it is no sum.
      batch: the batch of the products that its result goes to, on all devices together; 0 if it
        goes to none with a batch. If that is cut to one element, the matrix stays as it lies.
    """

    contracted: Order
    own: Order
    most: float
    batch: int

    def turns(self, sizes: Sequence[int]) -> bool:
        """Whether it is a sum on a device, and its columns are of several dimensions there."""
        depth, width = (math.prod(sizes[d] for d in group) for group in (self.contracted, self.own))
        return depth * (width + 1) < self.most and len(large_of(self.own, sizes)) > 1


@dataclass(frozen=True, slots=True)
class Transposition:
    """An operand that lies otherwise than its op reads it.

    Attributes:
      position: of the operand.
      lies: its order.
      wanted: the orders in which the op can read it; it is put in the first of them.
      copy: whether it is written anew in that order, besides being made: always, unless an
        elementwise op makes it for this reader alone, and can as well write it so.
      jumps: whether what it is made from must be read out of order, unless that is coalesced.
      batch: dimensions of the operand that are a product's batch.
      alone: whether it is transposed where `batch` is cut to one element, or where it is not
        (`autoshard.xla.dim_order.unbatched`); None: in any case.
      row: of what is transposed only where `row.turns`, and `row.batch` is of several elements.
    """

    position: int
    lies: Order
    wanted: tuple[Order, ...]
    copy: bool
    jumps: bool = True
    batch: Order = ()
    alone: bool | None = None
    row: RowSum | None = None


@dataclass(frozen=True, slots=True)
class Transpositions:
    """All of a program.

    Attributes:
      of_op: by op index.
      bases: by op index, the values that are transposed: the operands, or what was first made in
        their order. A value is put in another order once, for all that is fused after it.
    """

    of_op: Mapping[int, tuple[Transposition, ...]]
    bases: Mapping[int, tuple[int, ...]]


@functools.lru_cache(maxsize=65_536)
def transposed_bytes(
    one: Transposition, replaces: float, sizes: tuple[int, ...], itemsize: int, transaction: float
) -> tuple[float, float, float]:
    """(bytes moved besides what is read and written anyway, bytes of a copy, its net bytes).

    Args:
      one: what is transposed.
      replaces: bytes per element of what is not held meanwhile.
      sizes: of the operand's dimensions on a device.
      itemsize: bytes of an element.
      transaction: bytes of a memory transaction.
    """
    if one.alone is not None and one.alone != all(sizes[d] == 1 for d in one.batch):
        return 0.0, 0.0, 0.0
    lies, *wanted = (tuple(d for d in order if sizes[d] > 1) for order in (one.lies, *one.wanted))
    if lies in wanted:
        return 0.0, 0.0, 0.0
    elements = math.prod(sizes)
    jumps = one.jumps and not is_coalesced(sizes, lies, wanted[0])
    copy = float(elements * itemsize * one.copy)
    held = max(copy - elements * replaces, 0.0) if jumps else 0.0
    return 2 * copy + elements * max(transaction - itemsize, 0.0) * jumps, copy, held
