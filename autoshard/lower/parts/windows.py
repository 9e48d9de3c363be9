"""Windows that slide over a dimension which every device has whole, to make a part of the results.

A device that makes results `r` to `r + n - 1` needs the `(n - 1) * stride + reach` elements from
`r * stride` of the padded operand, where a window reaches over `(size - 1) * dilation + 1`. So the
operand is padded first, its part is cut out, and the op runs on it without padding. Where the
operand is cut over some of the axes that cut the results, this goes for what it has a part of.

Groups are counted anew: a device has those of its part of the channels, or of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from autoshard import compat
from autoshard.lower.parts.cut import Cut

_Dimension = tuple[int, int, int, int]
"""Of one windowed dimension: in the operand, in the result, in the parameters, and the window's
size."""


def convolution(equation: Any, arrays: Sequence[Any], cut: Cut) -> list[Any]:
    """`lax.conv_general_dilated` on parts."""
    numbers = equation.params["dimension_numbers"]
    left, right = arrays[0].shape[numbers.lhs_spec[1]], arrays[1].shape[numbers.rhs_spec[1]]
    batch, made = arrays[0].shape[numbers.lhs_spec[0]], cut.local_results[0][numbers.out_spec[0]]
    dimensions = [
        (operand, result, n, arrays[1].shape[kernel])
        for n, (operand, kernel, result) in enumerate(
            zip(numbers.lhs_spec[2:], numbers.rhs_spec[2:], numbers.out_spec[2:], strict=True)
        )
    ]
    zero = jnp.zeros((), arrays[0].dtype)
    keys = ("lhs_dilation", "rhs_dilation")
    operand, changed = _own_windows(equation, arrays[0], cut, dimensions, zero, keys)
    groups = {"feature_group_count": left // right, "batch_group_count": batch // made}
    return compat.bind_equation(equation, [operand, arrays[1]], **groups, **changed)


def pooling(equation: Any, arrays: Sequence[Any], cut: Cut) -> list[Any]:
    """`reduce_window_sum`, `reduce_window_max` and `reduce_window_min` on parts."""
    dimensions = [(d, d, d, size) for d, size in enumerate(equation.params["window_dimensions"])]
    neutral = _neutral(equation.primitive.name.rpartition("_")[2], arrays[0].dtype)
    keys = ("base_dilation", "window_dilation")
    operand, changed = _own_windows(equation, arrays[0], cut, dimensions, neutral, keys)
    return compat.bind_equation(equation, [operand], **changed)


def _own_windows(
    equation: Any,
    operand: Any,
    cut: Cut,
    dimensions: Sequence[_Dimension],
    neutral: Any,
    keys: tuple[str, str],
) -> tuple[Any, dict[str, Any]]:
    """What of an operand this device's windows see, and the parameters that fit to it."""
    params = equation.params
    padding, inner = list(params["padding"]), list(params[keys[0]])
    for here, there, n, size in dimensions:
        cut_already = cut.axes(0, here)
        written = (axis for axis, d in enumerate(cut.written[0]) if d == there)
        axes = tuple(axis for axis in written if axis not in cut_already)
        if not axes:
            continue
        config = [(0, 0, 0)] * operand.ndim
        config[here] = (*padding[n], inner[n] - 1)
        padded = lax.pad(operand, neutral, config)
        count, stride = cut.local_results[0][there], params["window_strides"][n]
        length = (count - 1) * stride + (size - 1) * params[keys[1]][n] + 1
        start = cut.devices.place(axes) * (count * stride)
        operand = lax.dynamic_slice_in_dim(padded, start, length, here)
        padding[n], inner[n] = (0, 0), 1
    return operand, {"padding": tuple(padding), keys[0]: tuple(inner)}


def _neutral(kind: str, dtype: Any) -> Any:
    """What changes nothing where it is pooled: `kind` is sum, max or min."""
    if kind == "sum":
        return jnp.zeros((), dtype)
    if jnp.issubdtype(dtype, jnp.floating):
        return jnp.asarray(-np.inf if kind == "max" else np.inf, dtype)
    limits = jnp.iinfo(dtype)
    return jnp.asarray(limits.min if kind == "max" else limits.max, dtype)
