"""Machines by name, or from a file of the presets' form.

`load` reads a preset by name, or a TOML file of the same form:

    family-chips    v5p-64, v5e-16, h100-8, gb200-nvl72-72    chips as JAX counts devices
    family-AxBxC    v5p-4x4x8                                 the torus, spelled out
    KxNAME          2xv5p-64                                  K slices over the slow network
    path/to/my.toml                                           with `chips` or `topology` in it
    NAME@FLAGS      h100-64@recipe                            with a set of its compiler's flags

A TPU7x chip is two devices to JAX; there, "chip" means one such device. Other names, of clouds,
vendors and SLURM, are in `autoshard.machine.names`.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from importlib import resources
from pathlib import Path

from autoshard.files import read_text
from autoshard.files.errors import shown
from autoshard.machine.chip import Chip
from autoshard.machine.file import MachineError, MachineFile, read
from autoshard.machine.level_rules import MOST_CHIPS, SwitchRules, TorusRules
from autoshard.machine.machine import Machine, Range, moved_ranges, under_flags
from autoshard.machine.names import (
    CORES,
    Named,
    count_of,
    machine_types,
    name_and_flags,
    parse_name,
)
from autoshard.machine.network import Level, Switch, Torus
from autoshard.near import did_you_mean
from autoshard.units import counted


def presets() -> tuple[str, ...]:
    """Return the families that ship with autoshard."""
    folder = resources.files("autoshard") / "machine" / "presets"
    return tuple(sorted(item.name[:-5] for item in folder.iterdir() if item.name.endswith(".toml")))


def load(name_or_path: str | Path, *, chips: int | None = None) -> Machine:
    """Return a machine by preset name, or from a TOML file of the presets' form.

    Args:
      name_or_path: see the module's grammar. A name that ends in ``.toml`` is a path.
      chips: for a file or a bare family, how many chips; overrides the file.

    Raises:
      MachineError: no such preset (near matches are proposed), a number of chips or a torus that
        the hardware does not come in, or a faulty file (every fault is listed).

    >>> print(load("v5p-64").network[0])
    ICI 4x4x4 (100 GB/s a link)
    >>> load("h100-64").chips
    64
    """
    text = str(name_or_path)
    plain, flags = name_and_flags(text)
    if flags:
        return _with_flags(load(plain, chips=chips), flags)
    if text.endswith(".toml"):
        if not Path(text).exists():
            raise MachineError(
                f"there is no machine file {text!r}; give the path of a TOML file, or a name"
            )
        toml = read_text(text, "the machine", error=MachineError)
        return parse(toml, where=text, chips=chips)
    named = parse_name(text)
    size = named.size if chips is None else str(chips)
    if named.family not in presets() or size is None:
        raise MachineError(_unknown(text, named.family))
    if size.endswith("-cores"):
        cores = CORES[named.family]
        raise MachineError(f"{text}: a {named.family} chip has {cores} cores; give a multiple")
    file = read(preset_text(named), where=f"{named.family}.toml")
    return _build(file, text, size, slices=named.slices)


def _with_flags(machine: Machine, flags: str) -> Machine:
    try:
        told = under_flags(machine, flags)
    except ValueError as error:
        raise MachineError(f"{machine.name}@{flags}: {error}") from error
    return replace(told, name=with_flags_named(machine.name, flags))


def with_flags_named(name: str, flags: str) -> str:
    """The name of a machine, as `load` takes it, with a set of its compiler's flags.

    >>> with_flags_named("h100-64", "recipe"), with_flags_named("h100-64@recipe", "default")
    ('h100-64@recipe', 'h100-64@default')
    """
    return f"{name_and_flags(name)[0]}@{flags}"


def preset_text(named: Named) -> str:
    """The file of a preset, with what a machine type has otherwise written in its place."""
    folder = resources.files("autoshard") / "machine" / "presets"
    text = (folder / f"{named.family}.toml").read_text(encoding="utf-8")
    host = named.host
    if host is None:
        return text
    lines = text.splitlines()
    chip = [("[chip]", key, value) for key, value in host.chip.items()]
    between = [("[[network]]", "chip_bandwidth", host.between)] if host.between else []
    for table, key, value in chip + between:
        start = max(k for k, line in enumerate(lines) if line.startswith(table))
        place = next(k for k, line in enumerate(lines) if k > start and line.startswith(f"{key} ="))
        written = f'"{value}"' if isinstance(value, str) else repr(value)
        lines[place] = f"{key} = {written}  # {host.source}"
    lines.insert(lines.index("sources = [") + 1, f'    "{host.source}",')
    return "\n".join(lines) + "\n"


def parse(toml: str, *, where: str, chips: int | None = None) -> Machine:
    """Return the machine that the text of a machine file describes.

    Args:
      toml: the text.
      where: what to call it in an error.
      chips: how many chips; overrides the text.

    Raises:
      MachineError: as `load`.
    """
    file = read(toml, where=where)
    size = file.topology if chips is None else str(chips)
    if size is None:
        raise MachineError(
            f"{where}: it says neither `chips` nor `topology`; write one, or load it with chips="
        )
    return _build(file, file.name, size, slices=file.slices)


def _unknown(text: str, family: str) -> str:
    known = presets()
    lines = [f"no machine {shown(text)}"]
    if family in known:
        lines.append(f"  how many chips? write for example {family}-64")
    sized = re.fullmatch(rf"({'|'.join(known)})[-_ x:]*(\d+)", text.strip().lower())
    asked = did_you_mean(family, (*known, *machine_types()))
    if sized:
        lines.append(f"  did you mean {sized[1]}-{sized[2]}?")
    elif asked and family not in known:
        lines.append(f"  {asked}")
    lines.append(f"  presets, each with a number of chips: {', '.join(known)}")
    lines.append("  or hosts of a machine type, such as 4xa3-megagpu-8g: see `autoshard machines`")
    lines.append("  or give the path of a .toml file of the same form")
    return "\n".join(lines)


def _build(file: MachineFile, name: str, size: str, *, slices: int) -> Machine:
    chip = Chip(**file.chip, compiler=file.compiler)  # type: ignore[arg-type]
    topology = tuple(map(count_of, size.split("x"))) if "x" in size else None
    fixed = math.prod(
        rules.size for rules in file.levels if isinstance(rules, SwitchRules) and rules.size
    )
    has_torus = any(isinstance(rules, TorusRules) for rules in file.levels)
    if topology and not has_torus:
        raise MachineError(f"{name}: {file.name} has no torus to shape; give a number of chips")
    left = math.prod(topology) * fixed if topology else count_of(size)
    if left < 1 or slices < 1:
        raise MachineError(
            f"{name}: {slices} x {left} chips; a machine has at least one chip, as {file.name}-8"
        )
    if left * slices > MOST_CHIPS:
        raise MachineError(
            f"{shown(name)} has too many chips; a machine has {MOST_CHIPS:,} at most"
        )
    network: list[Level] = []
    kept: list[int] = []
    for number, rules in enumerate(file.levels):
        if isinstance(rules, TorusRules):
            network.append(_torus(rules, left, topology, name=name))
            kept.append(number)
            left = 1
            continue
        if rules.size is None:
            units, left, slices = left * slices, 1, 1
        else:
            units = max(unit for unit in range(1, min(rules.size, left) + 1) if left % unit == 0)
            if units < rules.size and units < left and 2 * units < rules.size:
                raise MachineError(
                    f"{name}: {counted(left, 'chip')} do not spread evenly over "
                    f"{rules.name} units of "
                    f"{rules.size}; take a multiple of {rules.size}, or fewer than one unit"
                )
            left //= units
        if units > 1:
            network.append(_switch(rules, units))
            kept.append(number)
    if left * slices > 1:
        raise MachineError(
            f"{name}: no network of {file.name} joins {left * slices} such "
            "units; take one unit, or write a machine file with a [[network]] that does"
        )
    return Machine(
        name=name,
        family=file.name,
        chip=chip,
        network=tuple(network) or (_switch(_switch_rules(file), 1),),
        overlap=file.overlap,
        sources=file.sources,
        ranges=moved_ranges((Range(*one) for one in file.ranges), kept),
        dispatch_seconds=file.dispatch_seconds,
        host=file.host,
    )


def _torus(rules: TorusRules, chips: int, topology: tuple[int, ...] | None, *, name: str) -> Torus:
    shape = topology or rules.standard_shape(chips)
    if shape is None or not rules.allows(shape):
        wanted = "x".join(map(str, topology)) if topology else f"{counted(chips, 'chip')}"
        near = ", ".join(
            f"{'x'.join(map(str, shape))} ({count})"
            for count, shape in rules.nearest(math.prod(topology or (chips,)), 3)
        )
        raise MachineError(
            f"{name}: the hardware does not come as {wanted} in {rules.rank} dimensions; "
            f"nearest: {near}"
        )
    return Torus(
        dimensions=shape,
        wraps=rules.ring_closures(shape),
        link_bandwidth=rules.link_bandwidth,
        hop_seconds=rules.hop_seconds,
        efficiency=rules.efficiency,
        name=rules.name,
    )


def _switch(rules: SwitchRules, units: int) -> Switch:
    return Switch(
        size=units,
        chip_bandwidth=rules.chip_bandwidth,
        latency_seconds=rules.latency_seconds,
        efficiency=rules.efficiency,
        pair_bandwidth=rules.pair_bandwidth,
        pipelined=rules.pipelined,
        start_seconds=rules.start_seconds,
        reduces=rules.reduces,
        name=rules.name,
    )


def _switch_rules(file: MachineFile) -> SwitchRules:
    return next(rules for rules in file.levels if isinstance(rules, SwitchRules))
