"""The mesh as a module numbers its devices: all of them, or those of one slice.

A module's partitions are the devices of the mesh in row-major order. With several slices, XLA:TPU
schedules the program of one slice alone; its partitions are that slice's devices, in order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autoshard.compiler.hlo.axes import AxisSet, FineMesh
from autoshard.compiler.hlo.events import kind_between_slices
from autoshard.compiler.hlo.groups import joined, parse_groups, parse_pairs
from autoshard.compiler.hlo.module import Instruction, Module
from autoshard.plan.plan import MeshShape
from autoshard.units import counted


class Partitions:
    """Where a module's partitions stand in a mesh.

    Args:
      mesh: of all devices.
      module: of all of them, or of one slice.
      slices: for every device of the mesh its slice, where there are several.

    Raises:
      ValueError: the module is for another number of devices.
    """

    def __init__(
        self, mesh: MeshShape, module: Module, slices: Sequence[int] | None = None
    ) -> None:
        self.fine = fine = FineMesh(mesh)
        self.partitions = module.devices
        self.members = tuple(range(fine.devices))
        self.between: AxisSet = frozenset()
        if slices is not None:
            self.between = fine.of_values(np.array(slices))
        if slices is not None and module.devices < fine.devices:
            self.members = tuple(n for n, place in enumerate(slices) if place == slices[0])
        if module.devices != len(self.members):
            raise ValueError(
                f"module {module.name!r} is for {counted(module.devices, 'device')}, the mesh "
                f"({fine.mesh}) "
                f"has {len(self.members)}"
            )

    def groups(self, collective: Instruction) -> tuple[int, AxisSet | None]:
        """(devices in a group, axes) of a collective."""
        if kind_between_slices(collective):
            return self.fine.size(self.between), self.between
        pairs_text = collective.attribute("source_target_pairs")
        if pairs_text is not None:
            pairs = tuple(
                (self.members[a], self.members[b]) for a, b in parse_pairs(pairs_text) if a != b
            )
            return max(map(len, joined(pairs)), default=1), self.fine.of_pairs(pairs)
        groups = parse_groups(collective.attribute("replica_groups") or "", self.partitions)
        there = tuple(tuple(self.members[device] for device in group) for group in groups)
        return max(map(len, there), default=1), self.fine.of_groups(there)

    def depends_on(self, values: np.ndarray) -> AxisSet:
        """The axes on which `values`, one row per partition, depend."""
        return self.fine.of_values(values, self.members)
