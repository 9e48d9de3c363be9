"""The host of some chips: its memory, and the link between it and a chip's.

Arrays in `pinned_host` memory lie in the host's, and cross the link when they are put there and
when they come back:

    seconds = latency_seconds + bytes / (bandwidth x efficiency / shared_by)

Both directions of a link run at once. Chips that share a link are taken to use it at the same time,
since all devices of a step do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from autoshard.units import counted

Direction = Literal["to_host", "from_host"]
DIRECTIONS: tuple[Direction, ...] = ("to_host", "from_host")


@dataclass(frozen=True, slots=True)
class Host:
    """A host, as the chips in it see it.

    Attributes:
      chips: of one host, as JAX counts devices.
      memory_bytes: of a host: what may be pinned for arrays.
      to_bandwidth, from_bandwidth: bytes/s of a link, from a chip to the host and back.
      shared_by: chips that share a link.
      efficiency: fraction of the bandwidths that programs reach.
      latency_seconds: of one transfer.
      name: how the vendor calls the link.
    """

    chips: int
    memory_bytes: float
    to_bandwidth: float
    from_bandwidth: float
    shared_by: int = 1
    efficiency: float = 1.0
    latency_seconds: float = 0.0
    name: str = "host link"

    @property
    def bytes_per_chip(self) -> float:
        """The host memory of one chip, in bytes: all chips of a host hold as much."""
        return self.memory_bytes / self.chips

    def rate(self, direction: Direction) -> float:
        """Bytes/s of one chip's transfers in a direction, while all chips have such."""
        bandwidth = self.to_bandwidth if direction == "to_host" else self.from_bandwidth
        return bandwidth * self.efficiency / self.shared_by

    def __str__(self) -> str:
        link = f"{self.name} to the host ({self.to_bandwidth / 1e9:g} GB/s there"
        link += f", {self.from_bandwidth / 1e9:g} GB/s back"
        shared = f", shared by {self.shared_by} chips" if self.shared_by > 1 else ""
        return (
            f"{link}{shared}), {self.memory_bytes / 2**30:,.0f} GiB for "
            f"{counted(self.chips, 'chip')}"
        )
