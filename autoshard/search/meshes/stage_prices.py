"""Prices all stages of a choice: picks mesh shapes by bound, and shares memory among stages."""

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
"""Fractions of the memory beside state that plans of stages may use; microbatches get the rest."""
NO_TIME = "no time for its prices"
LEAST_SECONDS = 2.0
"""The minimum seconds per stage, even after the time is over, so that every trial has prices."""


@dataclass(slots=True)
class StagePrices:
    """Prices the stages of one request.

    A mesh has one shape for all of its stages. For each number of microbatches, it is the best
    shape of the stage with the most bytes in the first choice. Other stages and choices use the
    same shape.

    Attributes:
      shapes: the shape of a machine, by its name and the number of microbatches.
      deadline: the time, in seconds of `time.monotonic`, after which no stage may still be in
        work; a stage that may take longer is not started.
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
        bricks: Sequence[Bricks],
        stop: float,
        level: int,
        *,
        rough: bool = True,
    ) -> tuple[StagePrice, ...] | str:
        """Return the prices of all stages, or why one of them has none; arguments as for `each`."""
        found = self.each(
            partition, programs, placement, bricks, stop, level, rough=rough, needed=True
        )
        for stage, one in found.items():
            if isinstance(one, str):
                machine = self.request.cluster.meshes[placement.mesh_of[stage]]
                return one if one == NO_TIME else f"stage {stage} on {machine.name}: {one}"
        return tuple(one for _, one in sorted(found.items()) if not isinstance(one, str))

    def each(
        self,
        partition: Partition,
        programs: Sequence[StageProgram],
        placement: Placement,
        bricks: Sequence[Bricks],
        stop: float,
        level: int,
        *,
        rough: bool = True,
        needed: bool = False,
    ) -> dict[int, StagePrice | str]:
        """Return the price of every stage, or why it has none.

        Args:
          programs: the programs of the stages.
          bricks: the bounds of the blocks of every stage.
          stop: when to stop, in seconds of `time.monotonic`.
          level: how tight memory is, as an index into `LEVELS`.
          rough: whether the prices only serve to compare choices.
          needed: whether the prices are of no use if one is missing: then they end with it.
        """
        traced = [self.pricer.traced(program) for program in programs]
        names = partition.cut.stages.names
        machines = [self.request.cluster.meshes[mesh] for mesh in placement.mesh_of]
        sizes = [_bytes(program, 3) for program in programs]
        found: dict[int, StagePrice | str] = {}
        order = sorted(range(len(programs)), key=lambda s: -sizes[s])
        for stage in (*order, *order):  # twice: a plan found for one stage may suit others better
            if isinstance(found.get(stage), str):
                continue
            machine, key = machines[stage], (machines[stage].name, partition.microbatches)
            shape = self.shapes.get(key)
            shapes = self.pricer.candidates(machine) if shape is None else [shape]
            bound = bricks[stage].stage_seconds
            least = {one: bound(names[stage], machine.name, one) for one in shapes}
            if stage not in found and time.monotonic() + self.pricer.slowest > self.deadline:
                found[stage] = NO_TIME
                if needed:
                    return found
                continue
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
            found[stage] = price
            if not isinstance(price, str):
                self.shapes.setdefault(key, price.mesh)
            elif needed:
                return found
        return found

    def _limit(
        self,
        programs: Sequence[StageProgram],
        machine: Machine,
        placement: Placement,
        stage: int,
        level: int,
    ) -> float:
        """Return the bytes per device that a stage may use of its mesh.

        The state of each stage, sharded over all chips, is set aside. The usable part of the rest
        has two halves. One half is for memory that a stage needs only while it runs; every stage of
        the mesh gets all of it. The other half is for memory that stays; stages share it in
        proportion to their state.
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
    """Return the bytes of the whole arrays in the first `groups` groups of arguments."""
    return float(
        sum(
            math.prod(aval.shape) * aval.dtype.itemsize
            for group in program.args[:groups]
            for aval in group
        )
    )
