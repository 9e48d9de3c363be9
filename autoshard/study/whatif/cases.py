"""The rows of a sweep: every combination of a cluster, a memory limit and the program's sizes."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autoshard.machine.file import MachineError
from autoshard.machine.load import load, presets
from autoshard.machine.machine import Machine
from autoshard.study.whatif.words import CLUSTER, SweepError
from autoshard.units import format_bytes

MOST_SLICES = 64
"""At most so many slices are joined where the hardware does not come in one piece of a size."""


@dataclass(frozen=True, slots=True)
class Case:
    """One question: these sizes of the program on this machine under this limit.

    `chip` is the family of the machine, or the path of its file; `limit` is in bytes per device.
    """

    sizes: tuple[tuple[str, Any], ...]
    chip: str
    machine: Machine
    limit: float

    def __str__(self) -> str:
        words = [self.machine.name, *(f"{name}={value}" for name, value in self.sizes)]
        return " ".join([*words, f"limit={format_bytes(self.limit).replace(' ', '')}"])


def cases_of(sweep: Mapping[str, Sequence[Any]]) -> tuple[Case, ...]:
    """All rows of a sweep, those of equal sizes and chips next to each other.

    Args:
      sweep: names in full (`autoshard.study.whatif.words.in_full`).

    Raises:
      SweepError: chips that the hardware does not come in, machines that do not exist, or limits
        that are none; all of them are named.
    """
    faults: list[str] = []
    machines: list[tuple[str, Machine]] = []
    if "machine" in sweep:
        for name in sweep["machine"]:
            machines += _found(str(name), None, faults)
    else:
        for chips, chip in itertools.product(sweep["chips"], sweep["chip"]):
            machines += _found(str(chip), chips, faults)
    limits = list(sweep.get("limit", (None,)))
    faults += [
        f"limit {one!r}: give bytes above 0"
        for one in limits
        if one is not None and not (isinstance(one, int | float) and one > 0)
    ]
    if faults:
        raise SweepError("\n  - ".join(["the sweep is faulty:", *dict.fromkeys(faults)]))
    names = [name for name in sweep if name not in CLUSTER]
    combinations = itertools.product(*(sweep[name] for name in names))
    return tuple(
        Case(
            tuple(zip(names, values, strict=True)),
            chip,
            machine,
            machine.chip.usable_bytes if limit is None else float(limit),
        )
        for values in combinations
        for chip, machine in machines
        for limit in limits
    )


def machine_of(chip: str, chips: int) -> Machine:
    """So many chips of a kind, in as few slices as they come in.

    Args:
      chip: a preset without a size (`v5e`), or the path of a machine file.

    Raises:
      MachineError: there is no such chip, or no number of slices has so many.

    >>> machine_of("v5e", 512).name
    '2xv5e-256'
    """
    if chip.endswith(".toml"):
        return load(chip, chips=chips)
    if chip not in presets():
        load(chip if "-" in chip else f"{chip}-{chips}")  # says what there is
        raise MachineError(f"{chip!r} has a size of its own; write the chip alone")
    try:
        return load(f"{chip}-{chips}")
    except MachineError as error:
        for slices in range(2, MOST_SLICES + 1):
            if chips % slices == 0 and chips // slices >= slices:  # pieces, not crumbs
                try:
                    return load(f"{slices}x{chip}-{chips // slices}")
                except MachineError:
                    continue
        raise error


def _found(name: str, chips: Any, faults: list[str]) -> list[tuple[str, Machine]]:
    if chips is not None and not (isinstance(chips, int) and chips > 0):
        faults.append(f"chips {chips!r}: give a whole number from 1 on")
        return []
    try:
        machine = load(name) if chips is None else machine_of(name, chips)
    except MachineError as error:
        faults.append(re.sub(r"\n\s*", "; ", str(error)))
        return []
    return [(name if name.endswith(".toml") else machine.family, machine)]
