"""A traced step without calls: what they call stands in place, in loops and branches too.

The compiler inlines calls before it propagates layouts; Shardy's passes on a module that JAX has
just lowered meet them whole. A checkpointed function that was differentiated becomes its body
behind an optimization barrier, as in JAX's own lowering.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from autoshard import compat
from autoshard.program.bodies import run_equations
from autoshard.program.vocabulary import INLINED

_BODIES = {"scan": ("jaxpr",), "while": ("cond_jaxpr", "body_jaxpr")}


def run_inlined(closed: Any, arrays: Sequence[Any]) -> list[Any]:
    """The results of a closed jaxpr on `arrays`, every call in it inlined."""
    return run_equations(closed.jaxpr, closed.consts, arrays, _equation)


def _equation(equation: Any, operands: Sequence[Any]) -> list[Any]:
    name = equation.primitive.name
    if name in INLINED:
        body, consts = compat.called_jaxpr(equation)
        again = name in compat.REMAT and equation.params["differentiated"]
        if again and equation.params["prevent_cse"] and operands:
            operands = jax.lax.optimization_barrier(tuple(operands))
        return run_equations(body, consts, operands, _equation)
    changed: dict[str, Any] = {key: _body(equation.params[key]) for key in _BODIES.get(name, ())}
    if name == "cond":
        changed["branches"] = tuple(_body(branch) for branch in equation.params["branches"])
    return compat.bind_equation(equation, operands, **changed)


def _body(closed: Any) -> Any:
    shapes = [compat.shape_struct(aval) for aval in closed.in_avals]
    return jax.make_jaxpr(lambda *arrays: run_inlined(closed, arrays))(*shapes)
