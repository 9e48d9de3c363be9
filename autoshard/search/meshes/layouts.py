"""Derives the shardings of the arrays on the meshes from those of each stage's arguments.

The plan of a stage shards its arguments (`autoshard.search.meshes.stage_program`). `slot_specs`
translates that to the arrays of the step: state, totals of gradients after every microbatch, data
with all microbatches, and the values that stages send each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from jax.sharding import Mesh, PartitionSpec

from autoshard.lower.interpret import LoweringError
from autoshard.lower.mpmd.cut.fragments import SHARED
from autoshard.lower.mpmd.instructions import Slot
from autoshard.lower.mpmd.partition import Partition
from autoshard.machine.machine import Machine
from autoshard.plan.plan import MeshShape
from autoshard.search.meshes.pricer import Pricer
from autoshard.search.meshes.stage_program import Argument, Mode, stage_program


def slot_specs(
    partition: Partition,
    mesh_of: Sequence[int],
    stages: Sequence[Iterable[tuple[Argument, PartitionSpec]]],
) -> dict[Slot, PartitionSpec]:
    """Return the shardings of the slots of all stages' arguments.

    If several stages share a slot, the first stage decides.

    Args:
      mesh_of: the mesh of every stage.
      stages: for each stage, its arguments and their specs.
    """
    specs: dict[Slot, PartitionSpec] = {}
    initial = {total.value: total.initial for total in partition.outer.totals}
    count = partition.microbatches
    for stage, arguments in enumerate(stages):
        mesh = mesh_of[stage]
        for argument, spec in arguments:
            value = argument.value
            if argument.group == "sliced":
                specs.setdefault(Slot(mesh, value), PartitionSpec(None, *spec))
            elif argument.group == "totals":
                slots = [Slot(mesh, value), Slot(mesh, initial[value])]
                slots += [Slot(mesh, value, SHARED, k, total=True) for k in range(1, count)]
                for slot in slots:
                    specs.setdefault(slot, spec)
            elif argument.group == "sent":
                for k in range(count):
                    specs.setdefault(Slot(mesh, value, argument.stage, k), spec)
            else:
                specs.setdefault(Slot(mesh, value), spec)
    return specs


def planned_specs(
    partition: Partition,
    meshes: Sequence[Mesh],
    machines: Sequence[Machine | None],
    mesh_of: Sequence[int],
    *,
    mode: Mode,
    memory_limit: float | None = None,
    seconds: float = 5.0,
) -> dict[Slot, PartitionSpec]:
    """Return the shardings of the slots when the one-mesh solver plans every stage on its mesh.

    Equal stages on equal meshes are planned once.

    Args:
      machines: the machine of every mesh, with as many chips; None for a mesh of one device.
      mesh_of: the mesh of every stage.
      mode: whether backward passes are one task.
      memory_limit: bytes per device for a stage; by default the chip's memory less its reserve.
      seconds: seconds for the plan of one stage; up to ten times as many if none is found by then.

    Raises:
      LoweringError: some stages have no plan. The message names all of them, and why.
    """
    pricer = Pricer(memory_limit, seconds=seconds)
    planned, faults = [], []
    for stage, number in enumerate(mesh_of):
        mesh, machine = meshes[number], machines[number]
        program = stage_program(partition, stage, mode)
        if machine is None:
            planned.append([(one, PartitionSpec()) for one in program.arguments])
            continue
        shape = MeshShape(tuple(mesh.axis_names), tuple(mesh.devices.shape))
        limit = pricer.limit(machine)
        found = pricer.price(program, machine, {shape: 0.0}, limit, 10 * seconds)
        if isinstance(found, str):
            sizes = f"{math.prod(shape.sizes)} x {machine.chip.name}"
            faults.append(f"stage {stage} on mesh {number} ({sizes}): {found}")
        else:
            planned.append(list(zip(program.arguments, found.specs, strict=True)))
    if faults:
        raise LoweringError(
            "the sharding of these stages was not found:"
            + "".join(f"\n  * {fault}" for fault in faults)
            + "\ngive more memory or time, or say by `layout` how arrays are sharded"
        )
    return slot_specs(partition, mesh_of, planned)
