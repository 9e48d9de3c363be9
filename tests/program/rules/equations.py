"""The equations of functions, and what the tests of their rules have in common."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import JaxprEqn
from jax.sharding import AbstractMesh, AxisType

CALLBACKS = {"pure_callback", "io_callback", "debug_callback", "debug_print"}

MESH = AbstractMesh((4,), ("x",), axis_types=(AxisType.Auto,))
OPERAND = jax.ShapeDtypeStruct((8, 6), jnp.float32)


def equations_of(function: Any, *arguments: Any) -> list[JaxprEqn]:
    """The equations of a function, calls inlined."""
    found: list[JaxprEqn] = []

    def walk(jaxpr: Any) -> None:
        for equation in jaxpr.eqns:
            body = equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
            if equation.primitive.name in ("jit", "custom_jvp_call", "custom_vjp_call"):
                walk(body.jaxpr)
            else:
                found.append(equation)

    walk(jax.make_jaxpr(function)(*arguments).jaxpr)
    return found
