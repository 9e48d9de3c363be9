"""The blocks of a step, in classes of equal blocks, with the lower bound of each class.

If the blocks are iterations of one scan, all but the first and the last are equal. A cut into the
first block, the second, the others and the last then gives one example of each class. The first and
the last block have all that the others have, plus the ends of the step. Otherwise every block is
its own stage, and blocks are equal if their fragments have the same nodes on the same shapes.

At first the bounds come from the work of the blocks (`bricks`). Then the solver is queried for
better bounds, for one class on one kind of mesh at a time, the most common class first (`Quarry`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

from autoshard.lower.mpmd.cut.fragments import Cut
from autoshard.lower.mpmd.partition import Partition
from autoshard.machine.machine import Machine
from autoshard.plan.plan import MeshShape
from autoshard.search.meshes.bounds.block_bound import Block, BlockBound
from autoshard.search.meshes.problem import sent_bytes
from autoshard.search.meshes.stage_program import KINDS, Mode, stage_programs

FEW = 4
"""Up to this many blocks, each block is treated by itself, even in a scan."""

Machines = Mapping[str, tuple[Machine, Sequence[MeshShape]]]
"""Machines by name, each with the mesh shapes that its stages may get."""


@dataclass(frozen=True, slots=True)
class Bricks:
    """Lower bounds of the blocks of a step with some number of microbatches.

    Attributes:
      microbatches: the number of microbatches.
      names: the names of the blocks, in program order.
      classes: the class of every block.
      examples: a block of every class.
      bounds: the bounds of every class, by the name of the machine.
      sent_bytes: the minimum bytes that a microbatch sends between neighbouring blocks, either way.
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
        """Return the class of most blocks."""
        return max(range(len(self.bounds)), key=self.classes.count)

    def stage_seconds(self, blocks: Sequence[str], machine: str, shape: MeshShape) -> float:
        """Return the lower bound in seconds of a step for a stage of these blocks on a shape."""
        wanted = set(blocks)
        return sum(
            self.bounds[number][machine].by_shape.get(shape, 0.0)
            for name, number in zip(self.names, self.classes, strict=True)
            if name in wanted
        )

    def finer(self, microbatches: int, *, solved: bool = False) -> Bricks:
        """Return the bounds for a multiple of the microbatches (`BlockBound.finer`)."""
        times = microbatches // self.microbatches
        bounds = tuple(
            {name: one.finer(times, solved=solved) for name, one in by_name.items()}
            for by_name in self.bounds
        )
        sent = self.sent_bytes / times
        return replace(self, microbatches=microbatches, bounds=bounds, sent_bytes=sent)

    def least(self, other: Bricks) -> Bricks:
        """Return the smaller bounds of two of the same blocks.

        Blocks are of one class if they are in both.
        """
        pairs = list(zip(self.classes, other.classes, strict=True))
        numbers = {pair: k for k, pair in enumerate(dict.fromkeys(pairs))}
        bounds = tuple(
            {name: one.least(other.bounds[b][name]) for name, one in self.bounds[a].items()}
            for a, b in numbers
        )
        return replace(
            self,
            classes=tuple(numbers[pair] for pair in pairs),
            examples=tuple(pairs.index(pair) for pair in numbers),
            bounds=bounds,
            sent_bytes=min(self.sent_bytes, other.sent_bytes),
        )

    def raised(self, number: int, machine: str, shape: MeshShape, seconds: float) -> Bricks:
        """Return the bricks with a new bound of a class on a mesh shape of a machine."""
        own = self.bounds[number][machine].work_seconds
        bounds = list(self.bounds)
        for other, by_name in enumerate(self.bounds):
            one = by_name[machine]
            if other == number or self.scanned:  # the ends of a step add to a scan's first and last
                more = seconds + max(one.work_seconds - own, 0.0)
                bounds[other] = {**by_name, machine: one.raised(shape, more)}
        return replace(self, bounds=tuple(bounds))


@dataclass(slots=True)
class Quarry:
    """The blocks of a step, for which the solver can still improve the bounds.

    Attributes:
      cut: cuts the step into stages with the given block counts.
      machines: the machines on which stages may be.
      mode: the mode of backward passes.
      bricks: the bounds so far.
      open: the open solver queries (class, machine and shape); the last comes first.
      blocks: the block that the solver bounds, by class.
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
        """Return the blocks before any solver query.

        Args:
          bricks: the bounds from the work of the blocks.
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
        """Run the next solver query, for about this many seconds."""
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


@dataclass(slots=True)
class Quarries:
    """The blocks of a step in which each stage may save one of several sets of values.

    The bound of a block is the least of all choices of what is saved. Only a query about the choice
    with the least bound can raise it.

    Attributes:
      parts: by the title of a choice.
    """

    parts: Mapping[str, Quarry]
    _known: tuple[tuple[Bricks, ...], Bricks] | None = None

    @property
    def bricks(self) -> Bricks:
        """Return the bounds so far."""
        every = tuple(one.bricks for one in self.parts.values())
        known = self._known
        if known is None or any(a is not b for a, b in zip(known[0], every, strict=True)):
            known = self._known = every, reduce(Bricks.least, every)
        return known[1]

    @property
    def open(self) -> bool:
        """Return whether a query can raise the bounds."""
        return bool(self._lowest().open)

    def ask(self, time_limit: float) -> None:
        """Run the next solver query, for about this many seconds."""
        self._lowest().ask(time_limit)

    def _lowest(self) -> Quarry:
        """Return the choice whose most common block has the least bound."""

        def seconds(quarry: Quarry) -> float:
            found = quarry.bricks
            return sum(one.seconds for one in found.bounds[found.commonest].values())

        return min(self.parts.values(), key=seconds)


def bricks(
    cut: Callable[[Sequence[int]], Partition],
    names: Sequence[str],
    machines: Machines,
    mode: Mode,
) -> Bricks:
    """Return the blocks of a step, with bounds from the work of each, perfectly shared.

    Args:
      cut: cuts the step into stages with the given block counts.
      names: the names of the blocks.
      machines: the machines on which stages may be.
      mode: the mode of backward passes.
    """
    count = len(names)
    scanned = is_scanned(names) and count > FEW
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


def is_scanned(names: Sequence[str]) -> bool:
    """Return whether blocks with these names are the iterations of one scan."""
    return len({name.partition("[")[0] for name in names}) == 1 and names[0].endswith("]")


def stacked(blocks: int, shapes: Sequence[MeshShape]) -> int:
    """Return how many blocks between the first and the last to stack.

    A stack of that size can be sharded in every way in which a smaller stack can. The number is a
    multiple of every product of mesh axes that could shard a stack, or all the blocks if there is
    no such multiple.

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
    """Return a key, equal for stages with the same nodes, connected alike, on the same shapes."""
    numbers: dict[int, int] = {}
    found = []
    for kind in KINDS[mode]:
        for node in cut.fragments[stage, kind].nodes:
            values = (*node.inputs, *node.outputs)
            places = tuple(numbers.setdefault(value, len(numbers)) for value in values)
            types = tuple(str(cut.graph.avals[value]) for value in values)
            found.append((kind, node.key, places, types))
    return tuple(found)
