"""A plan in one line, in the words of this field: `FSDP over 64 (x, y)`, `TP over 8 (y)`.

What an axis is for is read off the products of the forward pass that have weights: values that
depend on state alone. The state of a step that serves is a cache; there weights are the argument of
most arrays of those of which it gives none back. An axis that cuts rows, which the weights do not
have, is data parallel; with the state cut by it too, it is FSDP. One that cuts what only weights
and results have, or what is summed, is tensor parallel; one that cuts what all three have is expert
parallel, as is one that sends rows to their groups. One that cuts none of these products has
replicas that compute the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from autoshard.program.flops import is_matrix_op
from autoshard.program.graph import Op, Program
from autoshard.program.rules.record import FactorKind
from autoshard.show.profile import Profile
from autoshard.units import counted

MOSTLY = 0.5
"""An axis is for what it does in more than this share of the FLOP of these products."""


def scheme_line(found: Profile) -> str:
    """The plan in one line; nothing where no product has weights.

    Args:
      found: the plan op by op.
    """
    plan, kinds = found.plan, _kinds(found)
    if not kinds:
        return ""
    parts: dict[str, list[int]] = {}
    for axis, kind in enumerate(kinds):
        parts.setdefault(kind, []).append(axis)
    names, sizes = plan.mesh.names, plan.mesh.sizes
    said = []
    for kind, axes in parts.items():
        count = 1
        for axis in axes:
            count *= sizes[axis]
        said.append(f"{kind} over {count} ({', '.join(names[axis] for axis in axes)})")
    if plan.kept:
        saved = sum(one.saved for one in plan.kept)
        said.append(f"{saved} of {counted(len(plan.kept), 'forward value')} saved")
    if "early_casts" in plan.options:
        said.append("weights cast before their loops")
    if "early_pads" in plan.options:
        said.append("pads before products")
    if "late_sums" in plan.options:
        said.append("sums over devices after their loops")
    return ", ".join(said)


def _kinds(found: Profile) -> list[str]:
    """What every mesh axis is for."""
    done: defaultdict[tuple[int, str], float] = defaultdict(float)
    total = 0.0
    for op, weights in _weighted_products(found):
        work = op.product_flops * op.trips * op.weight
        total += work
        assigned = found.plan.decisions.assignment[op.index] or ()
        for axis, factor in enumerate(assigned):
            if factor >= 0:
                done[axis, _use(op, weights, factor)] += work
    if not total:
        return []
    cut = _state_cut(found)
    kinds = []
    for axis in range(len(found.plan.mesh.names)):
        uses = {use: done[axis, use] / total for use in ("data", "tensor", "expert")}
        use = max(uses, key=lambda one: uses[one])
        if uses[use] <= MOSTLY:
            some = "mixed" if sum(uses.values()) > MOSTLY else "partly cut"
            kinds.append(some if any(uses.values()) else "replicated")
        elif use == "data":
            kinds.append("FSDP" if cut[axis] > MOSTLY else "data parallel")
        else:
            kinds.append({"tensor": "TP", "expert": "expert parallel"}[use])
    return kinds


def _use(op: Op, weights: int, factor: int) -> str:
    def has(tensor: tuple[tuple[int, ...], ...]) -> bool:
        return any(factor in dimension for dimension in tensor)

    if op.rule.factors[factor].kind is FactorKind.EXCHANGE:
        return "expert"
    others = [has(one) for number, one in enumerate(op.rule.operands) if number != weights]
    if not has(op.rule.operands[weights]):
        return "data"
    return "expert" if all(others) and has(op.rule.results[0]) else "tensor"


def _weighted_products(found: Profile) -> Iterator[tuple[Op, int]]:
    """Products of the forward pass with one operand of state alone, and which operand that is."""
    program = found.program
    weights = {program.inputs[position] for position in _weights(program)}
    depends = {value: value not in weights for value in program.inputs}
    for op in program.ops:
        inside = any(depends.get(value, False) for value in op.inputs)
        depends.update(dict.fromkeys(op.outputs, inside))
        if is_matrix_op(op.primitive) and not op.backward and len(op.inputs) == 2:
            free = [k for k, value in enumerate(op.inputs) if not depends.get(value, False)]
            if len(free) == 1:
                yield op, free[0]


def _weights(program: Program) -> list[int]:
    """Positions of the inputs that are trained, or, in a step that serves, of its weights."""
    tied = {position for position, _ in program.ties}
    if any(op.backward for op in program.ops):
        return sorted(tied)
    spans: defaultdict[str, list[int]] = defaultdict(list)
    for position, path in enumerate(program.input_paths):
        spans[path.split("]")[0]].append(position)
    read = [span for span in spans.values() if tied.isdisjoint(span)]
    size = lambda at: program.values[program.inputs[at]].bytes  # noqa: E731
    return max(read, key=lambda span: (len(span), sum(map(size, span))), default=[])


def _state_cut(found: Profile) -> list[float]:
    """The share of the bytes of the weights, and of their optimizer's, that every axis cuts."""
    program, stored = found.program, found.plan.decisions.stored
    held = [0.0] * len(found.plan.mesh.names)
    total = 0.0
    for position in _weights(program):
        value = program.inputs[position]
        total += program.values[value].bytes
        for axis, dimension in enumerate(stored[value] or ()):
            held[axis] += program.values[value].bytes * (dimension >= 0)
    return [one / total if total else 0.0 for one in held]
