"""The sharding rules of products of rows that lie in groups, see `autoshard.program.ragged`, and of
rows that a user's `shard_map` sends (`autoshard.compat.row_exchange`).
"""

from __future__ import annotations

import math
from typing import Any

from autoshard.compat.row_exchange import ROW_EXCHANGE
from autoshard.program.ragged import RaggedKind, RaggedProduct, ragged_product
from autoshard.program.rules.record import FactorKind, Joint, Rule


def ragged_rule(equation: Any) -> Rule:
    """The sharding rule of a ragged product.

    Rows may be cut, since the part of each group that lies in a device's rows is known from the
    sizes of all groups, which every device has. Groups may be cut, too: a device then computes its
    own groups of all rows. What is contracted is summed, rows and groups as well. Rows and groups
    may be cut by the same mesh axis, too: rows go to the devices of their groups then
    (`autoshard.program.ragged`).
    """
    product = ragged_product(equation)
    left, right, sizes = (tuple(atom.aval.shape) for atom in equation.invars[:3])
    on_left: list[Any] = [("left", d) for d in range(len(left))]
    on_right: list[Any] = [("right", d) for d in range(len(right))]
    for here, there in (*product.contracted, *product.batch):
        on_right[there] = on_left[here]
    group = ("group",)
    if product.group is not None:
        on_right[product.group] = group
    shared = [on_left[here] for here, _ in product.batch]
    result = [*shared, *(on_left[d] for d in product.left_free)]
    result += [on_right[d] for d in product.right_free]
    if product.kind is RaggedKind.CONTRACTED:
        result = [group, *result]
    on_sizes = [*(on_left[d] for d in product.before), ("size",)]
    factors: dict[Any, tuple[int, FactorKind, str | None]] = {}
    for labels, shape in ((on_left, left), (on_right, right), (on_sizes, sizes)):
        factors |= {
            one: (size, FactorKind.PASS, None) for one, size in zip(labels, shape, strict=True)
        }
    factors[group] = (sizes[-1], FactorKind.PASS, None)
    factors["size",] = (sizes[-1], FactorKind.REPLICATE, None)
    for label in [on_left[here] for here, _ in product.contracted]:
        factors[label] = (factors[label][0], FactorKind.REDUCE, "sum")
    if product.kind is RaggedKind.ROWS:
        factors[group] = (sizes[-1], FactorKind.REDUCE, "sum")
    if product.before:  # every part would begin at other rows
        factors[group] = (sizes[-1], FactorKind.REPLICATE, None)
    tensors = [[[label] for label in one] for one in (on_left, on_right, on_sizes)]
    rule = Rule.build(tensors, [[[label] for label in result]], factors)
    places = exchanged_places(product, len(tensors))
    rows, groups = left[product.ragged], sizes[-1]
    if not places or math.gcd(rows, groups) < 2:
        return rule
    return rule.with_joint(math.gcd(rows, groups), FactorKind.EXCHANGE, places)


def row_exchange_rule(equation: Any) -> Rule:
    """The sharding rule of rows that parts send to each other.

    Parts may be cut, by the collective itself: theirs is the factor of kind EXCHANGE. Batches and
    the dimensions of a row pass through; rows, places and the numbers of them stay whole.
    """
    batch = equation.params["batch"]
    operand, output, *numbers = (tuple(atom.aval.shape) for atom in equation.invars)
    factors: dict[Any, tuple[int, FactorKind, str | None]] = {
        ("batch", d): (operand[d], FactorKind.PASS, None) for d in range(batch)
    }
    before = list(factors)
    factors["parts",] = (operand[batch], FactorKind.EXCHANGE, None)
    factors["rows",] = (operand[batch + 1], FactorKind.REPLICATE, None)
    factors["places",] = (output[batch + 1], FactorKind.REPLICATE, None)
    inside = [("row", d) for d in range(len(operand) - batch - 2)]
    factors |= {
        one: (size, FactorKind.PASS, None)
        for one, size in zip(inside, operand[batch + 2 :], strict=True)
    }
    factors["pieces",] = (numbers[0][-1], FactorKind.REPLICATE, None)
    parts = [*before, ("parts",)]
    sent, taken = [*parts, ("rows",), *inside], [*parts, ("places",), *inside]
    tensors = [sent, taken, *([*parts, ("pieces",)] for _ in numbers)]
    single = [[[label] for label in tensor] for tensor in tensors]
    return Rule.build(single, [single[1]], factors)


def sending_factor(primitive: str, rule: Rule) -> int | None:
    """The factor of the parts between which an op sends rows; None where it is no such op."""
    if primitive != ROW_EXCHANGE:
        return None
    return next(k for k, one in enumerate(rule.factors) if one.kind is FactorKind.EXCHANGE)


def sent_tensors(primitive: str, groups: int, rule: Rule) -> tuple[int, tuple[int, ...]] | None:
    """The factor that has an op send rows, and the tensors that have these; None where none has.

    Operands are counted first.
    """
    sending = sending_factor(primitive, rule)
    if sending is not None:
        return sending, (0,)
    exchange = exchange_of(rule) if groups > 1 else None
    return None if exchange is None else (exchange.factor, exchanged_rows(rule, exchange))


def exchanged_places(product: RaggedProduct, operands: int) -> list[tuple[int, int]]:
    """(tensor, dimension) of all rows and of the groups; none where rows are not exchanged."""
    if product.before or product.kind is RaggedKind.BATCH:
        return []
    if product.kind is RaggedKind.CONTRACTED:
        return [(0, product.ragged), (1, product.ragged_right), (operands, 0)]
    assert product.group is not None
    return [(0, product.ragged), (1, product.group), (operands, product.ragged_result)]


def group_factor(rule: Rule) -> int | None:
    """The factor of a ragged product's rule that counts its groups; None where none does.

    It stands in the right operand or in the result, and nowhere else.
    """
    left, right = ({k for dimension in tensor for k in dimension} for tensor in rule.operands[:2])
    result = {k for dimension in rule.results[0] for k in dimension}
    alone = (right - left - result) | (result - left - right)
    return next(iter(alone), None)


def exchange_of(rule: Rule) -> Joint | None:
    """How the rows and groups of a ragged product are cut together; None where they cannot be."""
    joint = (one for one in rule.joint if rule.factors[one.factor].kind is FactorKind.EXCHANGE)
    return next(joint, None)


def exchanged_rows(rule: Rule, exchange: Joint) -> tuple[int, ...]:
    """The tensors whose rows are sent to their groups, operands first; a result's come back."""
    group, tensors = group_factor(rule), (*rule.operands, *rule.results)
    return tuple(tensor for tensor, d in exchange.places if group not in tensors[tensor][d])
