"""Orders of dimensions, carried from one tensor of an op to another by the factors of its rule."""

from __future__ import annotations

from collections.abc import Sequence, Set

from autoshard.coalescing import Order
from autoshard.rules import Rule


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
