"""Rules that a user gives for what nobody can look into: kernels and FFI calls.

The text is that of `jax.experimental.custom_partitioning`: one name per dimension, tensors
separated by commas, `...` for any number of leading dimensions, `(a b)` for a dimension made of two
factors whose sizes are then given. A name in operands and results passes through; one that only
operands have must be a reduction or replicated.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jax.experimental.custom_partitioning import BATCHING, SdyShardingRule
from jax.extend.core import JaxprEqn

from autoshard import compat
from autoshard.program.rules.record import Factor, FactorKind, Rule
from autoshard.units import counted


@dataclass(frozen=True, slots=True)
class UserRule:
    """A rule as its user writes it: text and kinds of factors, without the sizes of dimensions.

    `text` is like `"b i k, b k j -> b i j"`; `reduction` maps factors to the operator (`sum`,
    `max`, …) that combines partial results; `replicate` and `permute` name factors that need the
    whole dimension or neighbours' parts; `sizes` gives the sizes of factors of compound dimensions.
    """

    text: str
    reduction: Mapping[str, str] = field(default_factory=dict)
    replicate: tuple[str, ...] = ()
    permute: tuple[str, ...] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)


class NoRuleError(ValueError):
    """Ops that have no rule, or a rule of the user that is not for them; says what to add."""


AnyUserRule = str | UserRule | SdyShardingRule | Callable[[JaxprEqn], Rule]


def parsed_rule(user_rule: AnyUserRule) -> Any:
    """A rule as `custom_partitioning` keeps it; None for a function, which says nothing of itself.

    Raises:
      NoRuleError: the text cannot be read.
    """
    if isinstance(user_rule, str):
        user_rule = UserRule(user_rule)
    if isinstance(user_rule, SdyShardingRule):
        return user_rule
    if not isinstance(user_rule, UserRule):
        return None
    try:
        return compat.parse_sharding_rule(
            user_rule.text,
            reduction_factors=tuple(user_rule.reduction),
            need_replication_factors=tuple(user_rule.replicate),
            permutation_factors=tuple(user_rule.permute),
            **user_rule.sizes,
        )
    except ValueError as error:
        raise NoRuleError(f"the user rule {user_rule.text!r} cannot be read: {error}") from error


def tensors_of(mapping: Sequence[Any], count: int) -> Sequence[Any]:
    """One side of a rule for so many tensors: an empty text stands for a scalar, or for none."""
    return () if not count and len(mapping) == 1 and not mapping[0] else mapping


def whole(rule: Rule) -> Rule:
    """The same rule where nothing may be cut."""
    factors = (Factor(one.name, one.size, FactorKind.REPLICATE) for one in rule.factors)
    return Rule(tuple(factors), rule.operands, rule.results)


def apply_user_rule(user_rule: AnyUserRule, equation: JaxprEqn) -> Rule:
    """The rule for `equation` that `user_rule` means; its factors keep the user's names.

    Raises:
      NoRuleError: ranks or sizes of the equation's arrays do not fit the text.
    """
    if parsed_rule(user_rule) is None:
        assert callable(user_rule)
        return user_rule(equation)
    operands, results = (
        [tuple(getattr(atom.aval, "shape", ())) for atom in atoms]
        for atoms in (equation.invars, equation.outvars)
    )
    line = compat.source_line(equation) or "an unknown line"
    return fitted(user_rule, operands, results, where=f"{equation.primitive.name} at {line}")


def fitted(
    user_rule: AnyUserRule,
    operands: Sequence[Sequence[int]],
    results: Sequence[Sequence[int]],
    *,
    where: str,
) -> Rule:
    """The rule that `user_rule`, which is not a function, means for arrays of these shapes.

    Raises:
      NoRuleError: ranks or sizes do not fit the text; the message says what stands at `where`.
    """
    parsed = parsed_rule(user_rule)
    operators = user_rule.reduction if isinstance(user_rule, UserRule) else {}
    shapes = [operands, results]
    mappings = [
        tensors_of(mapping, len(given))
        for mapping, given in zip(
            (parsed.operand_mappings, parsed.result_mappings), shapes, strict=True
        )
    ]
    wrong = [
        f"{len(mapping)} {side} in the rule, {len(given)} in the call"
        for side, mapping, given in zip(("operands", "results"), mappings, shapes, strict=True)
        if len(mapping) != len(given)
    ]
    if wrong:
        raise _misfit(where, parsed, wrong)
    sides: list[list[list[tuple[str, ...]]]] = []
    sizes: dict[str, int] = dict(parsed.factor_sizes)
    groups: dict[str, int] = {}
    for side, mapping, given in zip(("operand", "result"), mappings, shapes, strict=True):
        tensors = []
        for number, (dimensions, shape) in enumerate(zip(mapping, given, strict=True)):
            tensors.append(_labelled(dimensions, shape, sizes, groups, wrong, f"{side} {number}"))
        sides.append(tensors)
    lost = _lost(sides, sizes, parsed)
    if lost and isinstance(user_rule, str | UserRule):
        wrong.append(
            f"{', '.join(lost)}: in operands only; say how parts are combined, "
            f"reduction={{{lost[0]!r}: 'sum'}}, or replicate=({lost[0]!r},)"
        )
    if wrong:
        raise _misfit(where, parsed, wrong)
    return _rule(sides, sizes, parsed, operators, lost)


def _labelled(
    dimensions: Sequence[Any],
    shape: Sequence[int],
    sizes: dict[str, int],
    groups: dict[str, int],
    wrong: list[str],
    name: str,
) -> list[tuple[str, ...]]:
    """Per dimension of an array, the names of its factors; notes their sizes, and what is wrong."""
    where = f"{name} of shape {tuple(shape)}"
    labels = _labels(tuple(dimensions), len(shape))
    if len(labels) != len(shape):
        wrong.append(f"{where} has {counted(len(labels), 'dimension')} in the rule")
        return []
    for one in dimensions[:1]:
        if isinstance(one, str) and one.startswith(BATCHING):
            extra = len(shape) - len(dimensions) + 1
            if groups.setdefault(one, extra) != extra:
                wrong.append(f"'...' stands for {groups[one]} and for {extra} dimensions")
    for label, size in zip(labels, shape, strict=True):
        wrong += _note_sizes(label, size, sizes, where)
    return labels


def _labels(dimensions: tuple[Any, ...], rank: int) -> list[tuple[str, ...]]:
    """Per dimension, the names of its factors; `...` becomes names of its own."""
    labels: list[tuple[str, ...]] = []
    for dimension in dimensions:
        if isinstance(dimension, str) and dimension.startswith(BATCHING):
            group = dimension[len(BATCHING) :].lstrip("0")
            labels += [(f"batch{group}_{d}",) for d in range(rank - len(dimensions) + 1)]
        else:
            labels.append((dimension,) if isinstance(dimension, str) else tuple(dimension))
    return labels


def _note_sizes(label: tuple[str, ...], size: int, sizes: dict[str, int], where: str) -> list[str]:
    if len(label) == 1:
        # As in JAX: a factor of dimensions of several sizes has the smallest of them.
        sizes[label[0]] = min(size, sizes.get(label[0], size))
        return []
    product = 1
    for name in label:
        product *= sizes[name]
    if product == size:
        return []
    return [f"{where}: ({' '.join(label)}) has {product} elements, the dimension {size}"]


def _lost(
    sides: list[list[list[tuple[str, ...]]]], sizes: Mapping[str, int], parsed: Any
) -> list[str]:
    """The factors that no result has, and that are said to be neither combined nor whole."""
    kept = {name for tensor in sides[1] for label in tensor for name in label}
    kept.update(parsed.reduction_factors, parsed.need_replication_factors)
    used = dict.fromkeys(name for tensor in sides[0] for label in tensor for name in label)
    return [name for name in used if name not in kept and sizes[name] > 1]


def _rule(
    sides: list[list[list[tuple[str, ...]]]],
    sizes: Mapping[str, int],
    parsed: Any,
    operators: Mapping[str, str],
    lost: list[str],
) -> Rule:
    order: dict[Hashable, int] = {}
    for tensor in (*sides[1], *sides[0]):
        for name in (name for label in tensor for name in label):
            order.setdefault(name, len(order))

    def factor(name: Any) -> Factor:
        if name in parsed.reduction_factors:
            return Factor(name, sizes[name], FactorKind.REDUCE, operators.get(name, "sum"))
        kind = FactorKind.PASS
        if name in parsed.need_replication_factors or name in lost:
            kind = FactorKind.REPLICATE
        elif name in parsed.permutation_factors:
            kind = FactorKind.PERMUTE
        return Factor(name, sizes[name], kind)

    operands, results = (
        tuple(tuple(tuple(order[name] for name in label) for label in tensor) for tensor in side)
        for side in sides
    )
    return Rule(tuple(factor(name) for name in order), operands, results)


def text_of(user_rule: AnyUserRule) -> str:
    """A rule as its user wrote it."""
    if isinstance(user_rule, str):
        return user_rule
    return user_rule.text if isinstance(user_rule, UserRule) else _text(parsed_rule(user_rule))


def _text(parsed: Any) -> str:
    return (
        " -> ".join(
            ", ".join(
                " ".join(d if isinstance(d, str) else f"({' '.join(d)})" for d in tensor)
                for tensor in side
            )
            for side in (parsed.operand_mappings, parsed.result_mappings)
        )
        .replace(f"{BATCHING}0", "...")
        .replace(BATCHING, "...")
    )


def _misfit(where: str, parsed: Any, wrong: list[str]) -> NoRuleError:
    return NoRuleError(
        f"the user rule {_text(parsed)!r} does not fit {where}:\n"
        + "\n".join(f"  - {problem}" for problem in wrong)
        + "\nName each dimension of each operand and result once, or start with '...'."
    )
