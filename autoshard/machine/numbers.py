"""The numbers of a machine, one by one: what each is called, what it does to prices, and its range.

A number has a path, as in the machine's file: `chip.memory_bandwidth`, `chip.peak_flops.bfloat16`,
`network[0].link_bandwidth` (levels count from the innermost that the machine has), `overlap`.

What a number does to the seconds of a step is told by its **cost** u, of which all prices are
functions that never fall, and never grow faster than in proportion:

    a rate, an efficiency       u = 1 / value
    a time, or work             u = value
    a share that is hidden      u = 1 - value

Seconds are affine in the cost of a latency or a share. In the cost of a rate they have corners,
where an op turns from bound by arithmetic to bound by memory, or a collective from one level of the
network to another; such numbers are **hinged** (see `autoshard.study.robust.scenarios`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from autoshard.machine.file import MachineError
from autoshard.machine.machine import Machine, Range

Sense = Literal["rate", "cost", "share", "memory", "overhead"]
"""What more of a number does: seconds fall as its inverse, grow with it, fall with the rest to 1;
there is more memory; more memory is taken."""

_CHIP: dict[str, tuple[str, Sense, bool]] = {
    "vector_flops": ("FLOP/s of the vector unit", "rate", True),
    "memory_bandwidth": ("memory bandwidth", "rate", True),
    "matmul_efficiency": ("efficiency of the matrix unit", "rate", True),
    "memory_efficiency": ("efficiency of the memory", "rate", True),
    "launch_seconds": ("time to start a kernel", "cost", False),
    "exponential_flops": ("work of an exponential", "cost", True),
    "transaction_bytes": ("bytes of a transaction", "cost", True),
    "sm_bandwidth": ("bandwidth of a multiprocessor", "rate", True),
    "memory_bytes": ("memory", "memory", False),
    "reserve_bytes": ("reserve of memory", "overhead", False),
}
_COMPILER: dict[str, tuple[str, Sense, bool]] = {
    "heap_overhead": ("overhead of the heap", "overhead", False),
}
_LEVEL: dict[str, tuple[str, Sense, bool]] = {
    "link_bandwidth": ("bandwidth", "rate", True),
    "chip_bandwidth": ("bandwidth", "rate", True),
    "pair_bandwidth": ("bandwidth of a pair", "rate", True),
    "efficiency": ("efficiency", "rate", True),
    "hop_seconds": ("latency", "cost", False),
    "latency_seconds": ("latency", "cost", False),
    "start_seconds": ("time to start a collective", "cost", False),
    "pipelined": ("pipelining", "share", False),
}
_HOST: dict[str, tuple[str, Sense, bool]] = {
    "memory_bytes": ("memory of a host", "memory", False),
    "to_bandwidth": ("bandwidth to the host", "rate", True),
    "from_bandwidth": ("bandwidth from the host", "rate", True),
    "efficiency": ("efficiency of the host's link", "rate", True),
    "latency_seconds": ("latency of the host's link", "cost", False),
}
_PATH = re.compile(r"(?:(chip|compiler|host)|network\[(\d+)\])\.(\w+)(?:\.([\w-]+))?")


@dataclass(frozen=True, slots=True)
class Number:
    """A number of a machine.

    Attributes:
      path: where it stands.
      name: how a report calls it.
      value: what the machine says.
      sense: what more of it does.
      hinged: whether seconds have corners in it.
    """

    path: str
    name: str
    value: float
    sense: Sense
    hinged: bool = False

    @property
    def of_memory(self) -> bool:
        """Whether it says what fits, and not how long anything takes."""
        return self.sense in ("memory", "overhead")

    def cost(self, value: float) -> float:
        """What seconds grow with, where the number has another value."""
        return 1 / value if self.sense == "rate" else 1 - value if self.sense == "share" else value

    def at_cost(self, cost: float) -> float:
        """The value with that cost."""
        return self.cost(cost)  # each of them is its own inverse


def unit_of(path: str) -> str:
    """The unit of a number, by its path: `s`, `B`, `B/s`, `FLOP/s`, `FLOP` or none.

    >>> unit_of("chip.peak_flops.bfloat16"), unit_of("network[0].link_bandwidth")
    ('FLOP/s', 'B/s')
    """
    key = path.removeprefix("chip.").split(".")[-1] if "peak_flops" not in path else "peak_flops"
    if key == "exponential_flops":
        return "FLOP"
    for end, unit in (
        ("_flops", "FLOP/s"),
        ("_bandwidth", "B/s"),
        ("_seconds", "s"),
        ("_bytes", "B"),
    ):
        if key.endswith(end):
            return unit
    return ""


def numbers(machine: Machine) -> tuple[Number, ...]:
    """All numbers of a machine that prices or limits depend on, as its file orders them."""
    chip = machine.chip
    found = [
        Number(
            f"chip.peak_flops.{dtype}", f"FLOP/s of the matrix unit in {dtype}", rate, "rate", True
        )
        for dtype, rate in chip.peak_flops.items()
    ]
    for key, (name, sense, hinged) in _CHIP.items():
        found.append(Number(f"chip.{key}", name, getattr(chip, key), sense, hinged))
    for key, (name, sense, hinged) in _COMPILER.items():
        found.append(Number(f"compiler.{key}", name, getattr(chip.compiler, key), sense, hinged))
    for key, (name, sense, hinged) in _HOST.items() if machine.host else ():
        found.append(Number(f"host.{key}", name, getattr(machine.host, key), sense, hinged))
    for number, level in enumerate(machine.network):
        for key, (name, sense, hinged) in _LEVEL.items():
            value = getattr(level, key, math.inf)
            if math.isfinite(value):
                path = f"network[{number}].{key}"
                found.append(Number(path, f"{name} of {level.name}", value, sense, hinged))
    return (*found, Number("overlap", "overlap", machine.overlap, "share"))


def number(machine: Machine, path: str) -> Number:
    """The number at a path.

    Raises:
      MachineError: there is none; the message lists those that are there.
    """
    for one in (known := numbers(machine)):
        if one.path == path:
            return one
    paths = ", ".join(one.path for one in known)
    raise MachineError(f"{machine.name} has no number {path!r}; known: {paths}")


def with_numbers(machine: Machine, values: Mapping[str, float]) -> Machine:
    """The machine with other values of some numbers, by their paths.

    Raises:
      MachineError: a path is none.
    """
    chip, levels, overlap = machine.chip, list(machine.network), machine.overlap
    host = machine.host
    for path, value in values.items():
        match = _PATH.fullmatch(number(machine, path).path)
        if match is None:
            overlap = value
        elif match[3] == "peak_flops":
            chip = replace(chip, peak_flops={**chip.peak_flops, match[4]: value})
        elif match[1] == "compiler":
            chip = replace(chip, compiler=replace(chip.compiler, **{match[3]: value}))
        elif match[1] == "host":
            assert host is not None
            host = replace(host, **{match[3]: value})
        elif match[1]:
            chip = replace(chip, **{match[3]: value})
        else:
            level = int(match[2])
            levels[level] = replace(levels[level], **{match[3]: value})
    network = tuple(levels)
    return replace(machine, chip=chip, network=network, overlap=overlap, host=host)


def ranges_of(
    machine: Machine,
    given: Mapping[str, tuple[float, float]] | None = None,
    *,
    spread: float = 0.0,
) -> tuple[Range, ...]:
    """The ranges of a machine's numbers: its own, with others in their place or beside them.

    Args:
      machine: which may have ranges.
      given: (least, most) by path.
      spread: every rate, time and share without a range gets one of this share to both sides;
        efficiencies do not, as they multiply rates.

    Raises:
      MachineError: a path is none, or a range does not hold the machine's own value, or leaves what
        such a number may be; all of them are named.
    """
    known = {one.path: one for one in numbers(machine)}
    found = {one.path: one for one in machine.ranges}
    faults = []
    for path, (low, high) in (given or {}).items():
        one = known.get(path)
        if one is None:
            faults.append(f"{path}: there is no such number; known: {', '.join(known)}")
        elif not low <= one.value <= high:
            faults.append(f"{path}: {low:g} to {high:g} does not hold its value of {one.value:g}")
        elif high > _most(one) or low < 0 or (one.sense == "rate" and low == 0):
            faults.append(f"{path}: {low:g} to {high:g} is more than it may be")
        else:
            found[path] = Range(path, low, high)
    if faults:
        raise MachineError("\n  - ".join(["the ranges are faulty:", *faults]))
    for path, one in known.items() if spread else ():
        if path not in found and one.value and not one.of_memory and "efficiency" not in path:
            high = max(one.value, min(one.value * (1 + spread), _most(one)))
            found[path] = Range(path, one.value * (1 - spread), high)
    ordered = [found[path] for path in known if path in found]
    return tuple(one for one in ordered if one.low < one.high)


def _most(one: Number) -> float:
    return 1.0 if one.sense == "share" or "efficiency" in one.path else math.inf
