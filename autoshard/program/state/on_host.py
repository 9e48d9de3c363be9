"""State that lies in the memory of the host between steps.

A step that puts state there at its end takes it from there: the argument is in the host's memory,
too, if all that reads it puts it into a memory first (`comes_back`).

Any other argument can be held there (`held`): it is fetched where the step first computes something
with it, and the result that takes its place goes back. What is computed of such arguments alone
waits until it meets something else. A barrier keeps the transfer from beginning before that is
there, since compilers begin transfers as early as they can: state would be in the device's memory
for the whole step.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax

from autoshard import compat
from autoshard.program.state.ties import TraceError

_KEY = re.compile(r"\[['\"]?(.*?)['\"]?\]|\.?([^.\[\]]+)")


def comes_back(closed: Any, leaves: Sequence[Any], ties: Sequence[tuple[int, int]]) -> list[Any]:
    """Flat arguments, those in the host's memory that a step puts there at its end.

    Args:
      closed: what JAX traced with them.
      leaves: the arguments.
      ties: of their positions and those of results.
    """
    jaxpr, found = closed.jaxpr, list(leaves)
    for position, number in ties:
        given, out = jaxpr.invars[position], jaxpr.outvars[number]
        readers = [one for one in jaxpr.eqns if given in one.invars]
        moved = all(one.primitive.name == "device_put" for one in readers)
        if moved and readers and compat.in_host(out.aval) and not compat.in_host(given.aval):
            found[position] = _in_host(given.aval)
    return found


def named(patterns: Sequence[str], paths: Sequence[str], names: Sequence[str]) -> list[int]:
    """The positions of inputs that patterns name: `state`, `state.mu`, `1.*.mu`.

    A pattern has the keys of a path from the first on: the argument's name or number, and what is
    inside of it; `*` stands for any part of a key.

    Raises:
      ValueError: one names nothing.

    >>> named(["state.m*"], ["[0]['w']", "[1]['mu']['w']", "[1]['nu']['w']"], ["params", "state"])
    [1]
    """
    found = set[int]()
    for pattern in patterns:
        wanted = _keys(pattern)
        here = set[int]()
        for position, path in enumerate(paths):
            number, *rest = _keys(path)
            for first in (number, *names[int(number) : int(number) + 1]):
                keys = (first, *rest)
                if len(wanted) <= len(keys) and all(map(fnmatch.fnmatchcase, keys, wanted)):
                    here.add(position)
        if not here:
            known = ", ".join(dict.fromkeys([*names, *paths[:6]]))
            raise ValueError(f"host={pattern!r} names no argument; known: {known}")
        found |= here
    return sorted(found)


def _keys(path: str) -> list[str]:
    return [key or bare for key, bare in _KEY.findall(path)]


def held(closed: Any, positions: Collection[int], ties: Sequence[tuple[int, int]]) -> Any:
    """A closed jaxpr whose inputs at `positions` lie on the host, with the results tied to them."""
    jaxpr = closed.jaxpr
    back = {number for position, number in ties if position in positions}
    shapes = [
        _in_host(var.aval) if position in positions else compat.shape_struct(var.aval)
        for position, var in enumerate(jaxpr.invars)
    ]

    def run(*arrays: Any) -> list[Any]:
        fetched = _Fetched(jaxpr, closed.consts, arrays, positions)
        results = fetched.run()
        host = jax.memory.Space.Host
        return [
            jax.device_put(one, host) if number in back else one
            for number, one in enumerate(results)
        ]

    return jax.make_jaxpr(run)(*shapes)


def held_where_named(
    closed: Any,
    patterns: Sequence[str],
    ties: Sequence[tuple[int, int]],
    paths: Sequence[str],
    names: Sequence[str],
) -> tuple[Any, dict[str, list[str]]]:
    """The step with what patterns name held on the host, and how the options of a trace say so.

    Raises:
      TraceError: a pattern names nothing.
    """
    if not patterns:
        return closed, {}
    try:
        positions = named(patterns, paths, names)
    except ValueError as error:
        raise TraceError(str(error)) from error
    return held(closed, positions, ties), {"host": list(patterns)}


def _in_host(aval: Any) -> Any:
    return compat.host_shape(aval.shape, aval.dtype, weak_type=aval.weak_type)


class _Fetched:
    """Runs a jaxpr; what some inputs hold is fetched late.

    Attributes:
      made: what is computed, by variable.
      later: how to compute what is made of such inputs alone, by variable.
    """

    def __init__(
        self, jaxpr: Any, consts: Sequence[Any], arrays: Sequence[Any], positions: Collection[int]
    ) -> None:
        self.jaxpr = jaxpr
        self.made: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
        self.later: dict[Any, Callable[[], Any]] = {}
        self.given = set(jaxpr.invars)
        for position, (var, array) in enumerate(zip(jaxpr.invars, arrays, strict=True)):
            if position in positions:
                self.later[var] = lambda var=var, array=array: self._fetch(var, array)
            else:
                self.made[var] = array
        self.beside: Any = None

    def run(self) -> list[Any]:
        for equation in self.jaxpr.eqns:
            atoms = [atom for atom in equation.invars if not compat.is_literal(atom)]
            waiting = [atom for atom in atoms if atom in self.later]
            if waiting and len(waiting) == len(atoms) and not equation.effects:
                for var in equation.outvars:
                    self.later[var] = lambda equation=equation: self._compute(equation)
                continue
            computed = [atom for atom in atoms if atom in self.made and atom not in self.given]
            self.beside = computed[-1] if computed else None
            self._compute(equation)
        self.beside = None
        return [self._read(atom) for atom in self.jaxpr.outvars]

    def _read(self, atom: Any) -> Any:
        if compat.is_literal(atom):
            return atom.val
        if atom not in self.made:
            self.later.pop(atom)()
        return self.made[atom]

    def _compute(self, equation: Any) -> None:
        operands = [self._read(atom) for atom in equation.invars]
        beside = self.beside
        if beside is not None:  # what a barrier stands before is read behind it
            operands = [
                self.made[atom] if atom is beside else one
                for atom, one in zip(equation.invars, operands, strict=True)
            ]
        with compat.equation_context(equation):
            results = compat.bind_equation(equation, operands)
        for var, result in zip(equation.outvars, results, strict=True):
            self.later.pop(var, None)
            self.made[var] = result

    def _fetch(self, var: Any, array: Any) -> None:
        if self.beside is not None:
            both = jax.lax.optimization_barrier((array, self.made[self.beside]))
            array, self.made[self.beside] = both
        self.made[var] = jax.device_put(array, jax.memory.Space.Device)
