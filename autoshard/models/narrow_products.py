"""Products in eight bits as training does them: operands scaled by their largest element, and cast.

    y  = s_x s_w (x / s_x as e4m3) (w / s_w as e4m3)          s = largest element / 448
    dx = s_y s_w (dy / s_y as e5m2) (w / s_w as e4m3)^T       s = largest element / 57344
    dw = s_x s_y (x / s_x as e4m3)^T (dy / s_y as e5m2)

with current scaling, one scale an array (https://arxiv.org/abs/2209.05433). What is kept for the
backward pass are the cast operands, half of what bfloat16 takes.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

LARGEST = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}
GRADIENTS = "float8_e5m2"


def project_in(dtype: str, equation: str, x: jax.Array, weight: jax.Array) -> jax.Array:
    """An einsum of `x` with a stored weight; in `bfloat16` as `training.project`.

    Raises:
      ValueError: products are not known in this dtype.
    """
    if dtype == "bfloat16":
        return jnp.einsum(equation, x, weight.astype(x.dtype))
    if dtype not in LARGEST:
        raise ValueError(f"products in {dtype!r} are not known; take bfloat16 or float8_e4m3fn")
    return _narrow(dtype, equation, x, weight)


def _cast(x: jax.Array, dtype: str) -> tuple[jax.Array, jax.Array]:
    """The array in eight bits, and its scale in float32."""
    wide = x.astype(jnp.float32)
    scale = jnp.maximum(jnp.max(jnp.abs(wide)), 1e-12) / LARGEST[dtype]
    return (wide / scale).astype(dtype), scale


def _product(equation: str, x: jax.Array, y: jax.Array, scale: jax.Array) -> jax.Array:
    out = jnp.einsum(equation, x, y, preferred_element_type=jnp.float32)
    return (out * scale).astype(jnp.bfloat16)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _narrow(dtype: str, equation: str, x: jax.Array, weight: jax.Array) -> jax.Array:
    return _forward(dtype, equation, x, weight)[0]


def _forward(dtype: str, equation: str, x: jax.Array, weight: jax.Array):
    narrow_x, scale_x = _cast(x, dtype)
    narrow_w, scale_w = _cast(weight, dtype)
    out = _product(equation, narrow_x, narrow_w, scale_x * scale_w)
    return out, (narrow_x, scale_x, narrow_w, scale_w)


def _backward(dtype: str, equation: str, kept, gradient: jax.Array):
    narrow_x, scale_x, narrow_w, scale_w = kept
    narrow_y, scale_y = _cast(gradient, GRADIENTS)
    inputs, out = equation.split("->")
    left, right = inputs.split(",")
    dx = _product(f"{out},{right}->{left}", narrow_y, narrow_w, scale_y * scale_w)
    dw = _product(f"{left},{out}->{right}", narrow_x, narrow_y, scale_x * scale_y)
    return dx, dw.astype(jnp.float32)


_narrow.defvjp(_forward, _backward)
