"""What a timeline asks of a machine, where the compiler gives no time."""

from __future__ import annotations

from typing import Protocol

from autoshard.compiler.hlo.collectives import Found
from autoshard.compiler.hlo.work import Work
from autoshard.machine.host import Direction


class Prices(Protocol):
    """What the machine takes for things that the compiler gives no time for."""

    def compute_seconds(self, work: Work) -> float:
        """One instruction on one device."""
        ...

    def launch_seconds(self) -> float:
        """The start of one kernel."""
        ...

    def copy_seconds(self, size: int) -> float:
        """A copy of `size` bytes within the device."""
        ...

    def least_seconds(self, size: int) -> float:
        """What no kernel undercuts that reads and writes `size` bytes."""
        ...

    def transfer_seconds(self, direction: Direction, size: int) -> float:
        """A transfer of `size` bytes to the host's memory, or from it."""
        ...

    def collective_seconds(self, kind: str, found: Found, size: float) -> float:
        """A collective of `size` bytes in the meaning of `Move`, over the axes of `found`."""
        ...
