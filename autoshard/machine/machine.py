"""What a cluster can do: its chips, how they are wired, and how much of the peak is reached.

A **machine** is `n` equal chips and a network of nested levels, the innermost first:

    v5p-64          torus 4x4x4
    2xv5p-64        torus 4x4x4, then a switch of 2 slices (the data-center network)
    h100-64         switch of 8 (NVLink), then a switch of 8 hosts (InfiniBand)

The sizes of the levels multiply to `n`. Bandwidths are bytes per second that **one chip sends in
one direction** while all the others do the same: a host whose 8 chips share a 400 GB/s network card
has 50 GB/s per chip. A torus gives the figure of one link, of which a chip has two per dimension.
Every rate stands beside an `efficiency`, the fraction of it that programs reach; the product is
what the cost laws in `autoshard.cost` use.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from autoshard.machine.chip import Chip
from autoshard.machine.compiler import with_flags
from autoshard.machine.file import MachineError
from autoshard.machine.host import Host
from autoshard.machine.network import Level, Network, Switch
from autoshard.units import counted


@dataclass(frozen=True, slots=True)
class Range:
    """The values that a number of a machine may have, by its path (`autoshard.machine.numbers`)."""

    path: str
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Machine:
    """Equal chips and the nested levels of their network, innermost first.

    Attributes:
      name: the name under which it was loaded.
      family: preset or file it came from.
      chip: the accelerator.
      network: levels from the innermost; their sizes multiply to `chips`.
      overlap: fraction in [0, 1] of a collective's time that hides behind compute when nothing but
        its own inputs delays it.
      sources: what the numbers were read from.
      ranges: of the numbers that are known to lie between two values; the other fields have what
        they are taken for.
      dispatch_seconds: in which the controller of several meshes enqueues one program on this one.
      host: of the chips; None where nothing is known of it, so that no array may lie there.
    """

    name: str
    family: str
    chip: Chip
    network: Network
    overlap: float
    sources: tuple[str, ...] = field(default=(), compare=False)
    ranges: tuple[Range, ...] = field(default=(), compare=False)
    dispatch_seconds: float = 0.0
    host: Host | None = None

    def __post_init__(self) -> None:
        if not self.network:
            raise MachineError(f"machine {self.name!r} has no network level; give at least one")

    @property
    def chips(self) -> int:
        """Number of chips, as JAX counts devices."""
        return math.prod(level.chips for level in self.network)

    def __str__(self) -> str:
        levels = ", then ".join(map(str, self.network))
        host = f"; {self.host}" if self.host else ""
        return f"{self.name}: {self.chips} x {self.chip}; {levels}; overlap {self.overlap:g}{host}"


def under_flags(machine: Machine, flags: str) -> Machine:
    """The machine, under its name, with a set of its compiler's flags.

    Raises:
      ValueError: the compiler has no such set.
    """
    chip = machine.chip
    return replace(machine, chip=replace(chip, compiler=with_flags(chip.compiler, flags)))


def submachine(machine: Machine, chips: int) -> Machine:
    """Return a part of a machine with fewer chips, inner levels filled first.

    A torus is cut along its major dimensions; a dimension that is cut loses its wrap-around.

    Raises:
      MachineError: the levels cannot be cut to that number.

    >>> print(submachine(load("v5p-64"), 16).network[0])
    ICI 1|x4x4 (100 GB/s a link)
    """
    levels: list[Level] = []
    left = chips
    for level in machine.network:
        if isinstance(level, Switch):
            size = math.gcd(left, level.size) if left % level.size else level.size
            levels.append(replace(level, size=size))
            left //= size
            continue
        sizes: list[int] = []
        for length in reversed(level.dimensions):
            sizes.insert(0, math.gcd(left, length))
            left //= sizes[0]
        kept = zip(sizes, level.dimensions, level.wraps, strict=True)
        wraps = tuple(wrap and size == length for size, length, wrap in kept)
        levels.append(replace(level, dimensions=tuple(sizes), wraps=wraps))
    if left != 1:
        shape = " then ".join(map(str, machine.network))
        raise MachineError(
            f"{machine.name} ({shape}) has no part of {counted(chips, 'chip')}; take a divisor "
            "of its levels"
        )
    kept = [number for number, level in enumerate(levels) if level.chips > 1] or [0]
    return replace(
        machine,
        name=f"{machine.name}[{chips}]",
        network=tuple(levels[number] for number in kept),
        ranges=moved_ranges(machine.ranges, kept),
    )


def moved_ranges(ranges: Iterable[Range], kept: Sequence[int]) -> tuple[Range, ...]:
    """The ranges where only some levels of the network are left, by their numbers of before."""
    moved = {f"network[{before}]": f"network[{now}]" for now, before in enumerate(kept)}
    found = []
    for one in ranges:
        table, dot, key = one.path.partition(".")
        if not table.startswith("network"):
            found.append(one)
        elif table in moved:
            found.append(replace(one, path=f"{moved[table]}{dot}{key}"))
    return tuple(found)
