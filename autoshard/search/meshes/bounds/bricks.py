"""The blocks of a step, in classes of equal ones, with the bound of each class.

Where the blocks are iterations of one scan, all but the first and the last are equal, and a cut
into the first, the second, the others and the last shows one of each. The first and the last have
what the others have, and the ends of the step. Else every block is a stage of its own, and blocks
are equal whose fragments are the same nodes on the same shapes.

First their work is known (`bricks`); of that the solver is asked more, about one class on one kind
of mesh at a time, the commonest class first (`Quarry`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from autoshard.lower.mpmd.cut.fragments import Cut
from autoshard.lower.mpmd.partition import Partition
from autoshard.machine.machine import Machine
from autoshard.plan.plan import MeshShape
from autoshard.search.meshes.bounds.block_bound import Block, BlockBound
from autoshard.search.meshes.problem import sent_bytes
from autoshard.search.meshes.stage_program import KINDS, Mode, stage_programs

FEW = 4
"""Up to so many blocks, each is looked at by itself."""

Machines = Mapping[str, tuple[Machine, Sequence[MeshShape]]]
"""Machines by name, with the mesh shapes that stages may get."""


@dataclass(frozen=True, slots=True)
class Bricks:
    """What the blocks of a step with some number of microbatches take at least.

    Attributes:
      microbatches: how many.
      names: of the blocks, in program order.
      classes: the class of every block.
      examples: a block of every class.
      bounds: of every class, by the name of the machine.
      sent_bytes: the least that goes from one block to the next for a microbatch, either way.
      scanned: whether the blocks are iterations of one scan.
    """

    microbatches: int
    names: tuple[str, ...]
    classes: tuple[int, ...]
    examples: tuple[int, ...]
    bounds: tuple[Mapping[str, BlockBound], ...]
    sent_bytes: float
    scanned: bool = False

    @property
    def commonest(self) -> int:
        """The class of most blocks."""
        return max(range(len(self.bounds)), key=self.classes.count)

    def stage_seconds(self, blocks: Sequence[str], machine: str, shape: MeshShape) -> float:
        """Seconds of a step that a stage of these blocks takes at least on a mesh shape."""
        wanted = set(blocks)
        return sum(
            self.bounds[number][machine].by_shape.get(shape, 0.0)
            for name, number in zip(self.names, self.classes, strict=True)
            if name in wanted
        )

    def finer(self, microbatches: int, *, solved: bool = False) -> Bricks:
        """What these say of a multiple of the microbatches (`BlockBound.finer`)."""
        times = microbatches // self.microbatches
        bounds = tuple(
            {name: one.finer(times, solved=solved) for name, one in by_name.items()}
            for by_name in self.bounds
        )
        sent = self.sent_bytes / times
        return replace(self, microbatches=microbatches, bounds=bounds, sent_bytes=sent)

    def raised(self, number: int, machine: str, shape: MeshShape, seconds: float) -> Bricks:
        """With what a block of a class takes at least on a mesh shape of a machine."""
        own = self.bounds[number][machine].work_seconds
        bounds = list(self.bounds)
        for other, by_name in enumerate(self.bounds):
            one = by_name[machine]
            if other == number or self.scanned:  # ends of a scan's step come on top of a block
                more = seconds + max(one.work_seconds - own, 0.0)
                bounds[other] = {**by_name, machine: one.raised(shape, more)}
        return replace(self, bounds=tuple(bounds))


@dataclass(slots=True)
class Quarry:
    """The blocks of a step, of which the solver may be asked more.

    Attributes:
      cut: cuts the step into stages of so many blocks.
      machines: where stages may be.
      mode: of backward passes.
      bricks: what is known.
      open: what was not yet asked: class, machine and shape; the last comes first.
      blocks: by class, what the solver is asked about.
    """

    cut: Callable[[Sequence[int]], Partition]
    machines: Machines
    mode: Mode
    bricks: Bricks
    open: list[tuple[int, str, MeshShape]]
    blocks: dict[int, Block] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        cut: Callable[[Sequence[int]], Partition],
        machines: Machines,
        mode: Mode,
        bricks: Bricks,
    ) -> Quarry:
        """Nothing has been asked yet.

        Args:
          bricks: what the work says.
        """
        classes = sorted(range(len(bricks.bounds)), key=bricks.classes.count)
        asked = [
            (number, name, shape)
            for number in (classes[-1:] if bricks.scanned else classes)
            for name, (_, shapes) in machines.items()
            for shape in shapes
        ]
        return cls(cut, machines, mode, bricks, asked)

    def ask(self, time_limit: float) -> None:
        """Ask the solver the next question, for about so many seconds."""
        number, name, shape = self.open.pop()
        if number not in self.blocks:
            self.blocks[number] = self._block(number)
        machine, _ = self.machines[name]
        found = self.blocks[number].solved(machine, shape, time_limit)
        self.bricks = self.bricks.raised(number, name, shape, found)

    def _block(self, number: int) -> Block:
        known = self.bricks
        count, example = len(known.names), known.examples[number]
        if known.scanned:
            size = stacked(count, [s for _, shapes in self.machines.values() for s in shapes])
            partition = self.cut((1, size, count - 1 - size))
            (stage,) = stage_programs(partition, self.mode, [1])
            return Block.of(stage, first=False, count=size, scanned=True)
        (stage,) = stage_programs(self.cut((1,) * count), self.mode, [example])
        return Block.of(stage, first=example == 0)


def bricks(
    cut: Callable[[Sequence[int]], Partition],
    names: Sequence[str],
    machines: Machines,
    mode: Mode,
) -> Bricks:
    """The blocks of a step, with the work of each, perfectly shared.

    Args:
      cut: cuts the step into stages of so many blocks.
      names: of the blocks.
      machines: where stages may be.
      mode: of backward passes.
    """
    count = len(names)
    scanned = len({name.partition("[")[0] for name in names}) == 1 and names[0].endswith("]")
    scanned = scanned and count > FEW
    if scanned:
        partition = cut((1, 1, count - 3, 1))
        shown, examples = [0, 1, 3], [0, 1, count - 1]
        classes = (0, *(1,) * (count - 2), 2)
    else:
        partition = cut((1,) * count)
        seen: dict[Hashable, int] = {}
        classes = tuple(
            seen.setdefault((s in (0, count - 1) and s, _signature(partition.cut, s, mode)), s)
            for s in range(count)
        )
        shown = examples = sorted(set(classes))
        classes = tuple(shown.index(s) for s in classes)
    programs = stage_programs(partition, mode, shown)
    blocks = [Block.of(one, first=number == 0) for number, one in enumerate(programs)]
    bounds = tuple(
        {name: block.work(machine, shapes) for name, (machine, shapes) in machines.items()}
        for block in blocks
    )
    sizes = sent_bytes(partition)
    near = [size for (a, b), size in sizes.items() if abs(a - b) == 1]
    return Bricks(
        partition.microbatches,
        tuple(names),
        classes,
        tuple(examples),
        bounds,
        min(near, default=0),
        scanned,
    )


def stacked(blocks: int, shapes: Sequence[MeshShape]) -> int:
    """How many blocks between the first and the last, stacked, can be cut as any fewer can.

    A multiple of every product of mesh axes that could cut a stack; all of them where none is.

    >>> stacked(32, [MeshShape(("x", "y"), (2, 4))])
    24
    """
    sizes = {
        math.prod(some)
        for shape in shapes
        for n in range(len(shape.sizes))
        for some in itertools.combinations(shape.sizes, n + 1)
    }
    step = math.lcm(*(size for size in sizes if size < blocks))
    return (blocks - 2) // step * step or blocks - 2


def _signature(cut: Cut, stage: int, mode: Mode) -> Hashable:
    """Equal for stages that are the same nodes, joined in the same way, on the same shapes."""
    numbers: dict[int, int] = {}
    found = []
    for kind in KINDS[mode]:
        for node in cut.fragments[stage, kind].nodes:
            values = (*node.inputs, *node.outputs)
            places = tuple(numbers.setdefault(value, len(numbers)) for value in values)
            types = tuple(str(cut.graph.avals[value]) for value in values)
            found.append((kind, node.key, places, types))
    return tuple(found)
