"""Calls as they are run, where JAX holds more of them than runs.

* `custom_linear_solve` holds four functions, and one of them runs. The others are for its
  derivatives, which have been taken when a step is planned. What is run stands in place of it:
  triangular solves of an LU or Cholesky decomposition, or a loop of products, whose batch can be
  cut.
* `jax.experimental.overlap.program_order` (JAX 0.12) holds a function, and whether its equations
  run in the order in which they are written. If they do, a barrier stands between every two.
* Operations on sparse arrays (`BCOO` and `BCSR`, batched coordinates and rows) are functions of
  `jax.lax`, which all platforms run unless JAX is told to call a vendor's library.
* `lax.platform_dependent` holds a function for each platform; on one, one of them runs.
* `device_put` of several arrays is one of each, since each goes to a memory of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax.extend.core import jaxpr_as_fun

from autoshard import compat
from autoshard.program.bodies import call_in_place, replaced, with_bodies

ORDERED = "program_order"


def run_calls(closed: Any) -> Any:
    """A closed jaxpr with the function that solves in place of each `custom_linear_solve`.

    Operations on sparse arrays are what they run, too.
    """
    jaxpr = replaced(closed.jaxpr, _as_run)
    return closed if jaxpr is closed.jaxpr else closed.replace(jaxpr=jaxpr)


def _as_run(equation: Any) -> Any:
    if equation.primitive.name == "custom_linear_solve":
        call = call_in_place(equation, _solved)
    elif compat.sparse_function(equation) is not None:
        call = call_in_place(equation, _run_sparse)
    else:
        return equation
    return with_bodies(call, lambda body: replaced(body, _as_run))  # solvers call others


def run_on(closed: Any, platforms: Sequence[str]) -> Any:
    """A closed jaxpr with what `lax.platform_dependent` runs on the first platform that it knows.

    Raises:
      ValueError: there is nothing for any of `platforms`.
    """
    jaxpr = replaced(closed.jaxpr, lambda equation: _on(equation, platforms))
    if jaxpr is closed.jaxpr:
        return closed
    return compat.drop_dead_code(closed.replace(jaxpr=jaxpr))  # which platform it is, too


def _on(equation: Any, platforms: Sequence[str]) -> Any:
    known = equation.params.get("branches_platforms")
    if equation.primitive.name != "cond" or known is None:
        return equation
    fitting = [
        number
        for platform in (*platforms, None)
        for number, names in enumerate(known)
        if (names is None if platform is None else platform in (names or ()))
    ]
    if not fitting:
        raise ValueError(
            f"lax.platform_dependent at {compat.source_line(equation) or 'no source line'} has "
            f"nothing for {' or '.join(platforms)}, and no default: {known}"
        )
    branch = equation.params["branches"][fitting[0]]
    return call_in_place(equation, lambda _, operands: jaxpr_as_fun(branch)(*operands[1:]))


def _solved(equation: Any, operands: Sequence[Any]) -> list[Any]:
    solver, operands = solver_of(equation, operands)
    return jaxpr_as_fun(solver)(*operands)


def _run_sparse(equation: Any, operands: Sequence[Any]) -> list[Any]:
    function = compat.sparse_function(equation)
    assert function is not None
    made = function(*operands, **equation.params)
    return list(made) if equation.primitive.multiple_results else [made]


def solver_of(equation: Any, operands: Sequence[Any]) -> tuple[Any, list[Any]]:
    """The function (a closed jaxpr) that a `custom_linear_solve` runs, and its operands."""
    lengths, functions = equation.params["const_lengths"], equation.params["jaxprs"]
    before = lengths.matvec + lengths.vecmat
    consts = operands[before : before + lengths.solve]
    right = operands[before + lengths.solve + lengths.transpose_solve :]
    return functions.solve, [*consts, *right]


def move_one_by_one(closed: Any) -> Any:
    """A closed jaxpr in which every `device_put` is of one array."""
    jaxpr = replaced(closed.jaxpr, _one_by_one)
    return closed if jaxpr is closed.jaxpr else closed.replace(jaxpr=jaxpr)


def _one_by_one(equation: Any) -> Any:
    if equation.primitive.name != "device_put" or len(equation.invars) == 1:
        return equation
    return call_in_place(equation, _moved)


def _moved(equation: Any, operands: Sequence[Any]) -> list[Any]:
    made = []
    for place, operand in enumerate(operands):
        keys = ("devices", "srcs", "copy_semantics")
        own = {key: (equation.params[key][place],) for key in keys}
        made += compat.bind_equation(equation, [operand], **own)
    return made


def run_in_order(closed: Any) -> Any:
    """A closed jaxpr with the function and its barriers in place of each `program_order`."""
    jaxpr = _in_order(closed.jaxpr)
    return closed if jaxpr is closed.jaxpr else closed.replace(jaxpr=jaxpr)


def _in_order(jaxpr: Any) -> Any:
    return replaced(jaxpr, _ordered)


def _ordered(equation: Any) -> Any:
    if equation.primitive.name != ORDERED:
        return equation
    call = call_in_place(equation, compat.run_program_order)
    return with_bodies(call, _in_order)  # those inside, too
