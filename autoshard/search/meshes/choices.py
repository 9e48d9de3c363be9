"""The placements of stages on meshes that the search tries.

    v1      one stage per mesh
    loop    stage s is on mesh s mod K: every mesh has several stages, K apart
    v       up the meshes and down again: the last stage is on the mesh of the first

If meshes differ, every order of their kinds along the pipeline is tried. Each mesh gets blocks in
proportion to its speed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autoshard.lower.mpmd.cut.stages import StageError
from autoshard.machine.cluster import Cluster
from autoshard.search.meshes.stage_program import Mode
from autoshard.units import counted


@dataclass(frozen=True, slots=True)
class Placement:
    """A placement of stages on meshes.

    Attributes:
      name: v1, loop or v, with the order of the meshes if they differ.
      mesh_of: the mesh of every stage.
    """

    name: str
    mesh_of: tuple[int, ...]

    @property
    def stages(self) -> int:
        """Return the number of stages."""
        return len(self.mesh_of)

    def speeds(self, of_mesh: Sequence[float]) -> tuple[float, ...]:
        """Return the speed of every stage; the stages of a mesh share its speed."""
        counts = [self.mesh_of.count(mesh) for mesh in range(len(of_mesh))]
        return tuple(of_mesh[mesh] / counts[mesh] for mesh in self.mesh_of)


def placements(
    cluster: Cluster, stages: int | None, *, blocks: int, most_turns: int = 4, most_orders: int = 6
) -> Iterator[Placement]:
    """Yield the placements for one number of stages, or for multiples of the number of meshes.

    Args:
      stages: the number of stages. None tries the number of meshes times 1, 2, ... `most_turns`.
      blocks: the number of blocks of the program; stages are at most as many.
      most_turns: the maximum number of stages per mesh.
      most_orders: the maximum number of orders of different meshes along the pipeline.
    """
    count = len(cluster.meshes)
    numbers = (
        [k * count for k in range(1, most_turns + 1) if k != 3] if stages is None else [stages]
    )
    orders: dict[tuple[int, ...], tuple[int, ...]] = {}
    for order in itertools.permutations(range(count)):
        orders.setdefault(tuple(cluster.kinds[mesh] for mesh in order), order)
        if len(orders) == most_orders or cluster.alike:
            break
    for number in numbers:
        if number > blocks or number % count:
            continue
        for order in orders.values():
            label = "" if cluster.alike else f" over meshes {', '.join(map(str, order))}"
            loop = tuple(order[s % count] for s in range(number))
            if number == count:
                yield Placement(f"v1{label}", loop)
                continue
            yield Placement(f"loop{label}", loop)
            rounds = range(number // count)
            zigzag = [m for turn in rounds for m in (order if turn % 2 == 0 else order[::-1])]
            yield Placement(f"v{label}", tuple(zigzag))


def ranked_choices(
    cluster: Cluster,
    name: str,
    blocks: Sequence[str],
    microbatches: Sequence[int],
    stages: Sequence[int] | None,
    modes: Sequence[Mode],
) -> list[tuple[int, Placement, Mode]]:
    """Return choices of microbatches, placement and mode, in the order in which to try them.

    Choices with few stages come first, because they price fast; then those with the least idle
    time. Filling and draining a pipeline costs (meshes - 1) / (microbatches x stages per mesh).

    Raises:
      StageError: there are more stages than blocks, or the number of stages is not a multiple of
        the number of meshes.
    """
    count = len(cluster.meshes)
    faults = []
    for number in stages or (count,):
        if number > len(blocks):
            faults.append(
                f"{number} stages are more than the "
                f"{counted(len(blocks), 'repeated block')} of {name} "
                f"({blocks[0]} to {blocks[-1]})"
            )
        elif number % count or number < count:
            faults.append(f"{count} meshes do not share {counted(number, 'stage')} evenly")
    if faults:
        raise StageError("these stages cannot be placed:" + "".join(f"\n  * {f}" for f in faults))

    def rank(choice: tuple[int, Placement, Mode]) -> tuple[float, int, float, str]:
        m, placement, mode = choice
        turns = placement.stages // count
        return turns + (mode == "split"), turns, (count - 1) / (m * turns), placement.name

    found: list[tuple[int, Placement, Mode]] = [
        (m, placement, mode)
        for m in microbatches
        for number in (stages or (None,))
        for placement in placements(cluster, number, blocks=len(blocks))
        for mode in modes
    ]
    return sorted(found, key=rank)
