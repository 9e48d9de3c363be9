"""Prices of all stages of a choice: mesh shapes by their bounds, and memory shared among stages."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from autoshard.lower.mpmd.partition import Partition
from autoshard.machine.machine import Machine
from autoshard.plan.plan import MeshShape
from autoshard.search.meshes.bounds.bricks import Bricks
from autoshard.search.meshes.choices import Placement
from autoshard.search.meshes.price import StagePrice
from autoshard.search.meshes.pricer import Pricer
from autoshard.search.meshes.request import Request
from autoshard.search.meshes.stage_program import StageProgram

LEVELS = (1.0, 0.7, 0.4)
"""Of the memory that state leaves, what plans of stages may use; the rest is for microbatches."""
LEAST_SECONDS = 2.0
"""For a stage, also where the time is over: what is begun is priced."""


@dataclass(slots=True)
class StagePrices:
    """Prices stages of one request.

    A mesh has one shape for all of its stages. It is the best of the stage with most bytes of the
    first choice with so many microbatches; other stages and choices follow it.

    Attributes:
      shapes: the shape of a machine, by its name and the number of microbatches.
      deadline: no stage is begun that may not be done by then, in seconds of `time.monotonic`.
    """

    request: Request
    pricer: Pricer
    shapes: dict[tuple[str, int], MeshShape] = field(default_factory=dict)
    deadline: float = math.inf

    def of(
        self,
        partition: Partition,
        programs: Sequence[StageProgram],
        placement: Placement,
        bricks: Bricks,
        stop: float,
        level: int,
        *,
        rough: bool = True,
    ) -> tuple[StagePrice, ...] | str:
        """Prices of all stages, or why one has none.

        Args:
          programs: of the stages.
          bricks: bounds of their blocks.
          stop: when to, in seconds of `time.monotonic`.
          level: how tight memory is to be, one of `LEVELS`.
          rough: whether prices are only to compare choices.
        """
        traced = [program.traced() for program in programs]
        names = partition.cut.stages.names
        machines = [self.request.cluster.meshes[mesh] for mesh in placement.mesh_of]
        sizes = [_bytes(program, 3) for program in programs]
        found: dict[int, StagePrice] = {}
        order = sorted(range(len(programs)), key=lambda s: -sizes[s])
        for stage in (*order, *order):  # once more: what was found for one may be better for others
            machine, key = machines[stage], (machines[stage].name, partition.microbatches)
            shape = self.shapes.get(key)
            shapes = self.pricer.candidates(machine) if shape is None else [shape]
            least = {one: bricks.stage_seconds(names[stage], machine.name, one) for one in shapes}
            if stage not in found and time.monotonic() + self.pricer.slowest > self.deadline:
                return "no time for its prices"
            limit = self._limit(programs, machine, placement, stage, level)
            waiting = {traced[s].fingerprint for s in order if s not in found} or {""}
            left = stop - time.monotonic()
            price = self.pricer.price(
                programs[stage],
                machine,
                least,
                limit,
                max(left / len(waiting), LEAST_SECONDS),
                most=left,
                rough=rough,
                program=traced[stage],
            )
            if isinstance(price, str) and stage in found:
                continue
            if isinstance(price, str):
                return f"stage {stage} on {machine.name}: {price}"
            self.shapes.setdefault(key, price.mesh)
            found[stage] = price
        return tuple(found[stage] for stage in range(len(programs)))

    def _limit(
        self,
        programs: Sequence[StageProgram],
        machine: Machine,
        placement: Placement,
        stage: int,
        level: int,
    ) -> float:
        """What a stage may use of its mesh, whose stages have their state, sharded over all chips.

        Of the rest it gets one part that is for what it has while it works, as all stages of the
        mesh do, and a share by its state of one that is for what stays.
        """
        mesh = placement.mesh_of[stage]
        state = {
            s: _bytes(program, 2) / machine.chips
            for s, program in enumerate(programs)
            if placement.mesh_of[s] == mesh
        }
        rest = max(self.request.limits[mesh] - sum(state.values()), 1.0)
        share = state[stage] / max(sum(state.values()), 1e-9)
        return state[stage] + rest * LEVELS[level] * (1 + share) / 2


def _bytes(program: StageProgram, groups: int) -> float:
    """Bytes of whole arrays in the first groups of arguments."""
    return float(
        sum(
            math.prod(aval.shape) * aval.dtype.itemsize
            for group in program.args[:groups]
            for aval in group
        )
    )
