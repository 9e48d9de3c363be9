"""What of a traced program a plan needs, as text: where all of it is equal, so are the programs.

Left out is what no decision depends on and what versions of JAX write in different ways: values
that are computed wherever they are needed, and the ops that make them; names of the factors of
rules, and all of those of one element. Of a factor's kind stands whether it may be cut, and what is
summed over it.

Kinds stand last in a line. Plans of before know nothing of them; their fingerprint is that of the
lines without.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence

from autoshard.program.graph import Op, Program, Value, is_free
from autoshard.program.rules.record import CUT, Rule

_MARK = 4
_KINDS = " | "
"""Between the dimensions of a rule and the kinds of its factors."""
_SAID_BY_SHAPES = frozenset({"reshape"})
"""Primitives whose rules follow from the shapes of what they read and make."""


def deciding_ops(values: Sequence[Value], ops: Sequence[Op]) -> list[Op]:
    """The ops of which a plan decides something: those that do not make free values alone."""
    return [op for op in ops if not is_free(op, values)]


def outline(
    values: Sequence[Value],
    ops: Sequence[Op],
    inputs: Sequence[int],
    aliases: Mapping[int, int] | None = None,
) -> tuple[str, ...]:
    """A line for every input, and then one for every op of which a plan decides something.

    `aliases` has values that stand for others; the ops that make them are left out.
    """
    aliases = aliases or {}
    kept = [value.index for value in values if not value.free and value.index not in aliases]
    number = {value: k for k, value in enumerate(kept)}

    def lines() -> Iterator[str]:
        for value in inputs:
            yield f"{number.get(value, -1)}: {values[value]}"
        for op in deciding_ops(values, ops):
            if aliases.keys() & set(op.outputs):
                continue
            read = ",".join(str(number.get(aliases.get(v, v), -1)) for v in op.inputs)
            made = ",".join(str(values[value]) for value in op.outputs)
            rule = "" if op.primitive in _SAID_BY_SHAPES else _dimensions(op.rule)
            kinds = "" if op.primitive in _SAID_BY_SHAPES else _kinds(op.rule)
            yield f"{op.primitive}({read})->{made} x{op.trips} {rule}{_KINDS}{kinds}"

    return tuple(lines())


def alike_but_for_weak_types(program: Program, other: Program) -> bool:
    """Whether two traces differ at most in conversions of a type to itself.

    JAX writes one where a weak type becomes strong
    (https://docs.jax.dev/en/latest/type_promotion.html#weak-types).
    """
    return _without_conversions(program) == _without_conversions(other)


def _without_conversions(program: Program) -> tuple[str, ...]:
    values, aliases = program.values, {}
    for op in program.ops:
        if op.primitive == "convert_element_type" and op.inputs[0] >= 0:
            (read,), (made,) = op.inputs, op.outputs
            if values[read].dtype == values[made].dtype:
                aliases[made] = aliases.get(read, read)
    return outline(values, program.ops, program.inputs, aliases)


def fingerprint(lines: Sequence[str]) -> str:
    """16 hexadecimal digits of an outline."""
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def without_kinds(lines: Sequence[str]) -> tuple[str, ...]:
    """The outline as plans of before know it."""
    return tuple(line.partition(_KINDS)[0] for line in lines)


def is_of(fingerprint_of_plan: str, program: Program) -> bool:
    """Whether a plan with this fingerprint was made for the program."""
    if fingerprint_of_plan == program.fingerprint:
        return True
    return fingerprint_of_plan == fingerprint(without_kinds(program.outline))


def marks(lines: Sequence[str]) -> str:
    """Four hexadecimal digits of each line of an outline, one after the other."""
    return "".join(hashlib.sha256(line.encode()).hexdigest()[:_MARK] for line in lines)


def first_difference(kept: str, program: Program) -> str:
    """Where a program differs from the one of which `marks` were kept, for a reader.

    Args:
      kept: what `marks` made of the outline of the other program; empty where nobody kept it.
      program: of another fingerprint.
    """
    if not kept:
        return ""
    count = len(program.outline)
    lines = program.outline, without_kinds(program.outline)
    same = max(_alike(kept, marks(one), count) for one in lines)
    if same == count:
        return "it ends where the planned one goes on"
    if same < len(program.inputs):
        value = program.values[program.inputs[same]]
        return f"the first difference is the input {value.path}, here {value}"
    op = deciding_ops(program.values, program.ops)[same - len(program.inputs)]
    made = ", ".join(str(program.values[value]) for value in op.outputs)
    return f"the first difference is {op}, which makes {made} by the rule {op.rule} here"


def _alike(kept: str, ours: str, count: int) -> int:
    """How many lines have the same marks from the first one on."""
    unlike = (k for k in range(count) if ours[k * _MARK :][:_MARK] != kept[k * _MARK :][:_MARK])
    return next(unlike, count)


def _dimensions(rule: Rule) -> str:
    """The factors of each dimension of a rule, numbered as they first appear."""
    names: dict[int, int] = {}

    def dimension(factors: Sequence[int]) -> str:
        longer = (factor for factor in factors if rule.factors[factor].size > 1)
        return ".".join(str(names.setdefault(factor, len(names))) for factor in longer)

    def side(tensors: Sequence[Sequence[Sequence[int]]]) -> str:
        return "".join(f"[{' '.join(map(dimension, tensor))}]" for tensor in tensors)

    return f"{side(rule.operands)}{side(rule.results)}"


def _kinds(rule: Rule) -> str:
    """A word for every factor that a rule's dimensions have, in the order in which they appear."""
    tensors = (*rule.operands, *rule.results)
    met = dict.fromkeys(f for tensor in tensors for dimension in tensor for f in dimension)
    factors = [rule.factors[one] for one in met if rule.factors[one].size > 1]
    return " ".join(one.operator or ("cut" if one.kind in CUT else "whole") for one in factors)
