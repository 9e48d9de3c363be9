"""A traced step without calls: what they call stands in place, in loops and branches too.

The compiler inlines calls before it propagates layouts; Shardy's passes on a module that JAX has
just lowered meet them whole. A checkpointed function that was differentiated becomes its body
behind an optimization barrier, as in JAX's own lowering.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from autoshard import compat
from autoshard.program.bodies import BODIES, run_equations
from autoshard.program.vocabulary import INLINED


def run_inlined(closed: Any, arrays: Sequence[Any]) -> list[Any]:
    """The results of a closed jaxpr on `arrays`, every call in it inlined."""
    return run_equations(closed.jaxpr, closed.consts, arrays, _equation)


def run_call(
    equation: Any, operands: Sequence[Any], run: Callable[[Any, list[Any]], Sequence[Any]]
) -> list[Any]:
    """The results of a call of `INLINED`, whose body stands in place of it.

    Args:
      equation, operands: of the call.
      run: the results of an equation of its body, as `run_equations` asks for them.
    """
    body, consts = compat.called_jaxpr(equation)
    name, params = equation.primitive.name, equation.params
    if name in compat.REMAT and params["differentiated"] and params["prevent_cse"] and operands:
        operands = jax.lax.optimization_barrier(tuple(operands))
    return run_equations(body, consts, operands, run)


def _equation(equation: Any, operands: Sequence[Any]) -> list[Any]:
    name = equation.primitive.name
    if name in INLINED:
        return run_call(equation, operands, _equation)
    changed: dict[str, Any] = {key: _body(equation.params[key]) for key in BODIES.get(name, ())}
    return compat.bind_equation(equation, operands, **changed)


def _body(closed: Any) -> Any:
    if isinstance(closed, tuple):
        return tuple(map(_body, closed))
    shapes = [compat.shape_struct(aval) for aval in closed.in_avals]
    return jax.make_jaxpr(lambda *arrays: run_inlined(closed, arrays))(*shapes)
