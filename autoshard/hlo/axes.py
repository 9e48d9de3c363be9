"""From device numbers back to the axes of the user's mesh.

Every axis is cut into its prime factors, major first; these **fine axes** are numbered through the
mesh. A set of groups, of pairs, or of numbers that differ from device to device runs along those
fine axes whose coordinate it depends on; put together again they are printed as Shardy prints them,
`x` for a whole axis and `x:(1)2` for a part (see `autoshard.lower.axes`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from autoshard.hlo.groups import Groups, Pairs
from autoshard.lower.axes import Axis, printed_axes
from autoshard.plan import MeshShape

AxisSet = frozenset[int]


class FineMesh:
    """A mesh cut into prime factors; sets of axes are sets of their numbers."""

    def __init__(self, mesh: MeshShape) -> None:
        self.mesh = mesh
        self.axes: list[Axis] = []
        self.sizes: list[int] = []
        self.owner: list[int] = []
        for number, (name, size) in enumerate(zip(mesh.names, mesh.sizes, strict=True)):
            before = 1
            for prime in _primes(size):
                self.axes.append((name, (before, prime)))
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

    def of_values(self, values: np.ndarray) -> AxisSet:
        """The axes on which `values`, one row per device, depend."""
        shape = (*(self.sizes or [1]), -1)
        grid = np.asarray(values).reshape(self.devices, -1).reshape(shape)
        return frozenset(
            axis for axis in range(len(self.sizes)) if (grid != grid.take([0], axis=axis)).any()
        )

    def of_names(self, names: Iterable[str]) -> AxisSet:
        """Whole axes by name."""
        wanted = set(names)
        return frozenset(n for n, (name, _) in enumerate(self.axes) if name in wanted)

    def size(self, axes: AxisSet) -> int:
        """How many devices lie along `axes`."""
        return math.prod(self.sizes[axis] for axis in axes)

    def owners(self, axes: AxisSet) -> tuple[int, ...]:
        """The numbers of the mesh axes of which `axes` are parts, in mesh order."""
        return tuple(sorted({self.owner[axis] for axis in axes}))

    def printed(self, axes: AxisSet) -> tuple[str, ...]:
        """Names in mesh order, adjacent parts of an axis joined."""
        sizes = dict(zip(self.mesh.names, self.mesh.sizes, strict=True))
        return printed_axes([self.axes[axis] for axis in axes], sizes)

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
