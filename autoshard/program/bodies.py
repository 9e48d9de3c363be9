"""Jaxprs made anew or run: equations of them, and those of the bodies that they call, replaced."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from autoshard import compat
from autoshard.program.vocabulary import INLINED

BODIES = {"scan": ("jaxpr",), "while": ("cond_jaxpr", "body_jaxpr"), "cond": ("branches",)}
"""Parameters of loops and choices that hold their bodies."""


def replaced(jaxpr: Any, change: Callable[[Any], Any]) -> Any:
    """`jaxpr` with `change` made to every equation, those of bodies first.

    Where nothing changes, it is the same object.
    """
    equations = [
        change(with_bodies(one, lambda body: replaced(body, change))) for one in jaxpr.eqns
    ]
    return with_equations(jaxpr, equations)


def all_equations(jaxpr: Any) -> list[Any]:
    """The equations of a jaxpr and of the bodies that are laid out in place of them."""
    found: list[Any] = []

    def note(equation: Any) -> Any:
        found.append(equation)
        return equation

    replaced(jaxpr, note)
    return found


def equations_in(jaxpr: Any) -> Iterator[Any]:
    """The equations of a jaxpr and of all that its equations hold, kernels and derivatives too."""
    for equation in jaxpr.eqns:
        yield equation
        for body, _ in compat.bodies_of(equation):
            yield from equations_in(body)


def with_bodies(equation: Any, change: Callable[[Any], Any]) -> Any:
    """`equation` with `change` made to the jaxprs that are laid out in place of it."""
    name, params = equation.primitive.name, equation.params
    keys = BODIES.get(name, compat.BODIES_OF_CALLS if name in INLINED else ())
    changed = {key: _changed(params[key], change) for key in keys if key in params}
    if all(params[key] is value for key, value in changed.items()):
        return equation
    return equation.replace(params={**params, **changed})


def _changed(body: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(body, tuple | list):
        bodies = type(body)(_changed(one, change) for one in body)
        return body if all(a is b for a, b in zip(bodies, body, strict=True)) else bodies
    if hasattr(body, "consts"):
        jaxpr = change(body.jaxpr)
        return body if jaxpr is body.jaxpr else body.replace(jaxpr=jaxpr)
    return change(body)


def with_equations(jaxpr: Any, equations: Sequence[Any]) -> Any:
    """`jaxpr` with other equations; itself if they are the same."""
    if all(a is b for a, b in zip(equations, jaxpr.eqns, strict=True)):
        return jaxpr
    return jaxpr.replace(eqns=list(equations))


def run_equations(
    jaxpr: Any,
    consts: Sequence[Any],
    arrays: Sequence[Any],
    run: Callable[[Any, list[Any]], Sequence[Any]],
) -> list[Any]:
    """The results of a jaxpr on `arrays`, where `run(equation, operands)` has those of an equation.

    Each runs under the scope, the source line and the settings of its equation.
    """
    environment: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
    environment.update(zip(jaxpr.invars, arrays, strict=True))

    def read(atom: Any) -> Any:
        return atom.val if compat.is_literal(atom) else environment[atom]

    for equation in jaxpr.eqns:
        operands = [read(atom) for atom in equation.invars]
        with compat.equation_context(equation):
            results = run(equation, operands)
        environment.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def call_in_place(equation: Any, function: Callable[[Any, Sequence[Any]], list[Any]]) -> Any:
    """A call of `function(equation, operands)` in place of `equation`, of the same source line."""
    shapes = [compat.shape_struct(atom.aval) for atom in equation.invars]

    def run(*operands: Any) -> list[Any]:
        with compat.equation_line(equation):
            return function(equation, operands)

    (call,) = compat.in_lax(jax.make_jaxpr(jax.jit(run))(*shapes)).jaxpr.eqns
    return call.replace(
        invars=equation.invars, outvars=equation.outvars, source_info=equation.source_info
    )
