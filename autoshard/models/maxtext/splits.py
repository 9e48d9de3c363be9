"""The splits of a machine's devices over the axes of a framework's mesh that are worth pricing.

A split gives every axis a size; the sizes multiply to the number of devices. Of the axes it needs
to be known what the model asks of them, which a trace with that axis alone tells (`AxisUse`):

* axes of one use are interchangeable for this model (on a dense model MaxText's `expert` cuts what
  `fsdp` cuts), so only the first of them is split;
* an axis of a use that cuts nothing would leave devices with the same work;
* a size must divide every dimension that the axis cuts.

`splits` are all those with some number of axes above one, and `neighbours` go on from a good one:
a prime factor moves from one axis to another. Nothing here knows a framework.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

Split = tuple[tuple[str, int], ...]
"""Axes with more than one device and their sizes, in the order of the framework's mesh."""


@dataclass(frozen=True, slots=True)
class AxisUse:
    """What a model asks of an axis, where that is the only one with more than one device.

    Attributes:
      layouts: for everything that the model constrains, in its order: the shape, and the dimension
        that the axis cuts, or None.
      code: what the model computes otherwise than with one device, in any form that can be
        compared.
    """

    layouts: tuple[tuple[tuple[int, ...], int | None], ...]
    code: object = None

    @property
    def cut(self) -> frozenset[int]:
        """The sizes of the dimensions that the axis cuts."""
        return frozenset(shape[at] for shape, at in self.layouts if at is not None)

    def allows(self, size: int) -> bool:
        """Whether so many devices cut all of these dimensions evenly."""
        return all(dimension % size == 0 for dimension in self.cut)


def distinct(uses: Mapping[str, AxisUse]) -> dict[str, tuple[str, ...]]:
    """The axes that do different things, each with those that do the same.

    >>> use = AxisUse((((8, 4), 0),))
    >>> distinct({"fsdp": use, "tensor": AxisUse((((8, 4), 1),)), "expert": use})
    {'fsdp': ('expert',), 'tensor': ()}
    """
    found: dict[str, list[str]] = {}
    for axis, use in uses.items():
        if not use.cut:
            continue
        first = next((known for known in found if uses[known] == use), None)
        if first is None:
            found[axis] = []
        else:
            found[first].append(axis)
    return {axis: tuple(alike) for axis, alike in found.items()}


def splits(
    devices: int, uses: Mapping[str, AxisUse], order: Sequence[str], *, axes: int
) -> list[Split]:
    """All splits with so many axes above one.

    Args:
      devices: how many there are.
      uses: of the axes that do different things.
      order: of the axes in the framework's mesh.
      axes: above one.
    """
    found: list[Split] = []
    for names in itertools.combinations(uses, axes):
        for sizes in _products(devices, axes):
            pairs = dict(zip(names, sizes, strict=True))
            if all(uses[axis].allows(size) for axis, size in pairs.items()):
                found.append(ordered(pairs, order))
    return found


def neighbours(split: Split, uses: Mapping[str, AxisUse], order: Sequence[str]) -> list[Split]:
    """The splits in which one prime factor has moved from one axis to another.

    >>> use = AxisUse((((64,), 0),))
    >>> neighbours((("data", 4),), {"data": use, "tensor": use}, ("data", "tensor"))
    [(('data', 2), ('tensor', 2))]
    """
    sizes = dict(split)
    found = []
    for source, target in itertools.permutations(uses, 2):
        for factor in _primes(sizes.get(source, 1)):
            moved = {
                **sizes,
                source: sizes[source] // factor,
                target: sizes.get(target, 1) * factor,
            }
            if uses[target].allows(moved[target]):
                found.append(ordered(moved, order))
    return found


def ordered(sizes: Mapping[str, int], order: Sequence[str]) -> Split:
    """The axes above one in the order of a mesh."""
    return tuple((axis, sizes[axis]) for axis in order if sizes.get(axis, 1) > 1)


def shown(split: Split) -> str:
    """As `fsdp=16 tensor=4`."""
    return " ".join(f"{axis}={size}" for axis, size in split) or "one device"


def _products(total: int, count: int) -> Iterator[tuple[int, ...]]:
    """Sizes above one that multiply to a total, in order."""
    if count == 1:
        if total > 1:
            yield (total,)
        return
    for size in range(2, total // 2 + 1):
        if total % size == 0:
            yield from ((size, *rest) for rest in _products(total // size, count - 1))


def _primes(number: int) -> list[int]:
    """Its different prime factors."""
    return [p for p in range(2, number + 1) if number % p == 0 and _is_prime(p)]


def _is_prime(number: int) -> bool:
    return all(number % k for k in range(2, math.isqrt(number) + 1))
