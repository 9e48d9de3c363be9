"""Equations on fewer examples: what of their parameters holds shapes is written anew.

Where the examples lie is read off the arrays: dimensions that are shorter than the equation's own.
An op that looks places up among the examples, or that holds shapes elsewhere, is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from autoshard import compat
from autoshard.program.kernels.cuts import kernel_cuts
from autoshard.program.kernels.ruled import smaller_call
from autoshard.program.microbatches.states import refusal

Shape = tuple[int, ...]


def resized(equation: Any, arrays: Sequence[Any], shapes: Sequence[Shape]) -> list[Any]:
    """The results of an equation on arrays with fewer examples; `shapes` are those of the results.

    Raises:
      CutError: the equation cannot run on fewer examples.
    """
    adapted = _ADAPTED.get(equation.primitive.name)
    changed = {} if adapted is None else adapted(equation, arrays, shapes[0])
    try:
        if equation.primitive.name == compat.PALLAS:
            results = compat.bind_kernel(
                equation, arrays, shapes, _shards(equation, arrays, shapes)
            )
        elif equation.primitive.name == compat.RULED:
            results = smaller_call(equation, arrays)
        elif equation.primitive.name == compat.FFI:
            results = compat.bind_foreign(equation, arrays, shapes)
        else:
            results = compat.bind_equation(equation, arrays, **changed)
    except (TypeError, ValueError) as error:
        why = f"cannot run on fewer examples: {str(error).splitlines()[0]}"
        raise refusal(equation, why) from error
    for array, shape in zip(results, shapes, strict=True):
        if tuple(array.shape) != tuple(shape):
            why = f"makes {tuple(array.shape)} of fewer examples, not {tuple(shape)}: its shape is "
            raise refusal(equation, why + "part of what it is")
    return results


def _shorter(equation: Any, arrays: Sequence[Any], operand: int) -> list[tuple[int, int, int]]:
    """The dimensions of an operand along which there are fewer, their lengths before and now."""
    before, now = equation.invars[operand].aval.shape, arrays[operand].shape
    pairs = enumerate(zip(before, now, strict=True))
    return [(d, old, new) for d, (old, new) in pairs if old != new]


def _shards(equation: Any, arrays: Sequence[Any], shapes: Sequence[Shape]) -> dict[int, int]:
    """How many times shorter each axis of a kernel's grid is. Raises CutError."""
    call, found = compat.kernel_call(equation), kernel_cuts(equation)
    before = [atom.aval.shape for atom in (*equation.invars, *equation.outvars)]
    now = [*(array.shape for array in arrays), *shapes]
    first = call.bounds + call.scalars
    parts = {
        (number - first, d): old // new
        for number, pair in enumerate(zip(before, now, strict=True))
        for d, (old, new) in enumerate(zip(*pair, strict=True))
        if old != new
    }
    shards: dict[int, int] = {}
    for one in (cut for cut in found.cuts if not cut.told):
        counts = {parts.pop(place, 1) for place in one.dims}
        if len(counts) > 1 or one.parts % max(counts):
            raise refusal(equation, f"has its examples along axis {one.axis} of its grid unevenly")
        shards[one.axis] = max(counts)
    if parts:
        reasons = "; ".join(f"axis {axis} of its grid: {reason}" for axis, reason in found.whole)
        raise refusal(equation, f"cannot run on fewer examples: {reasons or 'no axis of its grid'}")
    return {axis: count for axis, count in shards.items() if count > 1}


def _slice(equation: Any, arrays: Sequence[Any], shape: Shape) -> dict[str, Any]:
    params = equation.params
    limits, strides = list(params["limit_indices"]), params["strides"]
    for d, old, new in _shorter(equation, arrays, 0):
        whole = (params["start_indices"][d], limits[d]) == (0, old)
        if not whole or (strides is not None and strides[d] != 1):
            raise refusal(equation, "takes some of the examples")
        limits[d] = new
    return {"limit_indices": tuple(limits)}


def _slice_sizes(equation: Any, arrays: Sequence[Any], shape: Shape) -> dict[str, Any]:
    """Of a gather or a dynamic slice."""
    sizes = list(equation.params["slice_sizes"])
    numbers = equation.params.get("dimension_numbers")
    batch = getattr(numbers, "operand_batching_dims", ())
    for d, old, new in _shorter(equation, arrays, 0):
        if d in batch:
            continue
        if sizes[d] != old:
            raise refusal(equation, "looks up some of the examples")
        sizes[d] = new
    return {"slice_sizes": tuple(sizes)}


def _scatter(equation: Any, arrays: Sequence[Any], shape: Shape) -> dict[str, Any]:
    numbers = equation.params["dimension_numbers"]
    looked_up = set(numbers.scatter_dims_to_operand_dims) | set(numbers.inserted_window_dims)
    looked_up -= set(numbers.operand_batching_dims)
    if any(d in looked_up for d, _, _ in _shorter(equation, arrays, 0)):
        raise refusal(equation, "writes to some of the examples")
    return {}


def _update(equation: Any, arrays: Sequence[Any], shape: Shape) -> dict[str, Any]:
    pairs = (_shorter(equation, arrays, k) for k in (0, 1))
    if len({tuple(found) for found in pairs}) > 1:
        raise refusal(equation, "writes to some of the examples")
    return {}


def _pad(equation: Any, arrays: Sequence[Any], shape: Shape) -> dict[str, Any]:
    config = equation.params["padding_config"]
    if any(tuple(config[d]) != (0, 0, 0) for d, _, _ in _shorter(equation, arrays, 0)):
        raise refusal(equation, "pads the examples")
    return {}


_ADAPTED: Mapping[str, Callable[[Any, Sequence[Any], Shape], dict[str, Any]]] = {
    "broadcast_in_dim": lambda equation, arrays, shape: {"shape": shape},
    "iota": lambda equation, arrays, shape: {"shape": shape},
    "reshape": lambda equation, arrays, shape: {"new_sizes": shape},
    "slice": _slice,
    "gather": _slice_sizes,
    "dynamic_slice": _slice_sizes,
    "dynamic_update_slice": _update,
    "pad": _pad,
    **dict.fromkeys(
        ("scatter", *(f"scatter{dash}{kind}" for dash in "-_" for kind in ("add", "min", "max"))),
        _scatter,
    ),
}
