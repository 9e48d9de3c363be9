"""Linear solves as they are run: `custom_linear_solve` holds four functions, and one of them runs.

The others are for its derivatives, which have been taken when a step is planned. What is run stands
in place of it: triangular solves of an LU or Cholesky decomposition, or a loop of products, whose
batch can be cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax.extend.core import jaxpr_as_fun

from autoshard.program.bodies import call_in_place, replaced


def run_solves(closed: Any) -> Any:
    """A closed jaxpr with the function that solves in place of each `custom_linear_solve`."""
    jaxpr = replaced(closed.jaxpr, _as_run)
    return closed if jaxpr is closed.jaxpr else closed.replace(jaxpr=jaxpr)


def _as_run(equation: Any) -> Any:
    if equation.primitive.name != "custom_linear_solve":
        return equation
    return call_in_place(equation, _solved)


def _solved(equation: Any, operands: Sequence[Any]) -> list[Any]:
    solver, operands = solver_of(equation, operands)
    return jaxpr_as_fun(solver)(*operands)


def solver_of(equation: Any, operands: Sequence[Any]) -> tuple[Any, list[Any]]:
    """The function (a closed jaxpr) that a `custom_linear_solve` runs, and its operands."""
    lengths, functions = equation.params["const_lengths"], equation.params["jaxprs"]
    before = lengths.matvec + lengths.vecmat
    consts = operands[before : before + lengths.solve]
    right = operands[before + lengths.solve + lengths.transpose_solve :]
    return functions.solve, [*consts, *right]
