"""The user's rules as a plan keeps them, and as they are read from it.

A text stays a text, and a `UserRule` or an `SdyShardingRule` becomes the fields of a `UserRule`. Of
a function a plan keeps what it said: the rule of every op that it was asked about, by the shapes of
the op's arrays. A function that says two things of ops of equal shapes cannot be kept so, and
neither can `...` of an operand that no result has. The plan then keeps the reason, and whoever
traces the step by the plan is told.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from jax.experimental.custom_partitioning import BATCHING, SdyShardingRule
from jax.extend.core import JaxprEqn

from autoshard import compat
from autoshard.program.rules.choose import UserRules, rules_named
from autoshard.program.rules.record import Rule, factor_name
from autoshard.program.rules.user import AnyUserRule, NoRuleError, UserRule, text_of

Shapes = tuple[tuple[tuple[int, ...], ...], ...]
"""The shapes of an op's operands, and of its results."""


@dataclass(frozen=True, slots=True, eq=False)
class Heard:
    """A rule that is a function, and what it said so far, by the shapes of the op's arrays."""

    function: Callable[[JaxprEqn], Rule]
    said: dict[Shapes, dict[str, None]] = field(default_factory=dict)

    def __call__(self, equation: JaxprEqn) -> Rule:
        rule = self.function(equation)
        if not isinstance(rule, Rule):
            raise NoRuleError(
                f"the user rule for {equation.primitive.name} at "
                f"{compat.source_line(equation) or 'an unknown line'} is a function that returned "
                f"{rule!r:.60}; it must return a rule: "
                'autoshard.program.rules.record.Rule.parse("([i, j])->([i, j]) {i=8, j=4}")'
            )
        self.said.setdefault(_shapes(equation), {})[_text(rule)] = None
        return rule

    @property
    def plain(self) -> dict[str, Any]:
        """What it said as plain data, or why that cannot be kept."""
        for shapes, texts in self.said.items():
            if len(texts) > 1:
                shown = " and ".join(texts)
                return {"lost": f"a function that says {shown} of ops {_shown(shapes)}"}
        return _said({shapes: next(iter(texts)) for shapes, texts in self.said.items()})


@dataclass(frozen=True, slots=True)
class Kept:
    """What a function said when the plan was made."""

    name: str
    said: Mapping[Shapes, str]

    def __call__(self, equation: JaxprEqn) -> Rule:
        shapes = _shapes(equation)
        if shapes not in self.said:
            known = ", ".join(map(_shown, self.said)) or "no op"
            raise NoRuleError(
                f"the plan keeps what the rule of {self.name!r}, a function, said of {known}; here "
                f"{self.name!r} is {_shown(shapes)}: search again"
            )
        return Rule.parse(self.said[shapes])


@dataclass(frozen=True, slots=True)
class Lost:
    """A rule that the plan could not keep."""

    name: str
    why: str

    def __call__(self, equation: JaxprEqn) -> Rule:
        raise NoRuleError(
            f"the rule of {self.name!r} with which the plan was made is {self.why}, which no plan "
            "keeps: give it as a text or an autoshard UserRule, and search again"
        )


def heard(rules: UserRules) -> dict[str, list[AnyUserRule]]:
    """The same rules, with functions that remember what they say."""
    return {name: [_heard(rule) for rule in rules_named(rules, name)] for name in rules}


def rules_option(rules: UserRules) -> dict[str, Any]:
    """The option of a plan that keeps the rules, as plain data, once all ops were asked about.

    Args:
      rules: as `heard` gives them.
    """
    plain = {name: [_plain(rule) for rule in rules_named(rules, name)] for name in rules}
    kept = {name: given[0] if len(given) == 1 else given for name, given in plain.items() if given}
    return {"user_rules": kept} if kept else {}


def read_rules(kept: Mapping[str, Any]) -> dict[str, list[AnyUserRule]]:
    """The rules that a plan keeps."""
    return {
        name: [_read(name, one) for one in (given if isinstance(given, list | tuple) else [given])]
        for name, given in kept.items()
    }


def _heard(rule: AnyUserRule) -> AnyUserRule:
    said = isinstance(rule, str | UserRule | SdyShardingRule | Heard | Kept | Lost)
    return rule if said else Heard(rule)


def _plain(rule: AnyUserRule) -> str | dict[str, Any]:
    match rule:
        case str():
            return rule
        case UserRule():
            return _fields(rule)
        case SdyShardingRule():
            return _of_shardy(rule)
        case Kept():
            return _said(rule.said)
        case Lost():
            return {"lost": rule.why}
        case _:
            return rule.plain if isinstance(rule, Heard) else {"lost": "a function"}


def _fields(rule: UserRule) -> dict[str, Any]:
    mappings = {"sizes": dict(rule.sizes), "reduction": dict(rule.reduction)}
    return {
        **asdict(replace(rule, **mappings)),
        "replicate": [*rule.replicate],
        "permute": [*rule.permute],
    }


def _said(said: Mapping[Shapes, str]) -> dict[str, Any]:
    """Shapes of operands, those of results and the rule, as lists."""
    return {
        "said": [
            [*([list(shape) for shape in side] for side in shapes), text]
            for shapes, text in said.items()
        ]
    }


def _of_shardy(rule: SdyShardingRule) -> dict[str, Any]:
    """A rule of JAX's own as the fields of a `UserRule`, which names what has to stay whole."""
    sides = rule.operand_mappings, rule.result_mappings
    read, made = (
        {name for tensor in side for d in tensor for name in ((d,) if isinstance(d, str) else d)}
        for side in sides
    )
    said = {*rule.reduction_factors, *rule.need_replication_factors}
    alone = sorted(read - made - said)
    if open_ones := [name for name in alone if name.startswith(BATCHING)]:
        shown = open_ones[0].replace(BATCHING, "...")
        return {"lost": f"{text_of(rule)!r}, where {shown} stands for dimensions of operands alone"}
    return _fields(
        UserRule(
            text_of(rule),
            reduction=dict.fromkeys(rule.reduction_factors, "sum"),
            replicate=(*rule.need_replication_factors, *alone),
            permute=tuple(one for one in rule.permutation_factors if one not in alone),
            sizes=dict(rule.factor_sizes),
        )
    )


def _read(name: str, kept: Any) -> AnyUserRule:
    if isinstance(kept, str | UserRule):
        return kept
    if "lost" in kept:
        return Lost(name, kept["lost"])
    if "said" not in kept:
        return UserRule(**kept)
    said = {
        tuple(tuple(tuple(shape) for shape in side) for side in sides): text
        for *sides, text in kept["said"]
    }
    return Kept(name, said)


def _text(rule: Rule) -> str:
    """A rule as text that reads back: with Shardy's names where its own do not."""
    text = str(rule)
    try:
        if Rule.parse(text) == rule:
            return text
    except (KeyError, ValueError):
        pass
    named = (replace(one, name=factor_name(k)) for k, one in enumerate(rule.factors))
    return str(replace(rule, factors=tuple(named)))


def _shapes(equation: JaxprEqn) -> Shapes:
    return tuple(
        tuple(tuple(getattr(atom.aval, "shape", ())) for atom in atoms)
        for atoms in (equation.invars, equation.outvars)
    )


def _shown(shapes: Shapes) -> str:
    sides = (", ".join(str(list(shape)) for shape in side) for side in shapes)
    return f"({' -> '.join(sides)})"
