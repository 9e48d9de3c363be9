"""Jaxprs without calls: what a call runs stands in place of it, under the call's scope."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from autoshard import compat
from autoshard.program.bodies import run_equations

_JITS = frozenset({"jit", "pjit", "closed_call", "core_call", "eval_jaxpr"})


def opened(closed: Any, *, remat: bool) -> Any:
    """A closed jaxpr with the bodies of its calls in place of them, calls in these too.

    Bodies of loops and branches stay as they are, and so do functions with a derivative rule of
    their own, and a `jax.jit` that says how its arrays lie.

    Args:
      closed: what to open.
      remat: open differentiated `jax.checkpoint`s too. The barrier that stands before each of them
        goes; before others there is none.
    """
    if not any(_opens(equation, remat) for equation in closed.jaxpr.eqns):
        return closed
    shapes = [compat.shape_struct(aval) for aval in closed.in_avals]

    def run(*arrays: Any) -> list[Any]:
        return _walk(closed.jaxpr, closed.consts, arrays, remat)

    return jax.make_jaxpr(run)(*shapes)


def opened_body(equation: Any) -> Any:
    """The closed body of a loop or a `jax.checkpoint`, opened; None of other equations."""
    name = equation.primitive.name
    if name != "scan" and name not in compat.REMAT:
        return None
    jaxpr, consts = compat.called_jaxpr(equation)
    return opened(compat.closed(jaxpr, consts), remat=False)


def _walk(jaxpr: Any, consts: Sequence[Any], arrays: Sequence[Any], remat: bool) -> list[Any]:
    def run(equation: Any, operands: list[Any]) -> list[Any]:
        if _opens(equation, remat):
            body, inner = compat.called_jaxpr(equation)
            return _walk(body, inner, operands, remat)
        return compat.bind_equation(equation, operands)

    return run_equations(jaxpr, consts, arrays, run)


def _opens(equation: Any, remat: bool) -> bool:
    name, params = equation.primitive.name, equation.params
    if name in compat.REMAT:
        return remat or not params["differentiated"]
    return name in _JITS and says_no_layouts(equation)


def says_no_layouts(equation: Any) -> bool:
    """Whether a call leaves open how its arrays lie, as all do but a `jax.jit` with shardings."""
    params = equation.params
    said = (*params.get("in_shardings", ()), *params.get("out_shardings", ()))
    return all(type(one).__name__ == "UnspecifiedValue" for one in said)
