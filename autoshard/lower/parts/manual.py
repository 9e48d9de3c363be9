"""Collectives on the parts that one device holds: each planned step as one call of `jax.lax`.

All functions run inside `jax.shard_map` over the whole mesh. A dimension that several axes shard is
cut by the first one, then by the next, which is how `jax.lax` counts over a tuple of axes.

    all_gather, all_to_all     jax.lax.all_gather, jax.lax.all_to_all, tiled
    collective_permute         jax.lax.ppermute
    all_slice                  a slice at the device's own place; nothing is sent
    all_reduce                 jax.lax.psum, pmax, pmin
    reduce_scatter             jax.lax.psum_scatter, of several dimensions at once as of one
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import lax

from autoshard.plan.types.hops import Hop, permutation

_REDUCTIONS = {"sum": lax.psum, "max": lax.pmax, "min": lax.pmin}
_ON_BOOLEANS = {"or": lax.pmax, "and": lax.pmin, "sum": lax.pmax}
"""A sum of booleans is that of a gather: one term of it is not false at most."""


@dataclass(frozen=True, slots=True)
class Devices:
    """The mesh as seen from one device of it: names and sizes of its axes."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]

    def named(self, axes: Sequence[int]) -> tuple[str, ...]:
        """The names of some axes, in the given order."""
        return tuple(self.names[axis] for axis in axes)

    def count(self, axes: Sequence[int]) -> int:
        """How many devices a group over `axes` has."""
        return math.prod(self.sizes[axis] for axis in axes)

    def place(self, axes: Sequence[int]) -> Any:
        """This device's number in its group over `axes`, the first axis outermost."""
        return lax.axis_index(self.named(axes))


def run_hop(array: Any, move: Hop, devices: Devices) -> Any:
    """One step of a reshard, on the part of a value that lies in `move.before`."""
    names = devices.named(move.axes)
    if move.kind == "all_gather":
        return lax.all_gather(array, names, axis=move.source, tiled=True)
    if move.kind == "all_to_all":
        return lax.all_to_all(
            array, names, split_axis=move.target, concat_axis=move.source, tiled=True
        )
    if move.kind == "collective_permute":
        return lax.ppermute(array, names, permutation(move, devices.sizes))
    added = [after[len(before) :] for before, after in zip(move.before, move.after, strict=True)]
    return own_part(array, added, devices)


def own_part(array: Any, axes_of_dimension: Sequence[Sequence[int]], devices: Devices) -> Any:
    """This device's part where every dimension is cut by further axes, major first."""
    for dimension, axes in enumerate(axes_of_dimension):
        if axes:
            length = array.shape[dimension] // devices.count(axes)
            start = devices.place(axes) * length
            array = lax.dynamic_slice_in_dim(array, start, length, dimension)
    return array


def reduce_over(array: Any, axes: Sequence[int], operator: str, devices: Devices) -> Any:
    """All terms over `axes` joined, on every device.

    Raises:
      NotImplementedError: `jax.lax` has no collective of this operator (products).
    """
    names = devices.named(axes)
    if operator in _ON_BOOLEANS and array.dtype == bool:
        joined = _ON_BOOLEANS[operator](array.astype(jnp.uint8), names)
        return joined.astype(bool)
    if operator not in _REDUCTIONS:
        raise NotImplementedError(f"jax.lax has no all-reduce of {operator} on {array.dtype}")
    return _REDUCTIONS[operator](array, names)


def reduce_scatter(array: Any, onto: Mapping[int, Sequence[int]], devices: Devices) -> Any:
    """This device's part of a sum whose terms are spread over the axes of `onto`.

    Args:
      array: the terms.
      onto: for some dimensions, the axes that come to shard them, major first.
      devices: the mesh.
    """
    axes = [axis for dimension in sorted(onto) for axis in onto[dimension]]
    if array.dtype == bool:  # of a gather
        return reduce_scatter(array.astype(jnp.uint8), onto, devices).astype(bool)
    if len(onto) == 1:
        (dimension,) = onto
        return lax.psum_scatter(array, devices.named(axes), scatter_dimension=dimension, tiled=True)
    # One collective has one dimension: bring the parts of all dimensions together in front.
    shape: list[int] = []
    front: list[int] = []
    for dimension, size in enumerate(array.shape):
        if dimension in onto:
            count = devices.count(onto[dimension])
            front.append(len(shape))
            shape += [count, size // count]
        else:
            shape.append(size)
    rest = [place for place in range(len(shape)) if place not in front]
    parts = lax.transpose(lax.reshape(array, shape), [*front, *rest])
    local = [shape[place] for place in rest]
    parts = lax.reshape(parts, [devices.count(axes), *local])
    mine = lax.psum_scatter(parts, devices.named(axes), scatter_dimension=0, tiled=True)
    return lax.reshape(mine, local)
