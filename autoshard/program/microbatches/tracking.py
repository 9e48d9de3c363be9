"""The states of values (`states`) through the equations of a step.

Where examples go in an op, its sharding rule says: they lie in one factor, and a factor that passes
keeps them apart. What sums over that factor makes sums. A loop carries what it carries in one
state: the one that holds at its start and after every turn.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from autoshard import compat
from autoshard.program.bodies import all_equations
from autoshard.program.microbatches.states import (
    FIXED,
    CutError,
    Kind,
    NeedsAllError,
    Part,
    State,
    has_parts,
    is_after,
    joined,
    needs_all,
    refusal,
)
from autoshard.program.microbatches.sums import SUMMING, of_fixed, of_literal, of_sums
from autoshard.program.rules.ask_shardy import FactorKind, Rule, rules_for
from autoshard.program.rules.choose import UserRules
from autoshard.program.vocabulary import BARRIER, INLINED

_COMPOSITE = frozenset({"scan", "while", "cond", BARRIER, *INLINED})
_KEPT_APART = frozenset({FactorKind.PASS, FactorKind.BLOCKED})
Place = tuple[int, int, int]
"""A factor, and the major and minor elements that it holds beside the examples."""


class Tracking:
    """The states through one step.

    Attributes:
      examples: how many there are in the batch.
    """

    def __init__(self, closed: Any, examples: int, user_rules: UserRules) -> None:
        self.examples = examples
        found = [one for one in all_equations(closed.jaxpr) if one.primitive.name not in _COMPOSITE]
        rules = rules_for(found, user_rules=user_rules)
        self._rules = {id(one): rule for one, rule in zip(found, rules, strict=True)}
        self._known: dict[Any, list[State]] = {}
        self._last_needing_all: Any = None

    def rule(self, equation: Any) -> Rule:
        """The sharding rule of an equation that has no body."""
        return self._rules[id(equation)]

    def of(self, equation: Any, states: Sequence[State]) -> list[State]:
        """The states of the results of an equation, from those of its operands.

        Raises:
          CutError: it does something else with the examples than to keep them apart or to sum.
        """
        key = (id(equation), tuple(states))
        if key not in self._known:
            self._known[key] = self._of(equation, states)
        return self._known[key]

    def body(self, jaxpr: Any, states: Sequence[State]) -> list[State]:
        """The states of the results of a body."""
        known: dict[Any, State] = dict.fromkeys(jaxpr.constvars, Kind.WHOLE)
        known.update(zip(jaxpr.invars, states, strict=True))

        def read(atom: Any) -> State:
            return of_literal(atom) if compat.is_literal(atom) else known[atom]

        for equation in jaxpr.eqns:
            results = self.of(equation, [read(atom) for atom in equation.invars])
            known.update(zip(equation.outvars, results, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def _of(self, equation: Any, states: Sequence[State]) -> list[State]:
        name = equation.primitive.name
        if name == BARRIER:
            return list(states)
        if name in INLINED:
            return self.body(compat.called_jaxpr(equation)[0], states)
        if name == "scan":
            return self.scan(equation, states)[1]
        if name == "while":
            return self.loop(equation, states)
        if name == "cond":
            return self._cond(equation, states)
        if FIXED.issuperset(states):
            return [of_fixed(equation, states)] * len(equation.outvars)
        if equation.effects:
            raise refusal(equation, "has an effect, which would come once for every microbatch")
        if not has_parts(states):
            made = of_sums(equation, states)
            if made is Kind.AFTER and not is_after(states):
                self._last_needing_all = equation
            return [made] * len(equation.outvars)
        if Kind.SUM in states or is_after(states):
            raise needs_all(equation)
        return self._of_examples(equation, states)

    # -- ops on examples -----------------------------------------------------------------

    def place(self, rule: Rule, tensor: Sequence[Sequence[int]], part: Part) -> Place | None:
        """Where in the factors of a tensor the examples lie; None if not within one of them."""
        factors = tensor[part.dimension]
        sizes = [rule.factors[k].size for k in factors]
        if math.prod(sizes) != part.outer * self.examples * part.inner:
            return None
        for k, factor in enumerate(factors):
            before, behind = math.prod(sizes[:k]), math.prod(sizes[k + 1 :])
            outer, inner = part.outer // before, part.inner // behind
            divides = part.outer == outer * before and part.inner == inner * behind
            if divides and outer * self.examples * inner == sizes[k]:
                return factor, outer, inner
        return None

    def part(self, rule: Rule, tensor: Sequence[Sequence[int]], place: Place) -> Part | None:
        """Which part of a tensor the examples in a factor are; None if it has none of them."""
        factor, outer, inner = place
        for d, factors in enumerate(tensor):
            if factor in factors:
                k = tuple(factors).index(factor)
                sizes = [rule.factors[one].size for one in factors]
                return Part(d, math.prod(sizes[:k]) * outer, inner * math.prod(sizes[k + 1 :]))
        return None

    def place_of(self, equation: Any, states: Sequence[State]) -> Place:
        """Where in the factors of an equation its examples lie. Raises CutError."""
        rule = self.rule(equation)
        places = {
            self.place(rule, tensor, state)
            for tensor, state in zip(rule.operands, states, strict=True)
            if isinstance(state, Part)
        }
        (place, *others) = places
        if others:
            raise refusal(equation, "relates examples to other examples")
        if place is None:
            raise refusal(equation, "divides the examples into groups, or takes some of them")
        return place

    def _of_examples(self, equation: Any, states: Sequence[State]) -> list[State]:
        rule, name = self.rule(equation), equation.primitive.name
        place = self.place_of(equation, states)
        factor = rule.factors[place[0]]
        if factor.kind is FactorKind.REDUCE:
            if factor.operator != "sum":
                raise refusal(equation, f"reduces the examples by {factor.operator}, not by a sum")
            if name not in SUMMING:
                raise refusal(equation, "looks up some of the examples")
            if name.startswith("scatter") and states[0] is not Kind.ZERO:
                raise refusal(equation, "adds what it makes of examples to what is not zero")
            return [Kind.SUM] * len(equation.outvars)
        if factor.kind not in _KEPT_APART:
            raise refusal(equation, "is not known to keep examples apart")
        parts = [self.part(rule, tensor, place) for tensor in rule.results]
        if None in parts:
            raise refusal(equation, "is not known to keep examples apart")
        return [part for part in parts if part is not None]

    # -- loops and branches --------------------------------------------------------------

    def _inside(self) -> CutError:
        """The error of a loop or branch over examples that hands on what needs all of them."""
        why = "needs a sum over all examples, within a loop or branch that works on them"
        return refusal(self._last_needing_all, why, NeedsAllError)

    def scan(self, equation: Any, states: Sequence[State]) -> tuple[list[State], list[State]]:
        """The states of what enters the body of a scan, and those of its results."""
        params = equation.params
        fixed, carries = compat.scan_counts(params)
        stacks = [_slice_of(equation, state) for state in states[fixed + carries :]]
        carried = list(states[fixed : fixed + carries])
        while True:
            given = [*states[:fixed], *carried, *stacks]
            results = self.body(params["jaxpr"].jaxpr, given)
            after = _all_joined(equation, carried, results[:carries])
            if after == carried:
                break
            carried = after
        made = [*carried, *map(_stack_of, results[carries:])]
        if has_parts(states) and is_after(made):
            raise self._inside()
        return given, made

    def loop(self, equation: Any, states: Sequence[State]) -> list[State]:
        """The states of what a `while` carries."""
        params = equation.params
        tested, bodies = params["cond_nconsts"], params["body_nconsts"]
        carried = list(states[tested + bodies :])
        while True:
            given = [*states[tested : tested + bodies], *carried]
            results = self.body(params["body_jaxpr"].jaxpr, given)
            after = _all_joined(equation, carried, results)
            if after == carried:
                break
            carried = after
        test = self.body(params["cond_jaxpr"].jaxpr, [*states[:tested], *carried])
        if FIXED.issuperset(test):
            return carried
        if has_parts(states):
            raise refusal(equation, "runs until a condition on the examples fails")
        return [Kind.AFTER] * len(carried)

    def _cond(self, equation: Any, states: Sequence[State]) -> list[State]:
        branches = [self.body(one.jaxpr, states[1:]) for one in equation.params["branches"]]
        made = branches[0]
        for results in branches[1:]:
            made = _all_joined(equation, made, results)
        if states[0] in FIXED:
            if has_parts(states) and is_after(made):
                raise self._inside()
            return made
        if isinstance(states[0], Part):
            raise refusal(equation, "chooses a branch by an example")
        if has_parts(states):
            raise needs_all(equation)
        return [Kind.AFTER] * len(made)


def _all_joined(equation: Any, ones: Sequence[State], twos: Sequence[State]) -> list[State]:
    return [joined(one, two, equation) for one, two in zip(ones, twos, strict=True)]


def _slice_of(equation: Any, state: State) -> State:
    """The state of one turn's part of a stack."""
    if not isinstance(state, Part):
        return state
    if state.dimension == 0:
        raise refusal(equation, "takes the examples one after another")
    return Part(state.dimension - 1, state.outer, state.inner)


def _stack_of(state: State) -> State:
    """The state of a stack of what each turn makes."""
    return Part(state.dimension + 1, state.outer, state.inner) if isinstance(state, Part) else state


def products(equations: Sequence[Any]) -> Iterator[tuple[Any, int]]:
    """The equations without bodies in `equations` and their bodies, and how often each runs."""
    for equation in equations:
        params, name = equation.params, equation.primitive.name
        if name == "scan":
            inside = products(params["jaxpr"].jaxpr.eqns)
            yield from ((one, params["length"] * times) for one, times in inside)
        elif name == "while":
            yield from products(params["body_jaxpr"].jaxpr.eqns)
        elif name == "cond":
            for branch in params["branches"]:
                yield from products(branch.jaxpr.eqns)
        elif name in INLINED:
            yield from products(compat.called_jaxpr(equation)[0].eqns)
        else:
            yield equation, 1
