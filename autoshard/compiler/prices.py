"""The machine's prices for what the compiler gives no time for.

The same laws as the planner's: a roofline for compute, `autoshard.cost.collective` for collectives.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from autoshard.compiler.hlo.axes import FineMesh
from autoshard.compiler.hlo.collectives import Found
from autoshard.compiler.hlo.work import Work
from autoshard.cost.collective import KINDS, MeshTopology
from autoshard.cost.roofline import op_seconds
from autoshard.machine.host import Direction
from autoshard.machine.machine import Machine
from autoshard.plan.plan import MeshShape

_DTYPES = {
    "bf16": "bfloat16",
    "f16": "float16",
    "f32": "float32",
    "f64": "float64",
    "s8": "int8",
    "u8": "uint8",
}
_LIKE = {"ragged_all_to_all": "all_to_all", "collective_broadcast": "all_gather"}
"""Collectives that are priced as another."""


@dataclass(frozen=True, slots=True)
class MachinePrices:
    """Prices of one machine and mesh, for `autoshard.compiler.hlo.timeline`."""

    machine: Machine
    mesh: MeshShape
    _whole: MeshTopology = field(init=False, repr=False, compare=False)
    _parts: MeshTopology = field(init=False, repr=False, compare=False)
    _fine: FineMesh = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        fine = FineMesh(self.mesh)
        object.__setattr__(self, "_fine", fine)
        object.__setattr__(self, "_whole", MeshTopology(self.machine, self.mesh.sizes))
        sizes = tuple(fine.sizes) or (1,)
        object.__setattr__(self, "_parts", MeshTopology(self.machine, sizes))

    def compute_seconds(self, work: Work) -> float:
        """The roofline of one instruction, and its launch."""
        chip = self.machine.chip
        dtype = _DTYPES.get(work.dtype, work.dtype)
        dtype = "float8" if dtype.startswith("f8") else dtype
        vector = work.exponentials * chip.exponential_flops
        moved = work.bytes + work.scattered * chip.transaction_bytes
        return max(
            op_seconds(chip, work.flops, moved, dtype),
            op_seconds(chip, vector, moved, unit="vector"),
        )

    def launch_seconds(self) -> float:
        """The start of one kernel."""
        return self.machine.chip.launch_seconds

    def copy_seconds(self, size: int) -> float:
        """A copy of `size` bytes between the device's memories."""
        chip = self.machine.chip
        return size / chip.memory_rate

    def least_seconds(self, size: int) -> float:
        """`size` bytes at the memory's own bandwidth."""
        return size / self.machine.chip.memory_bandwidth

    def transfer_seconds(self, direction: Direction, size: int) -> float:
        """A transfer of `size` bytes over the host's link; nothing where the machine has none."""
        host = self.machine.host
        return 0.0 if host is None else host.latency_seconds + size / host.rate(direction)

    def collective_seconds(self, kind: str, found: Found, size: float) -> float:
        """A collective over the axes of `found`; over all axes where its groups lie along none."""
        kind = _LIKE.get(kind, kind)
        if kind not in KINDS:
            kind = "collective_permute"
        if found.axes is None:
            everywhere = tuple(range(len(self.mesh.sizes)))
            return self._whole.collective_seconds(kind, everywhere, size)
        owners = self._fine.owners(found.axes)
        if self._fine.of_names(self.mesh.names[owner] for owner in owners) == found.axes:
            return self._whole.collective_seconds(kind, owners, size)
        return self._parts.collective_seconds(kind, tuple(sorted(found.axes)), size)
