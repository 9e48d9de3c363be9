"""The blocks of a step, in classes of equal ones, with the bound of each class.

Where the blocks are iterations of one scan, all but the first and the last are equal, and a cut
into the first, the second, the others and the last shows one of each. Else every block is a stage
of its own, and blocks are equal whose fragments are the same nodes on the same shapes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

from autoshard.machine import Machine
from autoshard.mpmd.fragments import Cut
from autoshard.mpmd.partition import Partition
from autoshard.placement.block_bound import BlockBound, block_bound
from autoshard.placement.problem import sent_bytes
from autoshard.placement.stage_program import KINDS, Mode, stage_programs
from autoshard.plan import MeshShape

FEW = 4
"""Up to so many blocks, each is looked at by itself."""


@dataclass(frozen=True, slots=True)
class Bricks:
    """What the blocks of a step with some number of microbatches take at least.

    Attributes:
      microbatches: how many.
      names: of the blocks, in program order.
      classes: the class of every block.
      bounds: of every class, by the name of the machine.
      sent_bytes: the least that goes from one block to the next for a microbatch, either way.
    """

    microbatches: int
    names: tuple[str, ...]
    classes: tuple[int, ...]
    bounds: tuple[Mapping[str, BlockBound], ...]
    sent_bytes: int

    def stage_seconds(self, blocks: Sequence[str], machine: str, shape: MeshShape) -> float:
        """Seconds of a step that a stage of these blocks takes at least on a mesh shape."""
        wanted = set(blocks)
        return sum(
            self.bounds[number][machine].by_shape.get(shape, 0.0)
            for name, number in zip(self.names, self.classes, strict=True)
            if name in wanted
        )


def bricks(
    cut: Callable[[Sequence[int]], Partition],
    names: Sequence[str],
    machines: Mapping[str, tuple[Machine, Sequence[MeshShape]]],
    mode: Mode,
    *,
    time_limit: float,
) -> Bricks:
    """Bound the blocks of a step.

    Args:
      cut: cuts the step into stages of so many blocks.
      names: of the blocks.
      machines: by name, with the mesh shapes that stages may get.
      mode: of backward passes.
      time_limit: seconds for all; what is not bounded in the time counts as work alone.
    """
    stop = time.monotonic() + time_limit
    count = len(names)
    scanned = len({name.partition("[")[0] for name in names}) == 1 and names[0].endswith("]")
    if scanned and count > FEW:
        partition = cut((1, 1, count - 3, 1))
        shown = [0, 1, 3]
        classes = (0, *(1,) * (count - 2), 2)
    else:
        partition = cut((1,) * count)
        seen: dict[Hashable, int] = {}
        classes = tuple(
            seen.setdefault((s in (0, count - 1) and s, _signature(partition.cut, s, mode)), s)
            for s in range(count)
        )
        shown = sorted(set(classes))
        classes = tuple(shown.index(s) for s in classes)
    programs = stage_programs(partition, mode, shown)
    commonest = max(range(len(shown)), key=classes.count)
    bounds = []
    for number, program in enumerate(programs):
        found = {}
        for name, (machine, shapes) in machines.items():
            found[name] = block_bound(
                program,
                machine,
                shapes,
                first=number == 0,
                solved=number == commonest and time.monotonic() < stop,
                time_limit=max(stop - time.monotonic(), 0.1),
            )
        bounds.append(found)
    sizes = sent_bytes(partition)
    near = [size for (a, b), size in sizes.items() if abs(a - b) == 1]
    return Bricks(
        partition.microbatches, tuple(names), classes, tuple(bounds), min(near, default=0)
    )


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
