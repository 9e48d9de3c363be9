"""What every collective does, as plain numpy on the list of all devices' arrays.

Devices lie on a **grid** of the mesh's sizes and are numbered row by row. A collective runs over
some of the grid's axes, in groups: devices whose places on all other axes are equal. Within a group
devices are ordered by their places on the given axes, the first axis being the outermost
(https://mlir.llvm.org/docs/Dialects/Shard/). For a grid of 2x3 these are the groups over axis 1:

>>> groups((2, 3), (1,))
((0, 1, 2), (3, 4, 5))

A **law** takes the arrays of one group, in that order, and returns the new ones; `on_groups`
applies it to all groups. `parts` and `whole` say what an array in a layout means.

>>> arrays = parts(np.arange(6), ((0, 1),), (2, 3))
>>> on_groups(all_gather, arrays, (2, 3), (1,), dimension=0)[4]
array([3, 4, 5])

These are definitions, to be read and to be compared with. Nothing of them runs in a step.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from autoshard.plan.decisions import State
from autoshard.plan.types.axis_type import Kind

Arrays = list[np.ndarray]
Law = Callable[..., Arrays]

OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {
    "sum": np.add,
    "max": np.maximum,
    "min": np.minimum,
    "and": np.logical_and,
    "or": np.logical_or,
    "prod": np.multiply,
}


def groups(grid: Sequence[int], axes: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """The groups of devices over `axes`, each in its order.

    >>> groups((2, 2, 2), (2, 0))
    ((0, 4, 1, 5), (2, 6, 3, 7))
    """
    numbers = np.arange(math.prod(grid)).reshape(tuple(grid))
    others = [axis for axis in range(len(grid)) if axis not in axes]
    rows = numbers.transpose(*others, *axes).reshape(-1, math.prod(grid[a] for a in axes))
    return tuple(map(tuple, rows.tolist()))


def on_groups(
    law: Law, arrays: Sequence[np.ndarray], grid: Sequence[int], axes: Sequence[int], **options: Any
) -> Arrays:
    """Apply a law to every group over `axes`; `options` go to the law."""
    result: list[Any] = [None] * len(arrays)
    for group in groups(grid, axes):
        made = law([arrays[device] for device in group], **options)
        for device, array in zip(group, made, strict=True):
            result[device] = array
    return result


# -- laws, on the arrays of one group -----------------------------------------------------------


def reinterpret(arrays: Arrays) -> Arrays:
    """The same numbers, of another type."""
    return list(arrays)


def all_gather(arrays: Arrays, *, dimension: int) -> Arrays:
    """Everyone gets all parts, one after the other."""
    return [np.concatenate(arrays, axis=dimension)] * len(arrays)


def all_reduce(arrays: Arrays, *, operator: str = "sum") -> Arrays:
    """Everyone gets all terms joined."""
    return [functools.reduce(OPERATORS[operator], arrays)] * len(arrays)


def all_slice(arrays: Arrays, *, dimension: int) -> Arrays:
    """Everyone keeps its part of what it holds; also `convert` of R or I to V."""
    return [
        np.split(array, len(arrays), axis=dimension)[place] for place, array in enumerate(arrays)
    ]


def reduce_scatter(arrays: Arrays, *, dimension: int, operator: str = "sum") -> Arrays:
    """Everyone gets its part of all terms joined."""
    return all_slice(all_reduce(arrays, operator=operator), dimension=dimension)


def all_to_all(arrays: Arrays, *, split: int, concat: int) -> Arrays:
    """Everyone sends part `n` of its array to device `n`, and puts what it gets in a row."""
    parts = [np.split(array, len(arrays), axis=split) for array in arrays]
    return [np.concatenate([row[n] for row in parts], axis=concat) for n in range(len(arrays))]


def collective_permute(arrays: Arrays, *, pairs: Sequence[tuple[int, int]]) -> Arrays:
    """Device `target` gets what `source` has, for every pair; the others get zeros."""
    sources = {target: source for source, target in pairs}
    return [
        arrays[sources[n]] if n in sources else np.zeros_like(array)
        for n, array in enumerate(arrays)
    ]


def one_term(arrays: Arrays) -> Arrays:
    """`convert` of R or I to P: the first device keeps the value, the others have zeros."""
    return [array if n == 0 else np.zeros_like(array) for n, array in enumerate(arrays)]


def disjoint_terms(arrays: Arrays, *, dimension: int) -> Arrays:
    """`convert` of V to P: everyone's part in its place among zeros."""
    return [
        np.concatenate(
            [part if n == place else np.zeros_like(part) for n, part in enumerate(arrays)],
            axis=dimension,
        )
        for place in range(len(arrays))
    ]


_R, _I, _V, _P = Kind.REPLICATE, Kind.INVARIANT, Kind.VARYING, Kind.PARTIAL

SPECIFICATIONS: Mapping[tuple[str, Kind, Kind], Callable[[Arrays], Arrays]] = {
    **{
        ("reinterpret", *kinds): reinterpret
        for kinds in ((_R, _I), (_R, _V), (_R, _P), (_I, _R), (_I, _V), (_V, _P))
    },
    **{("convert", kind, _V): functools.partial(all_slice, dimension=0) for kind in (_R, _I)},
    **{("convert", kind, _P): one_term for kind in (_R, _I)},
    ("convert", _V, _P): functools.partial(disjoint_terms, dimension=0),
    **{("all_gather", _V, kind): functools.partial(all_gather, dimension=0) for kind in (_R, _I)},
    **{("all_reduce", _P, kind): all_reduce for kind in (_R, _I)},
    ("reduce_scatter", _P, _V): functools.partial(reduce_scatter, dimension=0),
    ("all_to_all", _V, _V): functools.partial(all_to_all, split=0, concat=0),
}
"""The law of every row of `autoshard.plan.types.transitions` over one axis, parts along
dimension 0.

`collective_permute` is left out: it needs its pairs.
"""


# -- what arrays on a grid mean ---------------------------------------------------------------


def parts(array: np.ndarray, state: State, grid: Sequence[int]) -> Arrays:
    """The arrays of all devices where `array` lies in `state` and is replicated otherwise."""
    return [
        array[_part(array.shape, state, grid, place)]
        for place in itertools.product(*map(range, grid))
    ]


def whole(arrays: Sequence[np.ndarray], state: State, grid: Sequence[int]) -> np.ndarray:
    """The array of which all devices hold their parts; the inverse of `parts`.

    Raises:
      ValueError: devices that should hold the same part do not.
    """
    counts = [math.prod(grid[axis] for axis in axes) for axes in state]
    shape = tuple(size * count for size, count in zip(arrays[0].shape, counts, strict=True))
    result = np.zeros(shape, arrays[0].dtype)
    for place, array in zip(itertools.product(*map(range, grid)), arrays, strict=True):
        result[_part(shape, state, grid, place)] = array
    for number, (expected, found) in enumerate(
        zip(parts(result, state, grid), arrays, strict=True)
    ):
        if not np.array_equal(expected, found):
            raise ValueError(
                f"device {number} holds other numbers than its replicas; give parts of one "
                "array, as `parts` makes them"
            )
    return result


def _part(
    shape: Sequence[int], state: State, grid: Sequence[int], place: Sequence[int]
) -> tuple[slice, ...]:
    """The part of an array of `shape` that the device at `place` holds."""
    found = []
    for size, axes in zip(shape, state, strict=True):
        number, count = 0, 1
        for axis in axes:
            number, count = number * grid[axis] + place[axis], count * grid[axis]
        length = size // count
        found.append(slice(number * length, (number + 1) * length))
    return tuple(found)
