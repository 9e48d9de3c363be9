"""Every collective of a module, in the words of a plan's moves.

Kinds, axes and bytes are those of `autoshard.plan.Move`: bytes are local to one device, of the
result for an `all_gather`, of the operand otherwise. One instruction may carry several values
(compilers combine small collectives); each is listed. What XLA writes in several instructions
counts as the collective that it implements:

    all-reduce, read by dynamic-slices along its axes only      reduce_scatter
    all-reduce of a shard put into zeros at the device's place  all_gather
    a ring of permutes around a matmul                          all_gather or reduce_scatter,
                                                                see `autoshard.compiler.hlo.rings`

`opcode` still says what the compiler wrote, which is what takes the time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from autoshard.compiler.hlo.axes import AxisSet
from autoshard.compiler.hlo.events import (
    WRAPPING,
    Event,
    events,
    kind_between_slices,
    opcode_of,
)
from autoshard.compiler.hlo.module import Instruction, Module
from autoshard.compiler.hlo.partitions import Partitions
from autoshard.compiler.hlo.places import Place, walk
from autoshard.compiler.hlo.reductions import implemented
from autoshard.compiler.hlo.shapes import ArrayShape
from autoshard.plan.plan import MeshShape

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


def collectives(
    module: Module, mesh: MeshShape, *, slices: Sequence[int] | None = None
) -> list[HloCollective]:
    """The collectives of `module`, with loops multiplied out; groups of one device are left out.

    Args:
      module: right after partitioning, or scheduled.
      mesh: whose devices, in order, are the module's partitions.
      slices: for every device of the mesh, the slice that it is in, where there are several. A
        scheduled module of the TPU compiler is then for the devices of one slice.

    Raises:
      ValueError: the module is not for that many devices, or its groups cannot be read.
    """
    from autoshard.compiler.hlo.rings import fold_rings

    return fold_rings(find(module, mesh, slices=slices))


def find(module: Module, mesh: MeshShape, *, slices: Sequence[int] | None = None) -> list[Found]:
    """The collectives of `module` before rings are folded; arguments as for `collectives`."""
    view = Partitions(mesh, module, slices)
    return [
        found
        for place in walk(module)
        if place.caller is None or place.caller[1].opcode not in _LOOKED_INTO
        for event in events(place)
        if event.phase != "done"
        for found in _values(place, event, view)
    ]


def made_once(found: Sequence[Found]) -> list[Found]:
    """Collectives without those that do again to a value what was done to it already.

    The partitioner reshards an operand anew for each of its readers, and the compiler merges what
    is equal right afterwards.
    """
    seen: set[object] = set()
    kept = []
    for one in found:
        made = one.event.collective
        said = {k: text for k, text in made.attributes().items() if k not in _UNLIKE}
        key = (
            id(one.place),
            made.opcode,
            made.operands,
            one.operand,
            made.shape_text,
            *sorted(said.items()),
        )
        if key not in seen:
            seen.add(key)
            kept.append(one)
    return kept


_UNLIKE = ("channel_id", "metadata")
"""Attributes in which equal collectives may differ."""
_LOOKED_INTO = ("fusion", *WRAPPING)
"""Callers whose collectives are events of the caller's own computation."""


def _values(place: Place, event: Event, view: Partitions) -> Iterator[Found]:
    collective, home = event.collective, event.home
    kind = opcode_of(collective).replace("-", "_")
    size, axes = view.groups(collective)
    if size < 2:
        return
    scope, line = _where(home, (collective, event.instruction))
    record = HloCollective(
        kind=kind,
        axes=("?",) if axes is None else view.fine.printed(axes),
        bytes=0,
        group_size=size,
        count=place.count,
        scope=scope,
        line=line,
        opcode=opcode_of(collective),
        asynchronous=event.phase == "start",
        instruction=event.instruction.name,
        computation=place.computation.name,
        counted_once=place.unknown,
    )
    if kind_between_slices(collective):
        arrived = collective.arrays[0]
        sent = arrived.bytes * (size if kind == "reduce_scatter" else 1)
        yield Found(replace(record, bytes=sent, shape=arrived), place, event, 0, axes)
        return
    values = [[name] for name in collective.operands]
    if kind == "ragged_all_to_all":  # one array; the others say where its rows go
        values, record = values[:1], replace(record, kind="all_to_all")
        kind = record.kind
    elif kind == "all_to_all" and collective.attribute("dimensions") is None:
        values = [list(collective.operands)]  # its operands are the pieces of one value
    for number, names in enumerate(values):
        local = sum(home.find(name).bytes for name in names)
        meaning = kind
        if kind == "all_gather":
            local *= size
        elif kind == "all_reduce" and axes is not None:
            meaning, shards = implemented(home, collective, number, axes, view)
            local //= shards
        shape = home.find(names[0]).arrays[0]
        found = replace(record, kind=meaning, bytes=local, shape=shape)
        yield Found(found, place, event, number, axes)


def _where(home: Place, instructions: Sequence[Instruction]) -> tuple[str, str]:
    """(scope, line) of the first that has them, else of what the first one reads."""
    nearest = list(instructions)
    for _ in range(4):
        named = next((one for one in nearest if one.op_name), None)
        if named is not None:
            return named.op_name, home.module.users_line(named)
        local = (one for one in nearest if one.name in home.computation.by_name)
        nearest = [home.find(name) for one in local for name in one.operands]
    return "", ""
