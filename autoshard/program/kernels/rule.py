"""The sharding rule of a Pallas call, see `autoshard.program.kernels.cuts`."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

from autoshard import compat
from autoshard.program.kernels.cuts import kernel_cuts
from autoshard.program.kernels.records import KernelWork
from autoshard.program.kernels.ring import Ring
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


def with_rings(rule: Rule, work: KernelWork | None, *, restricted: bool = False) -> Rule:
    """The rule of a kernel with the other ways to cut its sequence that it has.

    See `autoshard.program.kernels.ring`. Halves may be exchanged where the rule cuts into parts in
    order; keys go round unless the rule is `restricted` to what the user names.
    """
    tensors = (*rule.operands, *rule.results)
    for ring in work.rings if work is not None else ():
        first = (tensors[number][d][0] for number, d in ring.places)
        in_order = all(rule.factors[k].kind is FactorKind.PASS for k in first)
        if ring.places and (not restricted if ring.passed else in_order):
            rule = rule.with_joint(ring.parts, FactorKind.RING, ring.places)
    return rule


def ring_factors(rule: Rule, rings: Sequence[Ring]) -> dict[int, Ring]:
    """The factors of a rule by which a sequence is cut as a ring, and what is sent then."""
    found: dict[int, Ring] = {}
    tensors = range(len(rule.operands) + len(rule.results))
    for factor, one in enumerate(rule.factors):
        if one.kind is FactorKind.RING:
            cut = {tensor for tensor in tensors if factor in rule.homes(tensor)}
            fitting = [ring for ring in rings if cut <= ring.arrays]
            found[factor] = min(fitting, key=lambda ring: len(ring.arrays))
    return found


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
