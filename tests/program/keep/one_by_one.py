"""A jaxpr run op by op, loops too: nothing is fused, so that equal ops round equally."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from autoshard import compat
from autoshard.program.vocabulary import INLINED


def run(closed: Any, arrays: Sequence[Any]) -> list[Any]:
    """The results of a closed jaxpr."""
    return _walk(closed.jaxpr, closed.consts, arrays)


def _walk(jaxpr: Any, consts: Sequence[Any], arrays: Sequence[Any]) -> list[Any]:
    known: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
    known.update(zip(jaxpr.invars, arrays, strict=True))

    def read(atom: Any) -> Any:
        return jnp.asarray(atom.val, atom.aval.dtype) if compat.is_literal(atom) else known[atom]

    for equation in jaxpr.eqns:
        results = _equation(equation, [read(atom) for atom in equation.invars])
        known.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _equation(equation: Any, operands: Sequence[Any]) -> Sequence[Any]:
    name, params = equation.primitive.name, equation.params
    if name in INLINED:
        body, consts = compat.called_jaxpr(equation)
        return _walk(body, consts, operands)
    if name == "cond":
        return run(params["branches"][int(operands[0])], operands[1:])
    if name == "scan":
        return _scan(params, operands)
    return compat.bind_equation(equation, operands)


def _scan(params: Any, operands: Sequence[Any]) -> list[Any]:
    fixed, carries = compat.scan_counts(params)
    consts, carried = operands[:fixed], list(operands[fixed : fixed + carries])
    turns = range(params["length"])
    made: dict[int, list[Any]] = {}
    for turn in reversed(turns) if params["reverse"] else turns:
        slices = [stack[turn] for stack in operands[fixed + carries :]]
        results = run(params["jaxpr"], [*consts, *carried, *slices])
        carried, made[turn] = results[:carries], results[carries:]
    return [*carried, *(jnp.stack(rows) for rows in zip(*(made[k] for k in turns), strict=True))]
