"""Where a step is cut: what is done before the loop over microbatches, in it, and after it.

Before it stands what no example reaches, and what must be known of all examples by then: a sum of
their weights, by which the loss divides. That goes without any product. In the loop stands what
keeps examples apart or sums over them, and after it what reads sums otherwise: an optimizer. Of
what is linear in sums, as much is in the loop as does not make another sum to carry.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autoshard import compat
from autoshard.program.flops import equation_flops, is_matrix_op
from autoshard.program.microbatches.states import (
    FIXED,
    CutError,
    Kind,
    NeedsAllError,
    Part,
    State,
    has_parts,
    is_after,
    needs_all,
)
from autoshard.program.microbatches.sums import narrows, of_literal
from autoshard.program.microbatches.tracking import Tracking, products


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """Places of equations in a level, and the variables that are handed on.

    Attributes:
      before, loop, after: places of equations, in order.
      sums: what is summed over microbatches.
      stacked: what keeps examples, and is a result of the step.
      alike: what is made in the loop, the same in every turn, and read after it.
      states: of all variables, as the loop has them.
    """

    before: tuple[int, ...]
    loop: tuple[int, ...]
    after: tuple[int, ...]
    sums: tuple[Any, ...]
    stacked: tuple[Any, ...]
    alike: tuple[Any, ...]
    states: Mapping[Any, State]


def find_cut(tracking: Tracking, closed: Any, parts: Mapping[int, Part]) -> Cut:
    """The cut of a step.

    Args:
      tracking: of the step.
      closed: the step, without calls.
      parts: where in its inputs the examples lie, by position.

    Raises:
      CutError: some op does not allow it.
    """
    search = _Search(tracking, closed.jaxpr, parts)
    while True:
        try:
            return search.run()
        except NeedsAllError:
            if not search.learn():
                raise


def product_flops(equations: Sequence[Any]) -> float:
    """FLOP of the matrix products in equations and their bodies, unsharded."""
    found = products(equations)
    return sum(n * equation_flops(one) for one, n in found if is_matrix_op(one.primitive.name))


class _Search:
    """The search for one cut, begun anew when something has to be known before the loop.

    Attributes:
      first: what is made of all examples before the loop.
      stuck: the equation that could not be tracked.
    """

    def __init__(self, tracking: Tracking, jaxpr: Any, parts: Mapping[int, Part]) -> None:
        self.tracking, self.jaxpr, self.parts = tracking, jaxpr, parts
        self.maker = {v: k for k, one in enumerate(jaxpr.eqns) for v in one.outvars}
        self.first: set[Any] = set()
        self.states: dict[Any, State] = {}
        self.stuck: Any = None

    def learn(self) -> bool:
        """Have the sums that the stuck equation reads made before the loop, if that is cheap."""
        found = [
            atom
            for atom in _read(self.stuck)
            if self.states.get(atom) in (Kind.SUM, Kind.AFTER)
            and not product_flops([self.jaxpr.eqns[k] for k in self._before(atom)])
        ]
        self.first.update(found)
        return bool(found)

    def _before(self, *variables: Any) -> set[int]:
        """Places of the equations that variables are made by."""
        todo, found = list(variables), set()
        while todo:
            place = self.maker.get(todo.pop(), -1)
            if place >= 0 and place not in found:
                found.add(place)
                todo += _read(self.jaxpr.eqns[place])
        return found

    def run(self) -> Cut:
        """See `find_cut`."""
        equations = self.jaxpr.eqns
        loop, alike = self._tracked()
        after = self._after(loop)
        handed = set(_variables(self.jaxpr.outvars))
        handed.update(v for k in after for v in _read(equations[k]))
        made = {v for k in after for v in equations[k].outvars} | self.first
        rest = [v for k in loop - after for v in equations[k].outvars if v in handed - made]
        for k in sorted(after):
            if has_parts([self.states[v] for v in _read(equations[k])]):
                self.stuck = equations[k]
                raise needs_all(equations[k])
        before = set(range(len(equations))) - loop - after | self._before(*self.first)
        return Cut(
            before=tuple(sorted(before)),
            loop=tuple(sorted(loop - after)),
            after=tuple(sorted(after)),
            sums=tuple(v for v in rest if self.states[v] is Kind.SUM),
            stacked=tuple(v for v in rest if isinstance(self.states[v], Part)),
            alike=tuple(v for v in rest if v in alike),
            states=self.states,
        )

    def _tracked(self) -> tuple[set[int], set[Any]]:
        """Places of what examples or sums reach, and the variables in there that none reaches."""
        jaxpr = self.jaxpr
        states: dict[Any, State] = dict.fromkeys((*jaxpr.constvars, *jaxpr.invars), Kind.WHOLE)
        states.update({jaxpr.invars[k]: part for k, part in self.parts.items()})
        self.states = states
        loop: set[int] = set()
        alike: set[Any] = set()
        for place, equation in enumerate(jaxpr.eqns):
            self.stuck = equation
            given = [_state(atom, states) for atom in equation.invars]
            made = self.tracking.of(equation, given)
            read = set(_read(equation))
            for var, state in zip(equation.outvars, made, strict=True):
                states[var] = Kind.WHOLE if var in self.first else state
            known = self.first.issuperset(equation.outvars)
            if not known and (not FIXED.issuperset(given) or read & alike):
                loop.add(place)
                fixed = {v for v in equation.outvars if states[v] in FIXED}
                alike |= fixed - self.first
        return loop, alike

    def _after(self, loop: Collection[int]) -> set[int]:
        """Places of what reads sums as a whole, and of what costs nothing more there."""
        equations, states = self.jaxpr.eqns, self.states
        found = {
            k
            for k in loop
            if is_after([states[v] for v in equations[k].outvars])
            or (Kind.SUM in map(states.get, _read(equations[k])) and narrows(equations[k]))
        }
        results = set(_variables(self.jaxpr.outvars))
        while True:
            made = {v for k in found for v in equations[k].outvars}
            whole = results.union(*(_read(equations[k]) for k in found))
            more = set()
            for k in sorted(set(loop) - found):
                read = set(_read(equations[k]))
                sums = {v for v in read if states[v] is Kind.SUM}
                moves = sums and sums <= whole | made and not has_parts([states[v] for v in read])
                if read & made or moves:
                    more.add(k)
            if not more:
                return found
            found |= more


def _read(equation: Any) -> list[Any]:
    return list(_variables(equation.invars))


def _variables(atoms: Sequence[Any]) -> Iterator[Any]:
    return (atom for atom in atoms if not compat.is_literal(atom))


def _state(atom: Any, states: Mapping[Any, State]) -> State:
    return of_literal(atom) if compat.is_literal(atom) else states[atom]


__all__ = ["Cut", "CutError", "find_cut", "product_flops"]
