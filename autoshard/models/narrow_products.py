"""Products in eight or four bits as training does them: operands cast by a fixed scale.

    y  = (x as e4m3) (w as e4m3)          dx = (dy as e5m2) (w as e4m3)^T
                                          dw = (x as e4m3)^T (dy as e5m2)

Formats as of https://arxiv.org/abs/2209.05433. The scale is fixed, as recipes that calibrate it
have it, so that a cast is one pass over an array, as is one with a scale for every block; larger
elements are clipped. What is kept for the backward pass are the cast operands, half of what
bfloat16 takes.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

LARGEST = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0, "float4_e2m1fn": 6.0, "int8": 127.0}
GRADIENTS = {"float8_e4m3fn": "float8_e5m2", "float4_e2m1fn": "float4_e2m1fn", "int8": "int8"}
"""Into what gradients are cast, by the dtype of products. Of NVFP4 both are four bits
(https://arxiv.org/abs/2509.25149), of AQT eight (github.com/google/aqt)."""
SCALE = 2.0**12
"""Of gradients, so that small ones are told from zero."""


def project_in(dtype: str, equation: str, x: jax.Array, weight: jax.Array) -> jax.Array:
    """An einsum of `x` with a stored weight; in `bfloat16` as `training.project`.

    Raises:
      ValueError: products are not known in this dtype.
    """
    if dtype == "bfloat16":
        return jnp.einsum(equation, x, weight.astype(x.dtype))
    if dtype not in GRADIENTS:
        known = ", ".join(("bfloat16", *GRADIENTS))
        raise ValueError(f"products in {dtype!r} are not known; known: {known}")
    return _narrow(dtype, equation, x, weight)


def _cast(x: jax.Array, dtype: str, scale: float = 1.0) -> jax.Array:
    most = LARGEST[dtype]
    return jnp.clip(x * scale, -most, most).astype(dtype)


def _product(equation: str, x: jax.Array, y: jax.Array) -> jax.Array:
    whole = jnp.issubdtype(x.dtype, jnp.integer)
    out = jnp.einsum(equation, x, y, preferred_element_type=jnp.int32 if whole else jnp.bfloat16)
    return out.astype(jnp.bfloat16)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _narrow(dtype: str, equation: str, x: jax.Array, weight: jax.Array) -> jax.Array:
    return _forward(dtype, equation, x, weight)[0]


def _forward(dtype: str, equation: str, x: jax.Array, weight: jax.Array) -> tuple[jax.Array, Any]:
    narrow_x, narrow_w = _cast(x, dtype), _cast(weight, dtype)
    return _product(equation, narrow_x, narrow_w), (narrow_x, narrow_w)


def _backward(
    dtype: str, equation: str, kept: tuple[jax.Array, jax.Array], gradient: jax.Array
) -> tuple[jax.Array, jax.Array]:
    narrow_x, narrow_w = kept
    narrow_y = _cast(gradient, GRADIENTS[dtype], SCALE)
    inputs, out = equation.split("->")
    left, right = inputs.split(",")
    dx = _product(f"{out},{right}->{left}", narrow_y, narrow_w)
    dw = _product(f"{left},{out}->{right}", narrow_x, narrow_y)
    return dx / SCALE, dw.astype(jnp.float32) / SCALE


_narrow.defvjp(_forward, _backward)
