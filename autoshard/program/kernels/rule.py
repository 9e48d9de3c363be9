"""The sharding rule of a Pallas call, see `autoshard.program.kernels.cuts`."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import Any

from autoshard import compat
from autoshard.program.kernels.cuts import kernel_cuts
from autoshard.program.kernels.records import KernelWork
from autoshard.program.rules.record import Factor, FactorKind, Rule
from autoshard.program.rules.user import whole


def kernel_rule(equation: Any) -> Rule:
    """The rule of a Pallas call: one factor for each axis of its grid that may be cut.

    A dimension that such an axis walks along has that factor first, and the elements that belong
    to one part of it as another, which stays whole as all else does.
    """
    call, found = compat.kernel_call(equation), kernel_cuts(equation)
    axis_of = {place: cut for cut in found.cuts for place in cut.dims}
    factors: dict[Hashable, tuple[int, FactorKind, str | None]] = {
        ("grid", cut.axis): (cut.parts, FactorKind.PASS, None) for cut in found.cuts
    }
    first = call.bounds + call.scalars
    tensors: list[list[list[Hashable]]] = []
    for number, atom in enumerate((*equation.invars, *equation.outvars)):
        tensor: list[list[Hashable]] = []
        for d, size in enumerate(getattr(atom.aval, "shape", ())):
            cut = axis_of.get((number - first, d))
            inside = size if cut is None else size // cut.parts
            factors[number, d] = inside, FactorKind.REPLICATE, None
            walked = [] if cut is None else [("grid", cut.axis)]
            tensor.append([*walked, *([(number, d)] if inside > 1 or not walked else [])])
        tensors.append(tensor)
    count = len(equation.invars)
    return Rule.build(tensors[:count], tensors[count:], factors)


def with_halves(rule: Rule, work: KernelWork | None) -> Rule:
    """The rule of a kernel whose parts may be evened out, with that as another way to cut them.

    See `autoshard.program.kernels.ring`.
    """
    ring = None if work is None else work.ring
    if ring is None or ring.place is None:
        return rule
    tensors = (*rule.operands, *rule.results)
    factor = tensors[ring.place[0]][ring.place[1]][0]
    if rule.factors[factor].kind is not FactorKind.PASS:
        return rule
    places = [
        (number, d)
        for number, tensor in enumerate(tensors)
        for d, factors in enumerate(tensor)
        if factor in factors
    ]
    return rule.with_joint(rule.factors[factor].size // 2, FactorKind.RING, places)


def restricted(rule: Rule, user: Rule) -> Rule:
    """The rule of a kernel, cut along no other factors than those of a user's rule."""
    kept = set(range(len(rule.factors)))
    for ours, theirs in zip(
        (*rule.operands, *rule.results), (*user.operands, *user.results), strict=True
    ):
        for here, there in zip(ours, theirs, strict=True):
            cut = any(user.factors[k].kind is not FactorKind.REPLICATE for k in there)
            if not cut:
                kept -= set(here)
    if all(rule.factors[k].kind is FactorKind.REPLICATE for k in kept):
        return whole(user)
    factors = tuple(
        one if k in kept else Factor(one.name, one.size, FactorKind.REPLICATE)
        for k, one in enumerate(rule.factors)
    )
    return replace(rule, factors=factors)
