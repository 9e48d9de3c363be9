"""How far rounding carries in a step: the judge's measure of which differences are none.

A sharded program adds in another order, so that its results differ by rounding. Mostly that is far
below any tolerance, but a step may divide rounding by rounding (the gradient of a bias before a
norm is zero but for it, and Adam's first step is the gradient's sign). Monte Carlo arithmetic
measures it: the unsharded step runs again, with the result of every operation that rounds changed
at random by one part in `2^46` at most, which is 128 times the rounding of double precision and so
more than the order of a sum makes. What a kernel makes in a shorter type is changed by the rounding
of that type: it may be cut where it sums. By how much a result changes then is what rounding can
make there.

    D. S. Parker, Monte Carlo Arithmetic, UCLA CSD-970002, 1997
    A. Appleby, MurmurHash3, 2011
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from autoshard.lower.numbers.numeric import array_of, leaves_of

EXACT = frozenset(
    {
        *("broadcast_in_dim", "reshape", "squeeze", "expand_dims", "transpose", "rev", "slice"),
        *("split", "concatenate", "pad", "copy", "stop_gradient", "convert_element_type"),
        *("select_n", "clamp", "neg", "sign", "abs", "floor", "ceil", "round", "max", "min"),
        *("real", "imag", "complex", "conj", "iota", "full", "reduce_precision"),
        *("gather", "scatter", "scatter-min", "scatter-max"),
        *("dynamic_slice", "dynamic_update_slice", "sort", "top_k", "approx_top_k"),
        *("reduce_max", "reduce_min", "cummax", "cummin", "reduce_window_max"),
        *("reduce_window_min", "select_and_gather_add", "optimization_barrier"),
        *("sharding_constraint", "shard_alike", "bitcast_convert_type"),
        *("scan", "while", "cond", "shard_map"),
    }
)
"""What moves numbers, compares them or holds other equations, and rounds nothing."""
RELATIVE = 2.0**-46
SAMPLES = 4
"""Runs with other random changes; the largest of their deviations counts."""


class Nudge:
    """Changes what an equation made at random by a few units in the last places."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.count = 0

    def __call__(self, primitive: str, arrays: list[Any]) -> list[Any]:
        if primitive in EXACT:
            return arrays
        return [self.nudged(array) for array in arrays]

    def nudged(self, array: Any, relative: float = RELATIVE) -> Any:
        """An array with every element changed by such a part of itself at most."""
        if not jax.numpy.issubdtype(array.dtype, np.inexact):
            return array
        self.count += 1
        noise = relative * _uniform((self.seed << 24) + self.count, array.shape)
        return array * (1 + noise).astype(array.dtype)

    def rounded(self, array: Any, dtype: Any) -> Any:
        """An array of a shorter type, every element changed by as much as that rounds."""
        if not jax.numpy.issubdtype(dtype, np.inexact):
            return array
        return self.nudged(array, float(jax.numpy.finfo(dtype).eps))


def _uniform(seed: int, shape: Sequence[int]) -> Any:
    """Numbers between -1 and 1 by their places: the finalizer of MurmurHash3 in 32 bits.

    JAX's own generators are better ones, of which XLA:CPU compiles each for a tenth of a second.
    """
    places = jax.lax.iota("uint32", math.prod(shape)).reshape(shape)
    bits = places + np.uint32(seed * 0x9E3779B1 % 2**32)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        bits = (bits ^ (bits >> shift)) * np.uint32(factor)
    return (bits ^ (bits >> 16)).astype("float64") / 2**31 - 1


def deviations(expected: Any, run: Callable[[Nudge], Any]) -> dict[str, np.ndarray]:
    """By path of a result's leaf, by how much rounding may change each of its elements.

    Args:
      expected: the result without changes.
      run: the same with the changes that it is given.

    Where an integer changes it is infinite: a rounded number decided which one it is.
    """
    exact = {path: array_of(leaf) for path, leaf in leaves_of(expected).items()}
    worst = {path: np.zeros(np.shape(leaf)) for path, leaf in exact.items()}
    for seed in range(SAMPLES):
        for path, leaf in leaves_of(run(Nudge(seed))).items():
            worst[path] = np.maximum(worst[path], _distance(exact[path], array_of(leaf)))
    # Of an element that happened to change little, as much as of its neighbours.
    return {path: 8 * error + 4 * _size(error) for path, error in worst.items()}


def _distance(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    if not np.issubdtype(one.dtype, np.inexact):
        return np.where(one != other, np.inf, 0.0)
    with np.errstate(invalid="ignore"):
        error = np.abs(one - other)
    same = (one == other) | (np.isnan(one) & np.isnan(other))
    return np.where(same, 0.0, np.where(np.isnan(error), np.inf, error))


def _size(errors: np.ndarray) -> float:
    """The root mean square of what is finite."""
    finite = errors[np.isfinite(errors)]
    return float(np.sqrt(np.mean(finite**2))) if finite.size else 0.0
