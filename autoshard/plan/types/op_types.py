"""What an op reads and writes when mesh axes are put on its factors.

For every axis, put on factor `f` of the op's sharding rule:

    an operand or result that has `f` in dimension d     S(d)
    an operand that has not                              R
    a result that has not, and `f` is summed over        P
    a result that has not, otherwise                     R

An axis on no factor leaves everything replicated. On the terms of an addition (`UNREDUCED`) it has
all operands and the result be P, joined by a sum. This is the rule of sharded einsums, for every op
of which Shardy knows the factors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from autoshard.plan.decisions import Assignment
from autoshard.program.layout import REPLICATED, UNREDUCED, Layout
from autoshard.program.rules.record import CUT, FactorKind, Rule


@dataclass(frozen=True, slots=True)
class OpTypes:
    """The layouts of an op's operands and results, and the axes over which results are partial.

    Attributes:
      reads: of every operand.
      written: of every result, before partial values are settled.
      partial: (axis, operator) of every axis that leaves results partial, in mesh order.
      faults: why the op cannot be cut like this; the rest is empty then.
    """

    reads: tuple[Layout, ...]
    written: tuple[Layout, ...]
    partial: tuple[tuple[int, str], ...]
    faults: tuple[str, ...] = ()


def op_types(
    rule: Rule, assignment: Assignment, sizes: Sequence[int], names: Sequence[str]
) -> OpTypes:
    """The types of an op with `rule` where mesh axis `a` shards factor `assignment[a]`, or none.

    >>> dot = Rule.parse("([i, k], [k, j])->([i, j]) {i=8, j=16, k=8} reduction={k}")
    >>> found = op_types(dot, (0, 2), (2, 4), ("x", "y"))
    >>> found.reads, found.written, found.partial
    (((0, 1), (-1, 0)), ((0, -1),), ((1, 'sum'),))
    """
    faults = list(_faults(rule, assignment, sizes, names))
    if faults:
        return OpTypes((), (), (), tuple(faults))
    count = len(rule.operands)
    partial = tuple(
        (axis, (rule.factors[factor].operator if factor >= 0 else None) or "sum")
        for axis, factor in enumerate(assignment)
        if factor == UNREDUCED or (factor >= 0 and rule.factors[factor].kind is FactorKind.REDUCE)
    )
    return OpTypes(
        tuple(_layout(rule, k, assignment, UNREDUCED) for k in range(count)),
        tuple(_layout(rule, count + k, assignment, REPLICATED) for k in range(len(rule.results))),
        partial,
    )


def _layout(rule: Rule, tensor: int, assignment: Assignment, terms: int) -> Layout:
    home = {**rule.homes(tensor), UNREDUCED: terms}
    return tuple(home.get(factor, -1) for factor in assignment)


def _faults(rule: Rule, assignment: Assignment, sizes: Sequence[int], names: Sequence[str]):
    used: dict[int, list[int]] = {}
    for axis, number in enumerate(assignment):
        if number >= len(rule.factors) or number < UNREDUCED:
            yield f"axis {names[axis]} is put on factor {number}, but there are {len(rule.factors)}"
        elif number >= 0:
            used.setdefault(number, []).append(axis)
    for number, axes in used.items():
        factor, here = rule.factors[number], ", ".join(names[axis] for axis in axes)
        if factor.kind not in CUT:
            yield f"axis {here} shards factor {factor.name}, which must stay whole ({factor.kind})"
        if factor.size % _count(axes, sizes):
            yield (
                f"axis {here} cuts factor {factor.name} of size {factor.size} into "
                f"{_count(axes, sizes)} parts"
            )
    for dimension in {d for tensor in (*rule.operands, *rule.results) for d in tensor}:
        order: list[int] = []
        whole = True
        for number in dimension:
            axes = used.get(number, [])
            if axes and not whole:
                here = ", ".join(names[axis] for axis in axes)
                yield (
                    f"axis {here} shards factor {rule.factors[number].name} of a dimension whose "
                    "major factors are not used up, which leaves no even parts"
                )
            whole = whole and _count(axes, sizes) == rule.factors[number].size
            order += axes
        if order != sorted(order):
            here = ", ".join(names[axis] for axis in order)
            yield f"axes {here} of one dimension are not in mesh order"
    yield from _joint_faults(rule, used, sizes, names)


def _joint_faults(
    rule: Rule, used: dict[int, list[int]], sizes: Sequence[int], names: Sequence[str]
):
    """Dimensions that are cut in two ways that do not go together."""
    tensors = (*rule.operands, *rule.results)
    for one in rule.joint:
        factor, here = rule.factors[one.factor], used.get(one.factor, [])
        for factors in sorted({tensors[tensor][d] for tensor, d in one.places}):
            own = sorted(axis for k in factors for axis in used.get(k, []))
            if not here or not own:
                continue
            size = math.prod(rule.factors[k].size for k in factors)
            further = factor.kind is FactorKind.EXCHANGE and max(here) < min(own)
            if not further or size % (_count(here, sizes) * _count(own, sizes)):
                both = ", ".join(names[axis] for axis in (*here, *own))
                yield (
                    f"axes {both} cut one dimension of {size} elements along factor {factor.name} "
                    f"({factor.kind}) and along its own, which leaves no such parts"
                )


def _count(axes: Sequence[int], sizes: Sequence[int]) -> int:
    count = 1
    for axis in axes:
        count *= sizes[axis]
    return count
