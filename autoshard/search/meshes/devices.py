"""The machine of a mesh of JAX's devices: the preset of their kind, with as many chips.

Kinds are what `jax.Device.device_kind` says (https://docs.jax.dev/en/latest/jax.html#jax.Device);
vendors add more to the names below. CPU devices stand in for H100s: nobody plans for them.
"""

from __future__ import annotations

from collections.abc import Sequence

from jax.sharding import Mesh

from autoshard.lower.interpret import LoweringError
from autoshard.machine.file import MachineError
from autoshard.machine.load import load
from autoshard.machine.machine import Machine, submachine

KINDS = {
    "TPU v4": "v4",
    "TPU v5 lite": "v5e",
    "TPU v5e": "v5e",
    "TPU v5": "v5p",
    "TPU v6": "v6e",
    "TPU7x": "v7x",
    "TPU v7": "v7x",
    "GB200": "gb200-nvl72",
    "A100": "a100",
    "H100": "h100",
    "H200": "h200",
    "B200": "b200",
    "MI300X": "mi300x",
    "cpu": "h100",
}
"""The preset of devices whose kind has this in its name; the first that fits."""


def machines_of(
    meshes: Sequence[Mesh], machine: str | Machine | Sequence[str | Machine] | None = None
) -> list[Machine | None]:
    """The machine of every mesh; None for one device, where nothing is sharded.

    Args:
      machine: a machine, the name of one or of a preset without its size; of each mesh, or one for
        all. By default the preset of the devices' kind.

    Raises:
      LoweringError: kinds of devices without a preset, or machines for another number of meshes.
      MachineError: no such machine, or it has no part of a mesh's size.
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
        raise LoweringError(f"there are {len(given)} machines for {len(meshes)} meshes")
    return [
        None if mesh.size == 1 else machine_of(one, mesh.size)
        for one, mesh in zip(given, meshes, strict=True)
    ]


def machine_of(machine: str | Machine, chips: int) -> Machine:
    """A machine, or part of one, with that many chips.

    Raises:
      MachineError: no such machine, or it has no part of this size.
    """
    if isinstance(machine, Machine):
        return machine if machine.chips == chips else submachine(machine, chips)
    for multiple in (1, 2, 4, 8, 16):  # TPU slices begin with four chips
        try:
            whole = load(machine, chips=multiple * chips)
        except MachineError:
            if multiple == 16:
                raise
            continue
        return whole if multiple == 1 else submachine(whole, chips)
    raise AssertionError("not reached")


def preset_of(kind: str) -> str | None:
    """The preset of a kind of device, or None."""
    return next((preset for name, preset in KINDS.items() if name in kind), None)


def _kind(mesh: Mesh) -> str:
    return mesh.devices.flat[0].device_kind
