"""Weights cast before the loops that read them, in place of a slice in each of their turns.

    scan(turn, x, weights)              with  weights.astype(bfloat16)  in each turn
    scan(turn, x, weights.astype(bfloat16))

A cast of a slice is the slice of a cast: the numbers are the same to the last bit. What is gathered
before the loop then is narrow, and so is what each turn reads; the narrow copy is there while the
loop runs. Loops in loops are seen through, and so are the bodies of `jax.checkpoint`s: a weight
that all microbatches cast is cast once for the step.

Only what comes to a step as an argument is cast early, or a view of that, and only where nothing in
a loop reads it but casts to one narrower type. A `jax.checkpoint` in no loop keeps its own casts:
what it is given narrow would have to be saved for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from autoshard import compat
from autoshard.program.bodies import all_equations, run_equations
from autoshard.program.keep.opened import opened, opened_body

Narrow = dict[int, Any]
"""Types by the place of an operand."""

SCOPE = "early_casts"
"""The scope of casts before loops."""

_VIEWS = frozenset({"reshape", "transpose", "squeeze", "slice", "expand_dims", "copy"})
"""Primitives whose result is what they are given, or a part of it, in another shape."""


def with_early_casts(closed: Any) -> Any:
    """The closed jaxpr of a step with the same results that casts weights before its loops.

    The same object where there is nothing to cast so.
    """
    if all(equation.primitive.name != "scan" for equation in all_equations(closed.jaxpr)):
        return closed
    known = opened(closed, remat=False)
    made = _rewritten(known, looped=False)
    return closed if made is known else compat.drop_dead_code(made)


def _rewritten(closed: Any, *, looped: bool) -> Any:
    """A body whose loops are given narrow weights, itself where there are none.

    `looped` says whether it is in a loop.
    """
    jaxpr = closed.jaxpr
    inputs = _views(jaxpr)
    bodies: dict[int, tuple[Any, Narrow]] = {}
    for equation in jaxpr.eqns:
        if (body := opened_body(equation)) is None:
            continue
        loop = equation.primitive.name == "scan"
        made = _rewritten(body, looped=looped or loop)
        if made is body and not (loop or looped):
            continue
        own = _narrow(made, _outside(equation, inputs))
        if own or made is not body:
            bodies[id(equation)] = _given(made, own), own
    if not bodies:
        return closed
    cast: dict[tuple[int, Any], Any] = {}

    def run(equation: Any, operands: list[Any]) -> Sequence[Any]:
        if id(equation) not in bodies:
            return compat.bind_equation(equation, operands)
        body, narrow = bodies[id(equation)]
        for place, dtype in narrow.items():
            key = id(equation.invars[place]), dtype
            if key not in cast:
                with jax.named_scope(SCOPE):
                    cast[key] = lax.convert_element_type(operands[place], dtype)
            operands[place] = cast[key]
        if equation.primitive.name in compat.REMAT:
            return compat.bind_checkpoint(equation, operands, body)
        return compat.bind_equation(equation, operands, jaxpr=body)

    return _traced(closed, closed.in_avals, run)


def _views(jaxpr: Any) -> dict[Any, Any]:
    """The inputs of a body and their views, each with its input."""
    found = {var: var for var in jaxpr.invars}
    for equation in jaxpr.eqns:
        if equation.primitive.name in _VIEWS and len(equation.invars) == 1:
            (atom,) = equation.invars
            if not compat.is_literal(atom) and atom in found:
                found[equation.outvars[0]] = found[atom]
    return found


def _outside(equation: Any, inputs: Mapping[Any, Any]) -> list[int]:
    """Places of operands that come from outside of the body in which the equation is.

    Carries of a loop are not what comes in every turn.
    """
    carried = range(0)
    if equation.primitive.name == "scan":
        fixed, carries = compat.scan_counts(equation.params)
        carried = range(fixed, fixed + carries)
    return [
        place
        for place, atom in enumerate(equation.invars)
        if place not in carried and not compat.is_literal(atom) and atom in inputs
    ]


def _narrow(closed: Any, places: Iterable[int]) -> Narrow:
    """Of these inputs of a body, those that it reads by casts to one narrower type alone."""
    jaxpr = closed.jaxpr
    asked = {jaxpr.invars[place]: place for place in places}
    found: dict[Any, set[Any]] = {var: set() for var in asked}
    for equation in jaxpr.eqns:
        for atom in equation.invars:
            if not compat.is_literal(atom) and atom in found:
                found[atom].add(_cast_to(equation))
    for atom in jaxpr.outvars:
        if not compat.is_literal(atom) and atom in found:
            found[atom].add(None)
    return {
        asked[var]: next(iter(types))
        for var, types in found.items()
        if len(types) == 1 and None not in types
    }


def _cast_to(equation: Any) -> Any:
    """The floating-point type to which an equation casts a wider one; None of other equations."""
    if equation.primitive.name != "convert_element_type" or equation.params.get("weak_type"):
        return None
    own, new = equation.invars[0].aval.dtype, equation.params["new_dtype"]
    floats = all(jnp.issubdtype(one, jnp.floating) for one in (own, new))
    narrower = floats and jnp.dtype(new).itemsize < jnp.dtype(own).itemsize
    return jnp.dtype(new) if narrower and equation.params.get("sharding") is None else None


def _given(closed: Any, narrow: Narrow) -> Any:
    """A body that is given these inputs narrow; their casts go."""
    if not narrow:
        return closed
    casts = {closed.jaxpr.invars[place] for place in narrow}
    avals = [
        aval.update(dtype=narrow[place]) if place in narrow else aval
        for place, aval in enumerate(closed.in_avals)
    ]

    def run(equation: Any, operands: list[Any]) -> Sequence[Any]:
        atom = equation.invars[0] if equation.invars else None
        if not compat.is_literal(atom) and atom in casts:
            return operands
        return compat.bind_equation(equation, operands)

    return _traced(closed, avals, run)


def _traced(closed: Any, avals: Iterable[Any], run: Any) -> Any:
    shapes = [compat.shape_struct(aval) for aval in avals]
    return jax.make_jaxpr(lambda *arrays: run_equations(closed.jaxpr, closed.consts, arrays, run))(
        *shapes
    )


def cast_inputs(closed: Any) -> list[tuple[int, Any]]:
    """Inputs of a step that `with_early_casts` cast before its loops, by place, and to what type.

    What a loop in a loop casts before the inner one is none of them.
    """
    jaxpr = closed.jaxpr
    places = {var: place for place, var in enumerate(jaxpr.invars)}
    inputs = _views(jaxpr)
    return [
        (places[inputs[atom]], equation.outvars[0].aval.dtype)
        for equation in jaxpr.eqns
        if SCOPE in re.split(r"[/()]", str(equation.source_info.name_stack))
        for atom in equation.invars[:1]
        if not compat.is_literal(atom) and atom in inputs
    ]
