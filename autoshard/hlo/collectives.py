"""Every collective of a module, in the words of a plan's moves.

Kinds, axes and bytes are those of `autoshard.plan.Move`: bytes are local to one device, of the
result for an `all_gather`, of the operand otherwise. One instruction may carry several values
(compilers combine small collectives); each is listed. What XLA writes in several instructions
counts as the collective that it implements:

    all-reduce, read by dynamic-slices along its axes only      reduce_scatter
    all-reduce of a shard put into zeros at the device's place  all_gather
    a ring of permutes around a matmul                          all_gather or reduce_scatter,
                                                                see `autoshard.hlo.rings`

`opcode` still says what the compiler wrote, which is what takes the time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from autoshard.hlo.axes import AxisSet, FineMesh
from autoshard.hlo.events import Event, events, opcode_of
from autoshard.hlo.groups import Groups, joined, parse_groups, parse_pairs
from autoshard.hlo.module import Instruction, Module, user_frame
from autoshard.hlo.places import Place, walk
from autoshard.hlo.scalars import depends_on_device, per_device
from autoshard.hlo.shapes import ArrayShape
from autoshard.hlo.uses import parts, readers
from autoshard.plan import MeshShape

_LOWERING = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "lower", "")

WIRE_SHARES = {
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
}
"""What a device sends of `bytes` in a group of n, by the algorithms that send least (Chan et al.,
"Collective communication: theory, practice, and experience", CCPE 2007); other kinds send all."""


@dataclass(frozen=True, slots=True)
class HloCollective:
    """One value that a collective moves.

    Attributes:
      kind: as in `Move`, or another collective's name with underscores.
      axes: of the mesh, in mesh order; parts of axes as `x:(1)2`. Where the groups lie along no
        axes, `("?",)`.
      bytes: see the module.
      group_size: devices in each group.
      count: how often it runs in a step.
      scope, line: JAX's name stack, and `file.py:12` of the user's line.
      shape: of the operand on one device.
      opcode: what the compiler wrote.
      asynchronous: whether other instructions may run before it ends.
      instruction, computation: names in the text.
      counted_once: loops around it of unknown trip count.
    """

    kind: str
    axes: tuple[str, ...]
    bytes: int
    group_size: int
    count: int = 1
    scope: str = ""
    line: str = ""
    shape: ArrayShape = field(default_factory=lambda: ArrayShape("token", ()))
    opcode: str = ""
    asynchronous: bool = False
    instruction: str = ""
    computation: str = ""
    counted_once: tuple[str, ...] = ()

    @property
    def wire_bytes(self) -> float:
        """Bytes that one device sends in one execution."""
        return self.bytes * WIRE_SHARES.get(self.kind, lambda _: 1.0)(self.group_size)

    def __str__(self) -> str:
        axes = ",".join(self.axes)
        return (
            f"{self.kind}({axes}) {self.bytes} B x {self.count}  {self.scope}  {self.line}".rstrip()
        )


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """A collective's value with what is needed to look around in the module.

    Attributes:
      record: what is reported.
      place: where the instruction is scheduled; its `caller`s are the loops around.
      event: where it starts or runs.
      operand: number of the value among the collective's operands.
      axes: the axes by number.
    """

    record: HloCollective
    place: Place
    event: Event
    operand: int
    axes: AxisSet | None


def collectives(module: Module, mesh: MeshShape) -> list[HloCollective]:
    """The collectives of `module`, with loops multiplied out; groups of one device are left out.

    Args:
      module: right after partitioning, or scheduled.
      mesh: whose devices, in order, are the module's partitions.

    Raises:
      ValueError: the module is not for that many devices, or its groups cannot be read.
    """
    from autoshard.hlo.rings import fold_rings

    return fold_rings(find(module, mesh), FineMesh(mesh))


def find(module: Module, mesh: MeshShape) -> list[Found]:
    """The collectives of `module` before rings are folded."""
    fine = FineMesh(mesh)
    if module.devices != fine.devices:
        raise ValueError(
            f"module {module.name!r} is for {module.devices} devices, the mesh ({mesh}) has "
            f"{fine.devices}"
        )
    return [
        found
        for place in walk(module)
        if place.caller is None or place.caller[1].opcode not in _LOOKED_INTO
        for event in events(place)
        if event.phase != "done"
        for found in _values(place, event, fine)
    ]


_LOOKED_INTO = ("fusion", "async-start")
"""Callers whose collectives are events of the caller's own computation."""


def _values(place: Place, event: Event, fine: FineMesh) -> Iterator[Found]:
    collective, home = event.collective, event.home
    kind = opcode_of(collective).replace("-", "_")
    groups, axes = _groups(home.module, collective, fine)
    size = max(map(len, groups), default=1)
    if size < 2:
        return
    scope, line = _where(home, (collective, event.instruction))
    printed = ("?",) if axes is None else fine.printed(axes)
    moved = list(enumerate(collective.operands))
    if kind == "all_to_all" and collective.attribute("dimensions") is None:
        moved = moved[:1]  # its operands are the pieces of one value
    for number, name in moved:
        operand = home.find(name)
        pieces = collective.operands if len(moved) < len(collective.operands) else (name,)
        local = sum(home.find(piece).bytes for piece in pieces)
        meaning = kind
        if kind == "all_reduce" and axes is not None:
            meaning = _meaning(home, collective, number, axes, fine)
        gathered = meaning == "all_gather" and kind == "all_gather"
        record = HloCollective(
            kind=meaning,
            axes=printed,
            bytes=local * size if gathered else local,
            group_size=size,
            count=place.count,
            scope=scope,
            line=line,
            shape=operand.arrays[0],
            opcode=opcode_of(collective),
            asynchronous=event.phase == "start",
            instruction=event.instruction.name,
            computation=place.computation.name,
            counted_once=place.unknown,
        )
        yield Found(record, place, event, number, axes)


def _groups(
    module: Module, collective: Instruction, fine: FineMesh
) -> tuple[Groups, AxisSet | None]:
    pairs_text = collective.attribute("source_target_pairs")
    if pairs_text is not None:
        pairs = tuple(pair for pair in parse_pairs(pairs_text) if pair[0] != pair[1])
        return joined(pairs), fine.of_pairs(pairs)
    groups = parse_groups(collective.attribute("replica_groups") or "", module.devices)
    return groups, fine.of_groups(groups)


def _meaning(
    home: Place, collective: Instruction, number: int, axes: AxisSet, fine: FineMesh
) -> str:
    """What an all-reduce implements."""
    if _is_padded_shard(home, home.find(collective.operands[number])):
        return "all_gather"
    result = collective
    if len(collective.operands) > 1:
        taken = [user for index, user in _results(home, collective) if index == number]
        if len(taken) != 1:
            return "all_reduce"
        result = taken[0]
    elif collective.opcode.endswith("-start"):
        done = home.computation.users.get(collective.name, ())
        if len(done) != 1:
            return "all_reduce"
        result = done[0]
    size = home.find(collective.operands[number]).bytes
    slices = list(readers(home, result))
    if not slices or any(
        reader.opcode != "dynamic-slice" or position != 0 for _, reader, position in slices
    ):
        return "all_reduce"
    cut = all(_cuts(place, reader, axes, size, fine) for place, reader, _ in slices)
    return "reduce_scatter" if cut else "all_reduce"


def _results(home: Place, collective: Instruction) -> list[tuple[int, Instruction]]:
    """The elements taken from a collective of several values, behind its done where it has one."""
    if collective.opcode.endswith("-start"):
        users = home.computation.users.get(collective.name, ())
        return parts(home, users[0]) if len(users) == 1 else []
    return parts(home, collective)


def _cuts(
    place: Place, dynamic_slice: Instruction, axes: AxisSet, size: int, fine: FineMesh
) -> bool:
    """Whether a slice of a reduced value of `size` bytes keeps one shard along all reduced axes."""
    whole, kept = place.find(dynamic_slice.operands[0]).arrays[0], dynamic_slice.arrays[0]
    starts: list[np.ndarray] = []
    for before, after, name in zip(
        whole.dimensions, kept.dimensions, dynamic_slice.operands[1:], strict=False
    ):
        if before == after:
            continue
        start = per_device(place, place.find(name), fine.devices)
        if start is None:  # tables are left out of some texts: go by the size
            if not depends_on_device(place, place.find(name)):
                return False
            return kept.elements * fine.size(axes) <= whole.elements
        starts.append(start.reshape(fine.devices, -1))
    return bool(starts) and axes <= fine.of_values(np.concatenate(starts, axis=1))


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


def _where(home: Place, instructions: Sequence[Instruction]) -> tuple[str, str]:
    """(scope, line) of the first that has them, else of what the first one reads."""
    nearest = list(instructions)
    for _ in range(4):
        named = next((one for one in nearest if one.op_name), None)
        if named is not None:
            return named.op_name, user_frame(home.module.source(named), (_LOWERING,))
        local = (one for one in nearest if one.name in home.computation.by_name)
        nearest = [home.find(name) for one in local for name in one.operands]
    return "", ""
