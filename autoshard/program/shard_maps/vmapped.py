"""Collectives over an axis that `jax.vmap` named: reductions of the dimension that it made of it.

    jax.vmap(lambda x: x - lax.pmean(x, "batch"), axis_name="batch")(x)

JAX leaves `psum[axes=(0,)]` there, which it lowers as a sum over dimension 0. A `psum` over no axis
at all, as derivatives have, is what goes in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax import lax

from autoshard.program.bodies import call_in_place, replaced

_REDUCTIONS = {"psum": lax.reduce_sum, "pmax": lax.reduce_max, "pmin": lax.reduce_min}


def reduce_dimensions(closed: Any) -> Any:
    """A closed jaxpr with ordinary reductions in place of those over axes of `jax.vmap`."""
    jaxpr = replaced(closed.jaxpr, _as_reduction)
    return closed if jaxpr is closed.jaxpr else closed.replace(jaxpr=jaxpr)


def _as_reduction(equation: Any) -> Any:
    if equation.primitive.name not in _REDUCTIONS:
        return equation
    if not all(isinstance(axis, int) for axis in equation.params["axes"]):
        return equation
    return call_in_place(equation, _reduced)


def _reduced(equation: Any, operands: Sequence[Any]) -> list[Any]:
    reduce, axes = _REDUCTIONS[equation.primitive.name], equation.params["axes"]
    return [reduce(array, axes) if axes else array for array in operands]
