"""Collectives as primitives that become ops on a dimension of parts, once it is there.

A function of one part is run on all parts of a mesh axis by JAX's batching: an array that differs
from part to part gets one more dimension, the *dimension of the parts*; one that is equal on all
gets none. These five primitives stand for collectives until then, and are gone afterwards:

    fold      sum, maximum or minimum over parts            a reduction of the dimension
    collect   the parts along a new dimension               a transposition; equal on all parts
    exchange  parts against a dimension of as many elements  a transposition
    permute   each part from another one, or zero           slices put together again
    place     the number of a part                          an iota

JAX has batching rules for its own collectives as well. They lack partial permutations, several axes
for most, and integers in places.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters.batching import fancy_primitive_batchers

from autoshard.compat.explicit_types import plain_aval

Axes = tuple[Any, ...]
"""Names of mesh axes that no dimension stands for yet, and dimensions (integers) of others."""

_FOLD, _COLLECT = Primitive("fold_parts"), Primitive("collect_parts")
_EXCHANGE, _PERMUTE = Primitive("exchange_parts"), Primitive("permute_parts")
_PLACE = Primitive("place_of_part")
_REDUCTIONS = {"sum": lax.reduce_sum, "max": lax.reduce_max, "min": lax.reduce_min}


def fold(x: Any, axes: Sequence[str], kind: str) -> Any:
    """`x` combined over all parts of `axes` by `kind`: `sum`, `max` or `min`."""
    return _FOLD.bind(x, axes=tuple(axes), kind=kind)


def collect(x: Any, axis: str, size: int, dimension: int) -> Any:
    """The `size` parts of `x` along a new dimension."""
    return _COLLECT.bind(x, axis=axis, size=size, dimension=dimension)


def exchange(x: Any, axis: str, size: int, dimension: int) -> Any:
    """Part i of the result has at place j of `dimension` what part j of `x` has at place i."""
    return _EXCHANGE.bind(x, axis=axis, size=size, dimension=dimension)


def permute(x: Any, axes: Sequence[str], sizes: Sequence[int], sources: Sequence[int]) -> Any:
    """Part i of the result is part `sources[i]` of `x`, or zero where that is -1.

    Parts of several axes are numbered in row-major order.
    """
    return _PERMUTE.bind(x, axes=tuple(axes), sizes=tuple(sizes), sources=tuple(sources))


def place(axis: str, size: int) -> Any:
    """The number of the part along an axis, an int32."""
    return _PLACE.bind(axis=axis, size=size)


def over_parts(
    closed: Any, axis: str, size: int, dimensions: Sequence[int | None]
) -> tuple[Any, list[int | None]]:
    """A closed jaxpr of one part as one of all `size` parts of a mesh axis.

    Args:
      dimensions: where each operand has the dimension of the parts; None where it has none.

    Returns:
      The closed jaxpr, and where its results have the dimension.
    """
    from jax._src.interpreters import batching

    data = batching.AxisData(axis, size, None, None)
    mapped, found = batching.batch_jaxpr2(closed, data, tuple(dimensions))
    return mapped, list(found)


# -- what they are on one part -------------------------------------------------------------------


def _folded(x: Any, *, axes: Axes, kind: str) -> Any:
    gone = [axis for axis in axes if isinstance(axis, int)]
    return plain_aval(x, [n for d, n in enumerate(x.shape) if d not in gone])


def _collected(x: Any, *, axis: str, size: int, dimension: int) -> Any:
    return plain_aval(x, [*x.shape[:dimension], size, *x.shape[dimension:]])


_FOLD.def_abstract_eval(_folded)
_COLLECT.def_abstract_eval(_collected)
_EXCHANGE.def_abstract_eval(lambda x, **_: plain_aval(x))
_PERMUTE.def_abstract_eval(lambda x, **_: plain_aval(x))
_PLACE.def_abstract_eval(lambda **_: plain_aval(jax.ShapeDtypeStruct((), jnp.int32)))


# -- what becomes of them ------------------------------------------------------------------------


def _without(axes: Axes, name: str, place: int | None) -> Axes:
    """`axes` where a dimension of parts stands at `place`: that of `name`, if it is among them."""
    shifted = [
        axis + 1 if isinstance(axis, int) and place is not None and axis >= place else axis
        for axis in axes
    ]
    return tuple(place if axis == name else axis for axis in shifted)


def _batch_fold(data: Any, operands: Any, dims: Any, *, axes: Axes, kind: str) -> Any:
    (x,), (d,) = operands, dims
    mine = data.name in axes
    if mine and d is None:
        axes = tuple(axis for axis in axes if axis != data.name)
        x = x * jnp.asarray(data.size, x.dtype) if kind == "sum" else x
    else:
        axes = _without(axes, data.name, d)
    left = None if mine or d is None else d - sum(isinstance(a, int) and a < d for a in axes)
    if any(not isinstance(axis, int) for axis in axes):
        return _FOLD.bind(x, axes=axes, kind=kind), left
    return (_REDUCTIONS[kind](x, axes=tuple(sorted(axes))) if axes else x), left


def _batch_collect(
    data: Any, operands: Any, dims: Any, *, axis: str, size: int, dimension: int
) -> Any:
    (x,), (d,) = operands, dims
    if axis != data.name:
        place = dimension if d is None or d >= dimension else dimension + 1
        left = d if d is None or d < dimension else d + 1
        return collect(x, axis, size, place), left
    if d is None:
        return _repeated(x, size, dimension), None
    return _moved(x, d, dimension), None


def _batch_exchange(
    data: Any, operands: Any, dims: Any, *, axis: str, size: int, dimension: int
) -> Any:
    (x,), (d,) = operands, dims
    if axis != data.name:
        return exchange(x, axis, size, dimension + (d is not None and d <= dimension)), d
    if d is None:  # the dimension becomes that of the parts, and is equal along the new one
        return _repeated(x, size, dimension + 1), dimension
    other = dimension + (d <= dimension)
    order = list(range(x.ndim))
    order[d], order[other] = other, d
    return lax.transpose(x, order), d


def _batch_permute(
    data: Any, operands: Any, dims: Any, *, axes: Axes, sizes: Sequence[int], sources: Sequence[int]
) -> Any:
    (x,), (d,) = operands, dims
    if data.name in axes and d is None:
        x, d = _repeated(x, data.size, 0), 0
    axes = _without(axes, data.name, d)
    if any(not isinstance(axis, int) for axis in axes):
        return permute(x, axes, sizes, sources), d
    return _permuted(x, axes, sources), d


def _batch_place(data: Any, operands: Any, dims: Any, *, axis: str, size: int) -> Any:
    if axis != data.name:
        return place(axis, size), None
    return lax.iota(jnp.int32, size), 0


fancy_primitive_batchers[_FOLD] = _batch_fold
fancy_primitive_batchers[_COLLECT] = _batch_collect
fancy_primitive_batchers[_EXCHANGE] = _batch_exchange
fancy_primitive_batchers[_PERMUTE] = _batch_permute
fancy_primitive_batchers[_PLACE] = _batch_place


def _repeated(x: Any, size: int, dimension: int) -> Any:
    shape = [*x.shape[:dimension], size, *x.shape[dimension:]]
    return lax.broadcast_in_dim(x, shape, [d for d in range(len(shape)) if d != dimension])


def _moved(x: Any, source: int, target: int) -> Any:
    if source == target:
        return x
    order = [d for d in range(x.ndim) if d != source]
    order.insert(target, source)
    return lax.transpose(x, order)


def _permuted(x: Any, dims: Sequence[int], sources: Sequence[int]) -> Any:
    """`x` whose parts along `dims`, numbered in row-major order, come from `sources`."""
    if len(dims) == 1:
        return _taken(x, dims[0], sources)
    order = [*dims, *(d for d in range(x.ndim) if d not in dims)]
    front = lax.transpose(x, order)
    merged = front.reshape(len(sources), *front.shape[len(dims) :])
    back = [order.index(d) for d in range(x.ndim)]
    return lax.transpose(_taken(merged, 0, sources).reshape(front.shape), back)


def _taken(x: Any, dim: int, sources: Sequence[int]) -> Any:
    """Slices of `x` along `dim`, one for each run of neighbours that stay neighbours."""
    count = len(sources)
    if list(sources) == list(range(count)):
        return x
    starts = [
        k
        for k in range(count)
        if k == 0 or sources[k] != (sources[k - 1] + 1 if sources[k - 1] >= 0 else -1)
    ]
    pieces = []
    for start, stop in pairwise([*starts, count]):
        if sources[start] < 0:
            shape = [stop - start if d == dim else n for d, n in enumerate(x.shape)]
            pieces.append(lax.full(shape, 0, x.dtype))
        else:
            first = sources[start]
            pieces.append(lax.slice_in_dim(x, first, first + stop - start, axis=dim))
    return pieces[0] if len(pieces) == 1 else lax.concatenate(pieces, dim)
