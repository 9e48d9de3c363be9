"""FLOP of one equation on whole (unsharded) arrays.

A `dot_general` of batch B, free M and N, contraction K costs 2·B·M·N·K; a convolution 2 FLOP per
kernel element, per input channel of its group, per output element; what reads or writes
a part of an array is counted by that part's elements, everything else by the elements that it
touches. Sharding divides these by the number of shards of the op's factors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def _size(aval: Any) -> int:
    return math.prod(getattr(aval, "shape", ()))


def _dot_general(equation: Any) -> float:
    (contracting, _), _ = equation.params["dimension_numbers"]
    left = equation.invars[0].aval.shape
    return 2.0 * _size(equation.outvars[0].aval) * math.prod(left[d] for d in contracting)


def _convolution(equation: Any) -> float:
    numbers = equation.params["dimension_numbers"]
    kernel = equation.invars[1].aval.shape
    out_channels = kernel[numbers.rhs_spec[0]]
    return 2.0 * _size(equation.outvars[0].aval) * math.prod(kernel) / max(out_channels, 1)


def _logarithmic(equation: Any) -> float:
    dimension = equation.params.get("dimension", -1)
    shape = equation.invars[0].aval.shape
    length = shape[dimension] if shape else 1
    return sum(_size(v.aval) for v in equation.invars) * max(1.0, math.log2(max(length, 2)))


def _fft(equation: Any) -> float:
    # 5 N log2 N per transform (Cooley-Tukey; the FFTW convention).
    length = math.prod(equation.params["fft_lengths"])
    return 5.0 * _size(equation.outvars[0].aval) * max(1.0, math.log2(max(length, 2)))


def _dense_algebra(equation: Any) -> float:
    # Cubic in the matrix dimension; the constant is of order one for all of them.
    shape = equation.invars[0].aval.shape
    return float(math.prod(shape) * (shape[-1] if shape else 1))


def _result(equation: Any) -> float:
    return float(max(_size(equation.outvars[0].aval), 1))


def _update(equation: Any) -> float:
    """The part that a dynamic update or a scatter writes; the rest stays in place."""
    position = 1 if equation.primitive.name == "dynamic_update_slice" else 2
    return float(max(_size(equation.invars[position].aval), 1))


_SPECIAL = {
    **dict.fromkeys(["gather", "dynamic_slice", "slice"], _result),
    **dict.fromkeys(
        [
            "dynamic_update_slice",
            "scatter",
            "scatter-add",
            "scatter-mul",
            "scatter-min",
            "scatter-max",
        ],
        _update,
    ),
    "dot_general": _dot_general,
    "conv_general_dilated": _convolution,
    "sort": _logarithmic,
    "top_k": _logarithmic,
    "approx_top_k": _logarithmic,
    "fft": _fft,
    **dict.fromkeys(
        [
            "cholesky",
            "lu",
            "qr",
            "geqrf",
            "householder_product",
            "eigh",
            "eig",
            "svd",
            "triangular_solve",
            "schur",
            "tridiagonal",
        ],
        _dense_algebra,
    ),
}


TRANSCENDENTAL: Mapping[str, float] = {
    **dict.fromkeys(["exp", "exp2", "expm1", "rsqrt", "sqrt", "erfc"], 1.0),
    "logistic": 1.2,
    "tanh": 2.3,
    **dict.fromkeys(["log", "log1p"], 3.0),
    **dict.fromkeys(["pow", "erf_inv"], 4.0),
    **dict.fromkeys(["sin", "cos", "tan"], 8.0),
    "cbrt": 10.0,
    "lgamma": 17.0,
    "digamma": 19.0,
}
"""Seconds of elementwise functions as multiples of an exponential's, as XLA:GPU prices them in
float32 (compiled chains of 1, 8 and 24 of each); all else is 20 times cheaper."""


def equation_flops(equation: Any) -> float:
    """FLOP of `equation` on whole arrays; at least one per output element."""
    special = _SPECIAL.get(equation.primitive.name)
    if special is not None:
        return special(equation)
    outputs = sum(_size(v.aval) for v in equation.outvars)
    inputs = sum(_size(v.aval) for v in equation.invars)
    return float(max(outputs, inputs, 1))


def is_matrix_op(primitive: str) -> bool:
    """Whether `primitive` runs on the matrix units (at their peak) rather than the vector units."""
    return primitive in ("dot_general", "conv_general_dilated", "ragged_dot")
