"""What an all-reduce implements.

    all-reduce over x, read by dynamic-slices along x        a reduce-scatter
    all-reduce over x, then over y, then slices along both   two reduce-scatters, the second of
                                                             the shards that the first leaves
    all-reduce of a shard put into zeros at its own place    an all-gather

Where a slice begins is followed to arithmetic on the device's number and carried out, so that a sum
over x that is sliced along y stays what it is. Texts may leave large tables out; then a slice whose
begin depends on the device counts as along the summed axes if it keeps no more than their shard.
"""

from __future__ import annotations

import numpy as np

from autoshard.compiler.hlo.axes import AxisSet
from autoshard.compiler.hlo.module import Instruction
from autoshard.compiler.hlo.partitions import Partitions
from autoshard.compiler.hlo.places import Place
from autoshard.compiler.hlo.scalars import depends_on_device, per_device
from autoshard.compiler.hlo.uses import parts, readers


def implemented(
    home: Place, collective: Instruction, number: int, axes: AxisSet, view: Partitions
) -> tuple[str, int]:
    """(kind, by how much its bytes are divided) of one value of an all-reduce.

    Args:
      home, collective: where it stands.
      number: of the value among its operands.
      axes: over which it runs.
      view: the mesh.
    """
    operand = home.find(collective.operands[number])
    if _is_padded_shard(home, operand):
        return "all_gather", 1
    if not _is_scattered(home, collective, number, axes, view):
        return "all_reduce", 1
    shards = 1
    place, before = home.origin(operand)
    while before.opcode == "all-reduce" and len(before.operands) == 1:
        _, earlier = view.groups(before)
        if earlier is None or not _is_scattered(place, before, 0, earlier, view):
            break
        shards *= view.fine.size(earlier)
        place, before = place.origin(place.find(before.operands[0]))
    return "reduce_scatter", shards


def _is_scattered(
    home: Place, collective: Instruction, number: int, axes: AxisSet, view: Partitions
) -> bool:
    """Whether all that becomes of a sum over `axes` is one shard of it along all of them."""
    result = _result(home, collective, number)
    found = list(readers(home, result)) if result is not None else []
    for place, reader, position in found:
        if reader.opcode == "dynamic-slice" and position == 0:
            if not _cuts(place, reader, axes, view):
                return False
        elif reader.opcode == "all-reduce" and len(reader.operands) == 1:
            _, more = view.groups(reader)
            if more is None or not _is_scattered(place, reader, 0, axes | more, view):
                return False
        else:
            return False
    return bool(found)


def _result(home: Place, collective: Instruction, number: int) -> Instruction | None:
    """One value of a collective's result, behind its done where it has one."""
    result = collective
    if collective.opcode.endswith("-start"):
        done = home.computation.users.get(collective.name, ())
        if len(done) != 1:
            return None
        result = done[0]
    if len(collective.operands) == 1:
        return result
    taken = [user for index, user in parts(home, result) if index == number]
    return taken[0] if len(taken) == 1 else None


def _cuts(place: Place, dynamic_slice: Instruction, axes: AxisSet, view: Partitions) -> bool:
    """Whether a slice keeps one shard along all of `axes`."""
    whole, kept = place.find(dynamic_slice.operands[0]).arrays[0], dynamic_slice.arrays[0]
    devices = view.partitions
    starts: list[np.ndarray] = []
    for before, after, name in zip(
        whole.dimensions, kept.dimensions, dynamic_slice.operands[1:], strict=False
    ):
        if before == after:
            continue
        start = per_device(place, place.find(name), devices)
        if start is None:  # a table that the text leaves out: go by the size
            by_device = depends_on_device(place, place.find(name))
            return by_device and kept.elements * view.fine.size(axes) <= whole.elements
        starts.append(start.reshape(devices, -1))
    return bool(starts) and axes <= view.depends_on(np.concatenate(starts, axis=1))


def _is_padded_shard(home: Place, operand: Instruction) -> bool:
    """Whether a value is zero but for a shard that stands at the device's place."""
    place, value = home.origin(operand)
    if value.opcode != "dynamic-update-slice":
        return False
    base = place.origin(place.find(value.operands[0]))
    if base[1].opcode == "broadcast":
        base = base[0].origin(base[0].find(base[1].operands[0]))
    if base[1].opcode != "constant" or base[1].argument.strip("{} ") not in ("0", "false"):
        return False
    return any(depends_on_device(place, place.find(name)) for name in value.operands[2:])
