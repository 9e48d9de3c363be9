"""Sharding rules of equations, asked from Shardy itself.

`rules_for` answers, for every equation of a jaxpr, how it may be computed in parts (a `Rule`).
Nothing here knows what a matrix product is: the distinct equations are lowered together to
StableHLO, Shardy's own pass writes a rule on every op, and `rule_join` makes one rule per equation
of them. What Shardy has no rule for, or a wrong one, stands with the reason in the table
`OVERRIDES`; what it says almost right, in `AMENDMENTS`.

Calls whose inside is opaque (FFI calls, `custom_partitioning`) need a rule from the
user, by primitive name, or by the name of the kernel, function or FFI target, in the
grammar of `jax.experimental.custom_partitioning`, and several where a name has several signatures
(`autoshard.program.rules.choose`). `autoshard.kernel` gives a function its rule where it stands:

    rules_for(equations, user_rules={
        "rotate": "batch sequence width -> batch sequence width",
        "my_matmul": UserRule("i k, k j -> i j", reduction={"k": "sum"}),
    })

A rule that a `custom_partitioning` call or a function of `autoshard.kernel` carries is used as it
stands. Pallas calls say themselves
how they may be cut (`autoshard.program.kernels`); of that, a user's rule keeps what it names.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn

from autoshard import compat
from autoshard.program.kernels.rule import restricted
from autoshard.program.rules.choose import (
    UserRules,
    chosen_rule,
    no_rule_message,
    refuse_unused,
)
from autoshard.program.rules.join import join_rules
from autoshard.program.rules.overrides import AMENDMENTS, OVERRIDES, Amendment, Override
from autoshard.program.rules.record import Factor, FactorKind, Rule, factor_name
from autoshard.program.rules.user import NoRuleError, UserRule, apply_user_rule, whole
from autoshard.program.vocabulary import UNCUT

__all__ = [
    "AMENDMENTS",
    "OVERRIDES",
    "Amendment",
    "Factor",
    "FactorKind",
    "NoRuleError",
    "Override",
    "Rule",
    "UserRule",
    "factor_name",
    "rules_for",
]

OPAQUE = frozenset({"ffi_call", "custom_partitioning", "tpu_custom_call"})

PLATFORMS = ("tpu", "cpu")
"""Where an equation is lowered to be asked about: the first platform that knows it."""

_REMEMBERED: dict[Any, Rule] = {}
"""Memo of rules by `_question`; a rule is a pure function of that key."""


def rules_for(
    equations: Sequence[JaxprEqn],
    *,
    user_rules: UserRules | None = None,
    overrides: Mapping[str, Override] = OVERRIDES,
) -> list[Rule]:
    """The rule of every equation, in order; equal equations share one `Rule` object.

    `operands` of a rule follow `equation.invars` (literals too), `results` follow
    `equation.outvars`. Sought in this order: `user_rules` (keyed by primitive name, or by the name
    of a kernel, function or FFI target; one rule or several), `overrides` (keyed by primitive
    name), Shardy. What lowering cannot cut stays whole, whatever the user's rule says.

    Raises:
      NoRuleError: with all equations that have none, or all user rules that do not fit.

    >>> import jax, jax.numpy as jnp
    >>> jaxpr = jax.make_jaxpr(jnp.dot)(jnp.ones((8, 4)), jnp.ones((4, 2)))
    >>> str(rules_for(jaxpr.eqns)[0])
    '([i, k], [k, j])->([i, j]) {i=8, j=2, k=4} reduction={k}'
    """
    user_rules = user_rules or {}
    refuse_unused(equations, user_rules)
    found: dict[Any, Rule] = {}
    asked: dict[Any, JaxprEqn] = {}
    failed: dict[Any, str] = {}
    texts: dict[int, str] = {}
    questions = [_question(equation, texts) for equation in equations]
    for question, equation in zip(questions, equations, strict=True):
        if question in found or question in asked or question in failed:
            continue
        name = equation.primitive.name
        user_rule = chosen_rule(equation, user_rules)
        if user_rule is not None:
            rule = apply_user_rule(user_rule, equation)
            if name in overrides and name in compat.KERNELS:
                rule = restricted(overrides[name].rule(equation), rule)
            found[question] = whole(rule) if name in UNCUT else rule
        elif name in overrides:
            found[question] = overrides[name].rule(equation)
        elif name in OPAQUE:
            failed[question] = "what it computes inside is opaque"
        elif question in _REMEMBERED:
            found[question] = _REMEMBERED[question]
        else:
            asked[question] = equation
    for question, rule in zip(asked, _ask(list(asked.values())), strict=True):
        if isinstance(rule, Rule):
            found[question] = _REMEMBERED[question] = rule
        else:
            failed[question] = f"it does not lower: {rule}"
    if failed:
        pairs = zip(equations, questions, strict=True)
        unruled = [
            (equation, failed[question]) for equation, question in pairs if question in failed
        ]
        raise NoRuleError(no_rule_message(unruled, user_rules))
    return [found[question] for question in questions]


def _ask(equations: Sequence[JaxprEqn], platforms: Sequence[str] = PLATFORMS) -> list[Rule | str]:
    """Shardy's rule of each equation, or the reason why it cannot be lowered anywhere."""
    if not equations:
        return []
    try:
        module = compat.lower_equations(equations, platforms[0])
    except Exception as error:
        if len(equations) > 1:
            middle = len(equations) // 2
            return _ask(equations[:middle], platforms) + _ask(equations[middle:], platforms)
        if len(platforms) > 1:
            return _ask(equations, platforms[1:])
        return [(str(error) or type(error).__name__).splitlines()[0]]
    rules: list[Rule | str] = []
    for rule, equation in zip(join_rules(module), equations, strict=True):
        rule = _without_empty(_of_logical_shape(rule, equation), equation)
        amendment = AMENDMENTS.get(equation.primitive.name)
        rules.append(rule if amendment is None else amendment.rule(equation, rule))
    return rules


def _of_logical_shape(rule: Rule, equation: JaxprEqn) -> Rule:
    """`rule` without the last dimension that typed random keys get once lowered: their bits.

    Where that dimension is visible (keys wrapped and unwrapped) it stays whole.
    """
    atoms = (*equation.invars, *equation.outvars)
    tensors = (*rule.operands, *rule.results)
    ranks = [len(_shape(atom)) for atom in atoms]
    hidden = {
        factor
        for tensor, rank in zip(tensors, ranks, strict=True)
        for dimension in tensor[rank:]
        for factor in dimension
    }
    if not hidden:
        return rule
    factors: dict[Hashable, tuple[int, FactorKind, str | None]] = {
        i: (f.size, FactorKind.REPLICATE, None) if i in hidden else (f.size, f.kind, f.operator)
        for i, f in enumerate(rule.factors)
    }
    visible = [tensor[:rank] for tensor, rank in zip(tensors, ranks, strict=True)]
    count = len(rule.operands)
    return Rule.build(visible[:count], visible[count:], factors)


def _without_empty(rule: Rule, equation: JaxprEqn) -> Rule:
    """`rule` where tensors of no elements ask for nothing.

    Such results share no factor with the others and stay whole, and what only such operands have
    is not split: a sum over it is not a sum.
    """
    inputs, outputs = (list(map(_shape, atoms)) for atoms in (equation.invars, equation.outvars))
    if not any(0 in shape for shape in (*inputs, *outputs)):
        return rule
    results: list[Sequence[Sequence[Hashable]]] = [
        [[(number, d)] for d in range(len(shape))] if 0 in shape else tensor
        for number, (tensor, shape) in enumerate(zip(rule.results, outputs, strict=True))
    ]
    full = [t for t, shape in zip(rule.operands, inputs, strict=True) if 0 not in shape]
    full += [t for t, shape in zip(rule.results, outputs, strict=True) if 0 not in shape]
    used = {factor for tensor in full for dimension in tensor for factor in dimension}
    factors: dict[Hashable, tuple[int, FactorKind, str | None]] = {
        (number, d): (size, FactorKind.REPLICATE, None)
        for number, shape in enumerate(outputs)
        for d, size in enumerate(shape)
    }
    for index, factor in enumerate(rule.factors):
        is_used = index in used
        kind = factor.kind if is_used else FactorKind.REPLICATE
        factors[index] = (factor.size, kind, factor.operator if is_used else None)
    return Rule.build(rule.operands, results, factors)


def _shape(atom: Any) -> tuple[int, ...]:
    return tuple(getattr(atom.aval, "shape", ()))


def _question(equation: JaxprEqn, texts: dict[int, str]) -> Any:
    """A key that two equations share only if they have the same rule."""
    parameters = equation.params
    return (
        equation.primitive,
        tuple([(key, _hashable(parameters[key], texts)) for key in sorted(parameters)]),
        tuple([(_shape(atom), getattr(atom.aval, "dtype", None)) for atom in equation.invars]),
        compat.partitionable_random_bits(equation),
        tuple([compat.is_dropped(var) for var in equation.outvars]),
    )


def _hashable(parameter: Any, texts: dict[int, str]) -> Any:
    if isinstance(parameter, Jaxpr | ClosedJaxpr):
        # Equal bodies are different objects; `texts` keeps the printed form of each.
        if id(parameter) not in texts:
            texts[id(parameter)] = str(parameter)
        return texts[id(parameter)]
    try:
        hash(parameter)
    except TypeError:
        return repr(parameter)
    return parameter
