"""What random programs are made of: one function of an array each, with inputs of its own.

A piece says which shapes it takes, and makes from dice and a shape the shapes of its further inputs
and the function. What it returns is bounded again, so that chains of pieces stay finite.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Shape = tuple[int, ...]
Dice = np.random.Generator
Made = tuple[list[Any], Callable[..., Any]]
"""Inputs beside the array (`F(shape)`, `I(shape, below)`), and the function of all of them."""


@dataclass(frozen=True)
class F:
    """An input of floats."""

    shape: Shape


@dataclass(frozen=True)
class I:  # noqa: E742
    """An input of integers from 0 to `below`, and a few outside of that."""

    shape: Shape
    below: int


PIECES: dict[str, tuple[Callable[[Shape], bool], Callable[[Dice, Shape], Made]]] = {}


def piece(fits: Callable[[Shape], bool]) -> Callable[[Callable[[Dice, Shape], Made]], Any]:
    """Enter a piece for shapes that `fits` says yes to, under the name of its function."""

    def enter(make: Callable[[Dice, Shape], Made]) -> Any:
        PIECES[make.__name__] = fits, make
        return make

    return enter


def any_shape(shape: Shape) -> bool:
    return len(shape) >= 1


def rank(*ranks: int) -> Callable[[Shape], bool]:
    return lambda shape: len(shape) in ranks


def axis_of(dice: Dice, shape: Shape) -> int:
    return int(dice.integers(len(shape)))


# -- products and elements -------------------------------------------------------------------------


@piece(any_shape)
def product(dice: Dice, shape: Shape) -> Made:
    width = int(dice.choice([4, 8, 16]))
    return [F((shape[-1], width))], lambda x, w: jnp.tanh(x @ w)


@piece(rank(3))
def batched_product(dice: Dice, shape: Shape) -> Made:
    return [F((shape[0], shape[2], 8))], lambda x, w: jnp.tanh(jnp.einsum("bik,bkj->bji", x, w))


@piece(any_shape)
def bias(dice: Dice, shape: Shape) -> Made:
    return [F((shape[-1],))], lambda x, b: jnp.sin(x + b)


@piece(any_shape)
def softmax(dice: Dice, shape: Shape) -> Made:
    axis = axis_of(dice, shape)
    return [], lambda x: jax.nn.softmax(x, axis)


@piece(any_shape)
def norm(dice: Dice, shape: Shape) -> Made:
    axis = axis_of(dice, shape)
    return [], lambda x: x * lax.rsqrt(jnp.mean(x * x, axis, keepdims=True) + 0.1)


@piece(rank(2, 3))
def sum_or_max(dice: Dice, shape: Shape) -> Made:
    axis, function = axis_of(dice, shape), [jnp.mean, jnp.max, jnp.min][dice.integers(3)]
    return [], lambda x: function(x, axis)


@piece(any_shape)
def own_derivative(dice: Dice, shape: Shape) -> Made:
    @jax.custom_vjp
    def bent(x: Any) -> Any:
        return jnp.tanh(x)

    bent.defvjp(lambda x: (jnp.tanh(x), x), lambda x, g: (g * jnp.cos(x),))
    return [], bent


@piece(any_shape)
def own_tangent(dice: Dice, shape: Shape) -> Made:
    @jax.custom_jvp
    def bent(x: Any) -> Any:
        return jnp.sin(x)

    bent.defjvp(lambda x, t: (bent(*x), 0.5 * t[0]))
    return [], bent


@piece(any_shape)
def again(dice: Dice, shape: Shape) -> Made:
    one = jax.checkpoint(lambda x, w: jnp.tanh(jnp.sin(x) @ w) @ w.T)
    return [F((shape[-1], 8))], one


# -- shapes ----------------------------------------------------------------------------------------


@piece(rank(2, 3))
def transposed(dice: Dice, shape: Shape) -> Made:
    order = tuple(dice.permutation(len(shape)).tolist())
    return [], lambda x: jnp.transpose(x, order)


@piece(rank(2, 3))
def merged(dice: Dice, shape: Shape) -> Made:
    result = (shape[0] * shape[1], *shape[2:])
    return [], lambda x: jnp.reshape(x, result)


@piece(rank(1, 2))
def parted(dice: Dice, shape: Shape) -> Made:
    result = (*shape[:-1], 2, shape[-1] // 2) if shape[-1] % 2 == 0 else (*shape, 1)
    return [], lambda x: jnp.reshape(x, result)


@piece(any_shape)
def padded(dice: Dice, shape: Shape) -> Made:
    axis = axis_of(dice, shape)
    widths = [(1, 3) if d == axis else (0, 0) for d in range(len(shape))]
    return [], lambda x: jnp.pad(x, widths)


@piece(any_shape)
def turned_round(dice: Dice, shape: Shape) -> Made:
    axis = axis_of(dice, shape)
    return [], lambda x: jnp.flip(x, axis) + jnp.roll(x, 1, axis)


@piece(any_shape)
def joined(dice: Dice, shape: Shape) -> Made:
    axis = axis_of(dice, shape)
    return [], lambda x: jnp.concatenate([x, jnp.cos(x)], axis)


@piece(any_shape)
def halved(dice: Dice, shape: Shape) -> Made:
    axis = axis_of(dice, shape)
    return [], lambda x: lax.slice_in_dim(x, 0, max(x.shape[axis] // 2, 1), axis=axis)


# -- places ----------------------------------------------------------------------------------------


@piece(any_shape)
def taken(dice: Dice, shape: Shape) -> Made:
    mode, axis = [None, "clip", "fill"][dice.integers(3)], axis_of(dice, shape)

    def run(x: Any, at: Any) -> Any:
        found = jnp.take(x, at, axis, mode=mode)
        return jnp.where(jnp.isnan(found), 0.5, found)

    return [I((8,), shape[axis])], run


@piece(any_shape)
def scattered(dice: Dice, shape: Shape) -> Made:
    kind = ["add", "max", "min"][dice.integers(3)]
    return [I((4,), shape[0]), F((4, *shape[1:]))], lambda x, at, new: getattr(x.at[at], kind)(new)


@piece(any_shape)
def segments(dice: Dice, shape: Shape) -> Made:
    function = [jax.ops.segment_sum, jax.ops.segment_max][dice.integers(2)]

    def run(x: Any, at: Any) -> Any:
        found = function(x, at, 8)
        return jnp.where(jnp.isfinite(found), jnp.tanh(found), 0.0)

    return [I((shape[0],), 8)], run


@piece(any_shape)
def row_written(dice: Dice, shape: Shape) -> Made:
    def run(x: Any, at: Any, row: Any) -> Any:
        return lax.dynamic_update_slice(x, row, (at, *(jnp.int32(0),) * (x.ndim - 1)))

    return [I((), shape[0]), F((1, *shape[1:]))], run


@piece(any_shape)
def row_read(dice: Dice, shape: Shape) -> Made:
    return [I((), shape[0])], lambda x, at: x * lax.dynamic_index_in_dim(x, at, 0)


@piece(any_shape)
def in_order(dice: Dice, shape: Shape) -> Made:
    axis = axis_of(dice, shape)
    return [], lambda x: jnp.sort(x, axis)


@piece(any_shape)
def largest(dice: Dice, shape: Shape) -> Made:
    return [], lambda x: lax.top_k(x, max(x.shape[-1] // 2, 1))[0]


@piece(any_shape)
def summed_up(dice: Dice, shape: Shape) -> Made:
    axis = axis_of(dice, shape)
    return [], lambda x: jnp.tanh(jnp.cumsum(x, axis))


# -- windows, transforms, matrices -----------------------------------------------------------------


@piece(rank(3))
def convolved(dice: Dice, shape: Shape) -> Made:
    width = shape[2]
    groups = int(dice.choice([g for g in (1, 2, 4) if width % g == 0]))

    def run(x: Any, w: Any) -> Any:
        numbers = ("NWC", "WIO", "NWC")
        found = lax.conv_general_dilated(
            x, w, (1,), "SAME", dimension_numbers=numbers, feature_group_count=groups
        )
        return jnp.tanh(found)

    return [F((3, width // groups, 8))], run


@piece(rank(2, 3))
def pooled(dice: Dice, shape: Shape) -> Made:
    window = (1,) * (len(shape) - 1) + (2,)

    def run(x: Any) -> Any:
        return lax.reduce_window(x, -jnp.inf, lax.max, window, window, "VALID")

    return [], run if shape[-1] > 1 else jnp.sin


@piece(rank(2, 3))
def transformed(dice: Dice, shape: Shape) -> Made:
    return [], lambda x: jnp.tanh(jnp.abs(jnp.fft.fft(x)) + 0.1)


@piece(rank(2))
def transformed_and_back(dice: Dice, shape: Shape) -> Made:
    def run(x: Any) -> Any:
        return jnp.fft.irfft(jnp.fft.rfft(x) * (0.5 + 0.25j), n=x.shape[-1])

    return [], run


@piece(rank(2, 3))
def complex_mean(dice: Dice, shape: Shape) -> Made:
    axis = axis_of(dice, shape)
    return [], lambda x: jnp.real(jnp.mean(x * (1 + 2j), axis) * (0.5 - 1j))


@piece(rank(2))
def solved(dice: Dice, shape: Shape) -> Made:
    def run(x: Any, m: Any) -> Any:
        return jnp.linalg.solve(m * 0.1 + 3 * jnp.eye(4), x[..., :4, None])[..., 0]

    return [F((shape[0], 4, 4))], run if shape[1] >= 4 else lambda x, m: x + m[:, 0, :1]


@piece(rank(2))
def cholesky(dice: Dice, shape: Shape) -> Made:
    def run(x: Any) -> Any:
        return jnp.linalg.cholesky(0.1 * x[:, :, None] * x[:, None, :] + 2 * jnp.eye(x.shape[1]))

    return [], run


# -- loops and branches ----------------------------------------------------------------------------


@piece(any_shape)
def scanned(dice: Dice, shape: Shape) -> Made:
    stacked = bool(dice.random() < 0.5)
    weights = (3, shape[-1], shape[-1]) if stacked else (shape[-1], shape[-1])

    def run(x: Any, weights: Any) -> Any:
        def turn(c: Any, w: Any) -> Any:
            c = jnp.tanh(c @ (w if stacked else weights))
            return c, jnp.mean(c)

        last, means = lax.scan(turn, x, weights if stacked else None, length=3)
        return last + jnp.sum(means)

    return [F(weights)], run


@piece(any_shape)
def until_small(dice: Dice, shape: Shape) -> Made:
    return [], lambda x: lax.while_loop(lambda v: jnp.sum(v * v) > 1e6, lambda v: v * 0.5, x)


@piece(any_shape)
def by_element(dice: Dice, shape: Shape) -> Made:
    def one(x: Any, n: Any) -> Any:
        turn = lambda c: (c[0] + 1, jnp.sin(c[1]))  # noqa: E731
        return lax.while_loop(lambda c: c[0] < n % 3, turn, (0, x))[1]

    return [I((shape[0],), 3)], jax.vmap(one)


@piece(any_shape)
def branched(dice: Dice, shape: Shape) -> Made:
    def run(x: Any, w: Any) -> Any:
        return lax.cond(jnp.sum(x) > 0, lambda x: jnp.tanh(x @ w), lambda x: jnp.sin(x) @ w, x)

    return [F((shape[-1], 8))], run


@piece(any_shape)
def shown(dice: Dice, shape: Shape) -> Made:
    def run(x: Any) -> Any:
        jax.debug.callback(lambda value: None, jnp.mean(x))
        return x + 1.0

    return [], run


WITHOUT_GRADIENT = frozenset({"until_small", "by_element"})
"""Loops of unknown length: JAX takes no gradient backwards through them."""
