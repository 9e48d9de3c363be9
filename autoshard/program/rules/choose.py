"""Which of the user's rules an op takes, and what is proposed where none is for it.

A name (of a kernel, a function, an FFI target or a primitive) may stand for ops of several
signatures: a kernel and its transpose have one name. A signature is the number of dimensions of
each operand and of each result. Of the rules that are given for a name, an op takes the first one
that has its signature; `...` stands for any number of dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import starmap
from typing import Any

from jax.experimental.custom_partitioning import BATCHING, SdyShardingRule
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn

from autoshard import compat
from autoshard.program.rules.user import (
    AnyUserRule,
    NoRuleError,
    UserRule,
    parsed_rule,
    tensors_of,
    text_of,
)
from autoshard.units import counted

UserRules = Mapping[str, AnyUserRule | Sequence[AnyUserRule]]
"""Rules by the name of what they are for; several where it has several signatures."""

Signature = tuple[tuple[int, ...], tuple[int, ...]]
"""The number of dimensions of each operand, and of each result."""


def rules_named(rules: UserRules, name: str) -> tuple[AnyUserRule, ...]:
    """The rules that are given for a name."""
    given = rules[name]
    if isinstance(given, str | UserRule | SdyShardingRule) or callable(given):
        return (given,)
    return tuple(given)


def chosen_rule(equation: JaxprEqn, rules: UserRules) -> AnyUserRule | None:
    """The rule of the user that is for an equation, or that it carries; None without one.

    Raises:
      NoRuleError: a rule cannot be read, or the function that makes it fails.
    """
    for name in names_of(equation) if rules else ():
        for rule in rules_named(rules, name) if name in rules else ():
            if _is_for(rule, signature(equation)):
                return rule
    if equation.primitive.name == compat.RULED:
        return _carried
    if equation.primitive.name == "custom_partitioning":
        try:
            return compat.carried_sharding_rule(equation)
        except Exception as error:
            line = compat.source_line(equation) or "an unknown line"
            raise NoRuleError(
                f"the sharding_rule of custom_partitioning at {line} cannot be read "
                f"({type(error).__name__}: {error}); give a rule in user_rules"
            ) from error
    return None


def _carried(equation: JaxprEqn) -> Any:
    """The rule of a function that was decorated with it (`autoshard.kernel`)."""
    return equation.params["rule"].rule


def names_of(equation: JaxprEqn) -> list[str]:
    """The names under which a rule for an equation may be given, the most telling first."""
    return [*called_names(equation), equation.primitive.name]


def called_names(equation: JaxprEqn) -> list[str]:
    """The names by which a user knows what `equation` calls: kernel, function, FFI target."""
    parameters = equation.params
    names = [parameters.get("target_name"), parameters.get("name")]
    for key in ("jaxpr", "call"):
        body = parameters.get(key)
        if isinstance(body, Jaxpr | ClosedJaxpr) and body.debug_info is not None:
            names.append(body.debug_info.func_name)
    return [name for name in names if isinstance(name, str)]


def signature(equation: JaxprEqn) -> Signature:
    """The number of dimensions of each operand and of each result of an equation."""
    operands, results = (
        tuple(len(getattr(atom.aval, "shape", ())) for atom in atoms)
        for atoms in (equation.invars, equation.outvars)
    )
    return operands, results


def refuse_unused(equations: Sequence[JaxprEqn], rules: UserRules) -> None:
    """Refuse a rule that is for none of the ops of its name.

    Raises:
      NoRuleError: with all such rules, and the signatures of the ops of their names.
    """
    wrong = []
    for name in rules:
        named = [one for one in equations if name in names_of(one)]
        signatures = dict.fromkeys(map(signature, named))
        for rule in rules_named(rules, name) if named else ():
            if not any(_is_for(rule, one) for one in signatures):
                shown = ", ".join(map(_shown, signatures))
                line = compat.source_line(named[0]) or "an unknown line"
                wrong.append(
                    f"  - {text_of(rule)!r} for {name!r} says ({_said(rule)}), "
                    f"but {name!r} has {shown} (at {line})"
                )
    if wrong:
        raise NoRuleError(
            "these user rules have other numbers of dimensions, of operands or of results than "
            "what they are given for:\n"
            + "\n".join(wrong)
            + "\nName each dimension of each operand and result once, or start with '...'."
        )


def refuse_for_bodies(
    shard_maps: Sequence[JaxprEqn], equations: Sequence[JaxprEqn], rules: UserRules
) -> None:
    """Refuse a rule for a `shard_map`: its body is planned op by op, so that a rule would be lost.

    Args:
      shard_maps: the calls of `shard_map` of the step.
      equations: those that are planned, some of which may bear the same name.

    Raises:
      NoRuleError: with all such rules.
    """
    wrong = []
    for name in rules:
        named = [one for one in shard_maps if name in names_of(one)]
        if named and not any(name in names_of(one) for one in equations):
            line = compat.source_line(named[0]) or "an unknown line"
            wrong.append(f"  - {name!r} (at {line})")
    if wrong:
        raise NoRuleError(
            "a shard_map needs no rule, since its body is planned op by op, and would obey none; "
            "rules are given for these:\n"
            + "\n".join(wrong)
            + "\nLeave them out of user_rules. What must lie in a certain way can be required: "
            "autoshard.search(..., requirements=[...])."
        )


def no_rule_message(failed: Sequence[tuple[JaxprEqn, str]], rules: UserRules) -> str:
    """What is said of equations without a rule: all of them, why, and rules to paste.

    Args:
      failed: the equations, each with its reason.
      rules: those that the user has given.
    """
    counts: dict[str, int] = {}
    proposed: dict[str, dict[Signature, str]] = {}
    for equation, reason in failed:
        operands = ", ".join(atom.aval.str_short() for atom in equation.invars)
        results = ", ".join(atom.aval.str_short() for atom in equation.outvars)
        named = "".join(f" {name!r}" for name in called_names(equation)[:1])
        line = compat.source_line(equation) or "an unknown line"
        what = f"{equation.primitive.name}{named}: ({operands}) -> ({results}) at {line}: {reason}"
        counts[what] = counts.get(what, 0) + 1
        of_name = proposed.setdefault(names_of(equation)[0], {})
        of_name.setdefault(signature(equation), _example(signature(equation)))
    code = [
        f"{_quoted(name)}: {_one_or_several([*_given(rules, name), *new.values()])}"
        for name, new in proposed.items()
    ]
    return "\n".join(
        [
            f"no sharding rule for {counted(len(failed), 'equation')}:",
            *(f"  - {what}" + (f" ({n} times)" if n > 1 else "") for what, n in counts.items()),
            "Say for each which dimensions may be split, with one name per dimension and the same "
            "name where dimensions go together. With these every dimension stays whole until you "
            "say otherwise:",
            "user_rules={",
            *(f"    {line}," for line in code),
            "}",
        ]
    )


def _is_for(rule: AnyUserRule, wanted: Signature) -> bool:
    parsed = parsed_rule(rule)
    if parsed is None:
        return True
    sides = parsed.operand_mappings, parsed.result_mappings
    return all(starmap(_fits, zip(sides, wanted, strict=True)))


def _fits(mapping: Sequence[Any], ranks: Sequence[int]) -> bool:
    """Whether one side of a rule has these numbers of dimensions."""
    tensors = tensors_of(mapping, len(ranks))
    return len(tensors) == len(ranks) and all(
        len(tensor) - 1 <= rank if _is_open(tensor) else len(tensor) == rank
        for tensor, rank in zip(tensors, ranks, strict=True)
    )


def _is_open(tensor: Sequence[Any]) -> bool:
    """Whether any number of dimensions stands in front."""
    return bool(tensor) and isinstance(tensor[0], str) and tensor[0].startswith(BATCHING)


def _shown(one: Signature) -> str:
    operands, results = (", ".join(map(str, ranks)) for ranks in one)
    return f"({operands} -> {results})"


def _said(rule: AnyUserRule) -> str:
    parsed: Any = parsed_rule(rule)
    operands, results = (
        ", ".join(
            f"{len(tensor) - 1} or more" if _is_open(tensor) else str(len(tensor))
            for tensor in mapping
        )
        for mapping in (parsed.operand_mappings, parsed.result_mappings)
    )
    return f"{operands} -> {results}"


def _given(rules: UserRules, name: str) -> list[str]:
    """The user's own rules for a name, as code."""
    given = rules_named(rules, name) if name in rules else ()
    return [repr(rule) for rule in given if isinstance(rule, str | UserRule)]


def _one_or_several(code: Sequence[str]) -> str:
    return code[0] if len(code) == 1 else f"[{', '.join(code)}]"


def _quoted(name: str) -> str:
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _example(wanted: Signature) -> str:
    """A correct if useless user rule: every dimension of its own and replicated."""
    count = 0
    sides = []
    for ranks in wanted:
        tensors = []
        for rank in ranks:
            tensors.append(" ".join(f"d{count + d}" for d in range(rank)))
            count += rank
        sides.append(", ".join(tensors))
    replicate = ", ".join(f'"d{d}"' for d in range(count))
    comma = "," if count == 1 else ""
    return f'UserRule("{sides[0]} -> {sides[1]}", replicate=({replicate}{comma}))'
