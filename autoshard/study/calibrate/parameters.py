"""The numbers of a machine that times can tell: efficiencies, latencies and overlap.

Data-sheet figures (peaks, bandwidths, sizes) stay as they are; what programs reach of them is
fitted. Each parameter is a `Parameter` with physical bounds:

    chip.matmul_efficiency, chip.memory_efficiency, network[i].efficiency     above 0, at most 1
    chip.launch_seconds                                                       at least 1 ns
    network[i].latency_seconds, .start_seconds (a switch), .hop_seconds (a torus)   at least 0
    overlap                                                                   0 to 1

The fit works on **coordinates** without units: the logarithm of an efficiency, because times go
with its inverse and errors are relative, seconds in units of a scale, and overlap as it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from autoshard.machine.machine import Machine
from autoshard.machine.network import Torus

LEAST_LAUNCH_SECONDS = 1e-9
"""About one cycle of a clock; a launch that costs nothing would make ties in a search."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One number of a machine.

    Attributes:
      name: its path in a machine file, such as ``network[0].efficiency``.
      kind: "efficiency", "seconds" or "overlap".
      label: what it belongs to, for people: the name of the network level, or nothing.
      level: index of the network level, or None.
    """

    name: str
    kind: Literal["efficiency", "seconds", "overlap"]
    label: str = ""
    level: int | None = None

    @property
    def field(self) -> str:
        """The name of the field that holds it."""
        return self.name.rpartition(".")[2]

    @property
    def least(self) -> float:
        """The smallest value that it may have; an efficiency is above it."""
        return LEAST_LAUNCH_SECONDS if self.field == "launch_seconds" else 0.0

    @property
    def most(self) -> float:
        """The largest value that it may have."""
        return math.inf if self.kind == "seconds" else 1.0

    def __str__(self) -> str:
        return f"{self.name} ({self.label})" if self.label else self.name


def parameters(machine: Machine) -> tuple[Parameter, ...]:
    """Return the parameters of a machine, chip first, network from the innermost level."""
    found = [
        Parameter("chip.matmul_efficiency", "efficiency"),
        Parameter("chip.memory_efficiency", "efficiency"),
        Parameter("chip.launch_seconds", "seconds"),
    ]
    for index, level in enumerate(machine.network):
        torus = isinstance(level, Torus)
        fixed = ("hop_seconds",) if torus else ("latency_seconds", "start_seconds")
        found.append(Parameter(f"network[{index}].efficiency", "efficiency", level.name, index))
        found += [
            Parameter(f"network[{index}].{one}", "seconds", level.name, index) for one in fixed
        ]
    return (*found, Parameter("overlap", "overlap"))


def value(machine: Machine, parameter: Parameter) -> float:
    """Return what a machine says of one of its parameters."""
    if parameter.level is not None:
        return float(getattr(machine.network[parameter.level], parameter.field))
    owner = machine if parameter.kind == "overlap" else machine.chip
    return float(getattr(owner, parameter.field))


def with_values(machine: Machine, values: Mapping[Parameter, float]) -> Machine:
    """Return the machine with other values of some of its parameters."""
    chip: dict[str, float] = {}
    levels: dict[int, dict[str, float]] = {}
    whole: dict[str, float] = {}
    for parameter, number in values.items():
        if parameter.level is not None:
            levels.setdefault(parameter.level, {})[parameter.field] = number
        else:
            (whole if parameter.kind == "overlap" else chip)[parameter.field] = number
    network = tuple(
        replace(level, **levels[index]) if index in levels else level  # type: ignore[arg-type]
        for index, level in enumerate(machine.network)
    )
    return replace(
        machine,
        chip=replace(machine.chip, **chip) if chip else machine.chip,  # type: ignore[arg-type]
        network=network,
        **whole,  # type: ignore[arg-type]
    )


def to_coordinate(parameter: Parameter, number: float, scale: float) -> float:
    """Return the coordinate of a value; `scale` is in seconds and for seconds alone."""
    if parameter.kind == "efficiency":
        return math.log(number)
    return number / scale if parameter.kind == "seconds" else number


def from_coordinate(parameter: Parameter, coordinate: float, scale: float) -> float:
    """Return the value of a coordinate, within the bounds."""
    if parameter.kind == "efficiency":
        return min(math.exp(coordinate), parameter.most)
    number = coordinate * scale if parameter.kind == "seconds" else coordinate
    return min(max(number, parameter.least), parameter.most)
