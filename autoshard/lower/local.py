"""Run one equation on the parts that one device holds.

Where an op is cut, its operands and results are smaller than its equation says, so parameters that
hold shapes are written anew: from the local shapes of what the op writes. Ops that look up places
in a dimension that is cut (gather, scatter, dynamic updates) take the places that lie in the
device's own part; a gather over a cut dimension gives zeros elsewhere, so that the sum over the
devices is the whole. What cannot be run on parts is refused by name.

    run_locally     inside of a `jax.shard_map` over the whole step
    run_in_parts    as a `jax.shard_map` of its own: ops of which XLA's partitioner makes something
                    else than was planned (`autoshard.lower.partitioner`); it has nothing to decide
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from autoshard import compat
from autoshard.compat.row_exchange import ROW_EXCHANGE
from autoshard.lower.kernels.attention import run_attention
from autoshard.lower.kernels.ruled import run_foreign, run_ruled
from autoshard.lower.kernels.run import run_kernel
from autoshard.lower.parts.cut import Cut, refused
from autoshard.lower.parts.in_parts import in_parts
from autoshard.lower.parts.indexed import gather, scatter, slice_of_place, update_slice
from autoshard.lower.parts.manual import own_part
from autoshard.lower.parts.ragged import ragged_dot
from autoshard.lower.parts.sent_rows import sent_rows
from autoshard.lower.parts.transforms import bind_equation
from autoshard.lower.parts.windows import convolution, pooling
from autoshard.program.layout import UNREDUCED, dimension_axes
from autoshard.program.ragged import RAGGED
from autoshard.program.trace import Op
from autoshard.program.vocabulary import ALGORITHMS

AS_IT_IS = frozenset(
    {
        *("dot_general", "transpose", "squeeze", "rev", "concatenate"),
        *("stack", "unstack", "clamp", "select_n", "copy", "device_put"),
        *("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or"),
        *("reduce_xor", "reduce", "reduce_window"),
        *ALGORITHMS,
        "fft",
    }
)
"""Cut along what passes through, these ops do with a part what they do with the whole."""

PARTIAL = frozenset(
    {
        *("dot_general", "ragged_dot_general", "conv_general_dilated", "gather"),
        "dynamic_slice",
        *("reduce_sum", "reduce_max", "reduce_min", "reduce_and", "reduce_or"),
        *("scatter-add", "scatter-min", "scatter-max", "scatter_add", "scatter_min"),
        "scatter_max",
    }
)
"""The ops whose results on parts, joined, are the result on the whole."""


def run_locally(equation: Any, arrays: Sequence[Any], cut: Cut) -> list[Any]:
    """The results of `equation` on one device, from its parts of the operands.

    Raises:
      LoweringError: the op cannot be run on parts.
    """
    name = equation.primitive.name
    if name == compat.PALLAS:
        return run_kernel(equation, arrays, cut)
    if name in compat.FUSED_ATTENTION:
        return run_attention(equation, arrays, cut)
    if name == compat.RULED:
        return run_ruled(equation, arrays, cut)
    if name == compat.FFI:
        return run_foreign(equation, arrays, cut)
    if cut.is_whole and not cut.partial:
        return bind_equation(equation, arrays)
    terms = any(UNREDUCED in layout for layout in cut.reads)
    if cut.partial and name not in PARTIAL and not terms:
        raise refused(cut, "its partial results cannot be joined")
    if name in _ADAPTED:
        results = _ADAPTED[name](equation, arrays, cut)
    elif name in AS_IT_IS or _is_elementwise(cut.op):
        results = bind_equation(equation, arrays)
    elif all(d < 0 for layout in cut.reads for d in layout):
        whole = bind_equation(equation, arrays)
        results = [
            own_part(array, dimension_axes(array.ndim, layout), cut.devices)
            for array, layout in zip(whole, cut.written, strict=True)
        ]
    else:
        raise refused(cut, "it is not known what it does with a part of its operands")
    # Results of no elements are free: whole on every device.
    results = [
        jnp.zeros(shape, array.dtype) if 0 in shape else array
        for array, shape in zip(results, cut.result_shapes, strict=True)
    ]
    for array, shape in zip(results, cut.local_results, strict=True):
        if tuple(array.shape) != shape:
            raise refused(cut, f"a part of its result has shape {array.shape}, not {shape}")
    return results


def run_in_parts(equation: Any, arrays: Sequence[Any], cut: Cut, mesh: Any) -> list[Any]:
    """The results of an equation on whole arrays, each device its part, or their terms.

    See `autoshard.lower.parts.in_parts`.

    Raises:
      LoweringError: the op cannot be run on parts.
    """
    return in_parts(lambda *parts: run_locally(equation, parts, cut), arrays, cut, mesh)


def _is_elementwise(op: Op) -> bool:
    """Whether each element of every result depends on that element of the operands alone.

    Operands may be scalars, or have dimensions of size 1 where the results have longer ones.
    """
    rule = op.rule
    if len(set(rule.results)) != 1:
        return False
    result = rule.results[0]
    if not any(len(tensor) == len(result) for tensor in rule.operands):
        return False  # it makes what it does not read, such as random numbers
    return all(
        not tensor
        or (
            len(tensor) == len(result)
            and all(
                here == there or all(rule.factors[k].size == 1 for k in here)
                for here, there in zip(tensor, result, strict=True)
            )
        )
        for tensor in rule.operands
    )


def _with(**changed: Callable[[Any, Sequence[Any], Cut], Any]) -> Callable[..., list[Any]]:
    """Bind the equation with parameters that are computed anew."""

    def run(equation: Any, arrays: Sequence[Any], cut: Cut) -> list[Any]:
        new = {key: compute(equation, arrays, cut) for key, compute in changed.items()}
        return compat.bind_equation(equation, arrays, **new)

    return run


def _result_shape(equation: Any, arrays: Sequence[Any], cut: Cut) -> tuple[int, ...]:
    return cut.local_results[0]


def _limits(equation: Any, arrays: Sequence[Any], cut: Cut) -> tuple[int, ...]:
    shape = equation.invars[0].aval.shape
    params = equation.params
    strides = params["strides"] or (1,) * len(shape)
    limits = list(params["limit_indices"])
    for d, size in enumerate(shape):
        if cut.axes(0, d):
            if (params["start_indices"][d], limits[d], strides[d]) != (0, size, 1):
                raise refused(cut, f"it slices dimension {d}, which is cut")
            limits[d] = arrays[0].shape[d]
    return tuple(limits)


def _padding(equation: Any, arrays: Sequence[Any], cut: Cut) -> Any:
    config = equation.params["padding_config"]
    for d, pad in enumerate(config):
        if cut.axes(0, d) and tuple(pad) != (0, 0, 0):
            raise refused(cut, f"it pads dimension {d}, which is cut")
    return config


def _repeats(equation: Any, arrays: Sequence[Any], cut: Cut) -> tuple[int, ...]:
    counts = tuple(equation.params["reps"])
    for d, count in enumerate(counts):
        if cut.axes(0, d) and count > 1:
            raise refused(cut, f"it repeats dimension {d}, which is cut")
    result, operand = cut.local_results[0], arrays[0].shape
    return tuple(n // size if size else 1 for n, size in zip(result, operand, strict=True))


def _pieces(equation: Any, arrays: Sequence[Any], cut: Cut) -> tuple[int, ...]:
    axis = equation.params["axis"]
    if cut.axes(0, axis) and len(cut.local_results) > 1:
        raise refused(cut, f"it takes dimension {axis}, which is cut, to pieces")
    return tuple(shape[axis] for shape in cut.local_results)


_ADAPTED: Mapping[str, Callable[[Any, Sequence[Any], Cut], list[Any]]] = {
    "broadcast_in_dim": _with(shape=_result_shape),
    "reshape": _with(new_sizes=_result_shape),
    "split": _with(sizes=_pieces),
    "slice": _with(limit_indices=_limits),
    "dynamic_slice": slice_of_place,
    "pad": _with(padding_config=_padding),
    "tile": _with(reps=_repeats),
    "conv_general_dilated": convolution,
    **dict.fromkeys((f"reduce_window_{kind}" for kind in ("sum", "max", "min")), pooling),
    "gather": gather,
    RAGGED: ragged_dot,
    ROW_EXCHANGE: sent_rows,
    "dynamic_update_slice": update_slice,
    **dict.fromkeys(
        (
            "scatter",
            *(f"scatter{dash}{kind}" for dash in "-_" for kind in ("add", "mul", "min", "max")),
        ),
        scatter,
    ),
}
