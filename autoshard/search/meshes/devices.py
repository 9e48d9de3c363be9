"""Finds the machine of a mesh of JAX devices: the preset of their kind, with as many chips.

The kind is `jax.Device.device_kind` (https://docs.jax.dev/en/latest/jax.html#jax.Device). Vendors
append more text to the names of TPUs below. CPU devices stand in for H100s, as nobody plans for
CPUs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import Mesh

from autoshard.lower.interpret import LoweringError
from autoshard.machine.file import MachineError
from autoshard.machine.gpu_names import gpu_of
from autoshard.machine.load import load
from autoshard.machine.machine import Machine, submachine
from autoshard.units import counted

KINDS = {
    "TPU v4": "v4",
    "TPU v5 lite": "v5e",
    "TPU v5e": "v5e",
    "TPU v5": "v5p",
    "TPU v6": "v6e",
    "TPU7x": "v7x",
    "TPU v7": "v7x",
    "cpu": "h100",
}
"""Presets by a substring of the device kind; the first match applies. GPUs are in `gpu_names`."""


def machines_of(
    meshes: Sequence[Mesh], machine: str | Machine | Sequence[str | Machine] | None = None
) -> list[Machine | None]:
    """Return the machine of every mesh; None for a mesh of one device, which shards nothing.

    Args:
      machine: a machine, the name of a machine, or the name of a preset without its size; one for
        each mesh, or one for all. By default the preset of the devices' kind.

    Raises:
      LoweringError: a kind of device has no preset, or the number of machines is not that of the
        meshes.
      MachineError: there is no such machine, or it has no part of a mesh's size.
    """
    if machine is None:
        unknown = sorted({kind for mesh in meshes if preset_of(kind := _kind(mesh)) is None})
        if unknown:
            raise LoweringError(
                f"no preset is known for devices of kind {', '.join(map(repr, unknown))}: say by "
                "`machine` what they can do, or by `layout` how arrays are sharded"
            )
        given: Sequence[str | Machine] = [preset_of(_kind(mesh)) or "" for mesh in meshes]
    elif isinstance(machine, str | Machine):
        given = [machine] * len(meshes)
    else:
        given = machine
    if len(given) != len(meshes):
        raise LoweringError(
            f"there are {counted(len(given), 'machine')} for {counted(len(meshes), 'mesh')}; give "
            "one for all, or "
            "each one"
        )
    return [
        None if mesh.size == 1 else machine_of(one, mesh.size)
        for one, mesh in zip(given, meshes, strict=True)
    ]


def this_machine(devices: Sequence[Any] | None = None) -> Machine:
    """Return the machine that devices make up: the preset of their kind, as they are wired.

    TPUs say where in the torus they lie and to which slice they belong. GPUs of one process are
    taken for one host; racks join their hosts.

    Args:
      devices: of JAX; by default `jax.devices()`.

    Raises:
      MachineError: no preset is of their kind (a CPU is none), or the preset does not come in this
        shape; a machine file then says what they can do.
    """
    found = list(jax.devices() if devices is None else devices)
    kind = found[0].device_kind
    family = preset_of(kind)
    if family is None or found[0].platform == "cpu":
        raise MachineError(
            f"no preset is known for devices of kind {kind!r}: name the machine to plan for, or "
            "write its file (`autoshard calibrate --device -o machine.toml` measures it)"
        )
    if found[0].platform == "tpu":
        return _torus_of(family, found)
    machine = load(f"{family}-{len(found)}")
    hosts = set(Counter(one.process_index for one in found).values())
    inside = machine.network[0].chips
    rack = "-nvl" in family and all(inside % host == 0 for host in hosts)
    if hosts not in ({inside}, {len(found)}) and not rack:
        each = min(hosts)
        alike = (
            f"{len(found) // each}x{family}-{each} where each process has a host of its own, or "
        )
        raise MachineError(
            f"hosts of {' and '.join(map(str, sorted(hosts)))} devices of kind {kind!r}, where the "
            f"preset {family} has {inside}: name the machine to plan for, as "
            f"{alike if len(hosts) == 1 else ''}{machine.name}"
        )
    return machine


def _torus_of(family: str, devices: Sequence[Any]) -> Machine:
    """The TPU slices that devices make up, by their coordinates."""
    slices = Counter(getattr(one, "slice_index", 0) for one in devices)
    chips = {(getattr(one, "slice_index", 0), *one.coords) for one in devices}
    first = next(iter(slices))
    within = [where for number, *where in chips if number == first]
    lengths = sorted(len(set(axis)) for axis in zip(*within, strict=True))
    many = f"{len(slices)}x" if len(slices) > 1 else ""
    for rank in (2, 3):
        shape = "x".join(map(str, lengths[-rank:]))
        if math.prod(lengths[-rank:]) * len(slices) == len(chips):
            try:
                return load(f"{many}{family}-{shape}")
            except MachineError:
                continue
    return load(f"{many}{family}-{len(devices) // len(slices)}")


def machine_of(machine: str | Machine, chips: int) -> Machine:
    """Return a machine, or part of one, with that many chips.

    Raises:
      MachineError: there is no such machine, or it has no part of this size.
    """
    if isinstance(machine, Machine):
        return machine if machine.chips == chips else submachine(machine, chips)
    for multiple in (1, 2, 4, 8, 16):  # the smallest TPU slices have four chips
        try:
            whole = load(machine, chips=multiple * chips)
        except MachineError:
            if multiple == 16:
                raise
            continue
        return whole if multiple == 1 else submachine(whole, chips)
    raise AssertionError("not reached")


def preset_of(kind: str) -> str | None:
    """Return the preset of a kind of device, with its memory where that is another; or None.

    >>> preset_of("TPU v5 lite"), preset_of("NVIDIA A100-SXM4-40GB"), preset_of("NVIDIA H100 PCIe")
    ('v5e', 'a100-40gb', None)
    """
    if gpu := gpu_of(kind):
        return gpu[0] if gpu[1] is None else f"{gpu[0]}-{gpu[1]}gb"
    return next((preset for name, preset in KINDS.items() if name in kind), None)


def _kind(mesh: Mesh) -> str:
    return mesh.devices.flat[0].device_kind
