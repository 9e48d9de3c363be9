"""From device numbers back to the axes of the user's mesh.

Every axis is cut into its prime factors, major first; these **fine axes** are numbered through the
mesh. A set of groups, of pairs, or of numbers that differ from device to device runs along those
fine axes whose coordinate it depends on; put together again they are printed as Shardy prints them,
`x` for a whole axis and `x:(1)2` for a part (see `autoshard.lower.axes`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from autoshard.compiler.hlo.groups import Groups, Pairs
from autoshard.lower.axes import Axis, printed_axes
from autoshard.plan.plan import MeshShape

AxisSet = frozenset[int]


class FineMesh:
    """A mesh cut into prime factors; sets of axes are sets of their numbers."""

    def __init__(self, mesh: MeshShape) -> None:
        self.mesh = mesh
        self._parts: list[tuple[str, tuple[int, int]]] = []
        self.sizes: list[int] = []
        self.owner: list[int] = []
        for number, (name, size) in enumerate(zip(mesh.names, mesh.sizes, strict=True)):
            before = 1
            for prime in _primes(size):
                self._parts.append((name, (before, prime)))
                self.sizes.append(prime)
                self.owner.append(number)
                before *= prime
        self.devices = math.prod(self.sizes)
        shape = tuple(self.sizes) or (1,)
        self._coordinates = np.stack(np.unravel_index(np.arange(self.devices), shape), axis=1)

    def of_groups(self, groups: Groups) -> AxisSet | None:
        """The axes along which all groups lie; None where no axes make the groups.

        Raises:
          ValueError: a device is not in the mesh.
        """
        self._check(device for group in groups for device in group)
        found: AxisSet | None = None
        for group in groups:
            here = self._coordinates[list(group)]
            varying = self._numbers((here != here[0]).any(axis=0))
            if self.size(varying) != len(group) or (found is not None and varying != found):
                return None
            found = varying
        return found

    def of_pairs(self, pairs: Pairs) -> AxisSet:
        """The axes in which the sources and targets of a permute differ."""
        if not pairs:
            return frozenset()
        self._check(device for pair in pairs for device in pair)
        sources, targets = (self._coordinates[list(side)] for side in zip(*pairs, strict=True))
        return self._numbers((sources != targets).any(axis=0))

    def of_values(self, values: np.ndarray, members: Sequence[int] | None = None) -> AxisSet:
        """The axes on which `values` depend: along which they differ between two devices.

        Args:
          values: one row for each of `members`.
          members: devices; by default all.
        """
        there = range(self.devices) if members is None else members
        rows = np.asarray(values).reshape(len(there), -1)
        found: set[int] = set()
        for axis in range(len(self.sizes)):
            others = self._coordinates[list(there)].copy()
            others[:, axis] = 0
            _, group = np.unique(others, axis=0, return_inverse=True)
            first = np.zeros((group.max() + 1, rows.shape[1]), dtype=rows.dtype)
            first[group.ravel()[::-1]] = rows[::-1]
            if (first[group.ravel()] != rows).any():
                found.add(axis)
        return frozenset(found)

    def of_names(self, names: Iterable[str]) -> AxisSet:
        """Whole axes by name."""
        wanted = set(names)
        return frozenset(n for n, (name, _) in enumerate(self._parts) if name in wanted)

    def of_printed(self, names: Iterable[str]) -> AxisSet:
        """Axes and parts of axes as they are printed: `x`, `y:(1)2`."""
        found: set[int] = set()
        for text in names:
            name, _, part = text.partition(":(")
            before, _, size = part.partition(")")
            first = int(before or 1)
            last = first * int(size) if size else None
            for number, (axis, (low, _)) in enumerate(self._parts):
                if axis == name and low >= first and (last is None or low < last):
                    found.add(number)
        return frozenset(found)

    def size(self, axes: AxisSet) -> int:
        """How many devices lie along `axes`."""
        return math.prod(self.sizes[axis] for axis in axes)

    def owners(self, axes: AxisSet) -> tuple[int, ...]:
        """The numbers of the mesh axes of which `axes` are parts, in mesh order."""
        return tuple(sorted({self.owner[axis] for axis in axes}))

    def printed(self, axes: AxisSet) -> tuple[str, ...]:
        """Names in mesh order, adjacent parts of an axis joined."""
        sizes = dict(zip(self.mesh.names, self.mesh.sizes, strict=True))
        parts: list[Axis] = [self._parts[axis] for axis in axes]
        return printed_axes(parts, sizes)

    def _numbers(self, varies: np.ndarray) -> AxisSet:
        return frozenset(int(axis) for axis in np.flatnonzero(varies[: len(self.sizes)]))

    def _check(self, devices: Iterable[int]) -> None:
        outside = sorted({device for device in devices if not 0 <= device < self.devices})
        if outside:
            raise ValueError(
                f"a collective names devices {outside[:8]}, but the mesh ({self.mesh}) has "
                f"{self.devices}"
            )


def _primes(size: int) -> list[int]:
    found: list[int] = []
    divisor = 2
    while size > 1:
        while size % divisor == 0:
            found.append(divisor)
            size //= divisor
        divisor += 1
    return found
