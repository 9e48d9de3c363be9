"""What a repeated block takes at least, on a kind of mesh: the bricks of the joint bound.

The program of a stage with one block is planned without a memory limit, and the solver's proven
bound is kept, for every mesh shape that stages may get. A stage that holds the block takes at least
as long for it:

*   Costs are sums over ops and collectives. The decisions of the stage's plan for the ops of the
    block are decisions for the program of the block alone, and cost no more there: what crosses the
    block's border is free to read in any layout; latencies and launches, which blocks could share
    by being gathered or fused together, are zero; and so are transpositions.
*   An op that reads neither state nor activations (a mask, a table of positions) may be computed
    once for many blocks, and counts nothing, except in the first block.
*   A memory limit, or the order of tasks, only forbids.

A bound that is not asked of the solver is the work of the ops, perfectly shared. What is fused with
what just outside of the border is taken to be the same in both programs; with a scan over layers
nothing is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from autoshard.cost.step import step_prices
from autoshard.dataflow import analyse
from autoshard.machine import Machine
from autoshard.network import Level, Torus
from autoshard.placement.stage_program import KINDS, StageProgram, kind_of
from autoshard.plan import MeshShape
from autoshard.program import Program
from autoshard.schedule import Kind
from autoshard.search import InfeasibleError, MeshError, NoPlanError, search

NO_LIMIT = 1e18
"""Bytes of a device that no plan fills."""
GAP = 0.01
"""How close the bound of a block is to be."""


@dataclass(frozen=True, slots=True)
class BlockBound:
    """What one block takes at least on one kind of mesh.

    Attributes:
      by_shape: seconds of a step, of all microbatches and the update, by mesh shape.
      work_seconds: the same without any communication, on whatever shape.
      forward_seconds, loop_seconds: of F, and of all tasks, of one microbatch; work alone.
      state_bytes: of whole state and totals of gradients.
    """

    by_shape: Mapping[MeshShape, float]
    work_seconds: float
    forward_seconds: float
    loop_seconds: float
    state_bytes: float

    @property
    def seconds(self) -> float:
        """Seconds of a step on the best shape."""
        return min(self.by_shape.values(), default=self.work_seconds)


def block_bound(
    stage: StageProgram,
    machine: Machine,
    shapes: Sequence[MeshShape],
    *,
    first: bool,
    solved: bool,
    time_limit: float,
) -> BlockBound:
    """The bound of the one block of a stage.

    Args:
      shapes: mesh shapes that stages may get.
      first: whether it is the first block of the program.
      solved: whether the solver is asked; else work alone counts.
      time_limit: seconds for each shape.
    """
    program = relaxed(stage.traced(), stage, first=first)
    machine = without_latency(machine)
    flow = analyse(program, machine.chip)
    law = step_prices(program, flow, machine, (machine.chips,))

    def work(kinds: Iterable[Kind | None]) -> float:
        wanted = set(kinds)
        return law.ideal_seconds([[op.index] for op in program.ops if kind_of(op.scope) in wanted])

    inside = work(KINDS[stage.mode])
    total = inside + work((None,))
    by_shape = {}
    for shape in shapes:
        by_shape[shape] = total
        if not solved:
            continue
        try:
            plan = search(
                program,
                machine,
                mesh=dict(zip(shape.names, shape.sizes, strict=True)),
                memory_limit=NO_LIMIT,
                time_limit=time_limit,
                gap=GAP,
                baselines=False,
            )
        except (InfeasibleError, MeshError, NoPlanError):
            continue
        if plan.proof.limit_hit == "interrupted":
            raise KeyboardInterrupt
        by_shape[shape] = max(total, plan.proof.bound)
    return BlockBound(
        by_shape,
        total,
        work(("F",)) / stage.microbatches,
        inside / stage.microbatches,
        float(
            sum(
                math.prod(aval.shape) * aval.dtype.itemsize
                for group in stage.args[:2]
                for aval in group
            )
        ),
    )


def relaxed(program: Program, stage: StageProgram, *, first: bool) -> Program:
    """The program of a block in which what crosses its border, and what may be shared, is free."""
    values = list(program.values)
    own: set[int] = set()
    for value, one in zip(program.inputs, stage.arguments, strict=True):
        if one.group in ("state", "totals"):
            own.add(value)
        else:
            own |= {value} if one.group == "sent" else set()
            values[value] = replace(values[value], free=True)
    ops = []
    for op in program.ops:
        depends = not own.isdisjoint(op.inputs)
        if depends:
            own.update(op.outputs)
        ops.append(op if depends or first else replace(op, weight=0.0))
    fingerprint = f"{program.fingerprint}, relaxed"
    return replace(program, ops=tuple(ops), values=tuple(values), fingerprint=fingerprint)


def without_latency(machine: Machine) -> Machine:
    """The machine with everything free that does not grow with sizes."""
    chip = replace(machine.chip, launch_seconds=0.0, transaction_bytes=0.0)

    def level(one: Level) -> Level:
        if isinstance(one, Torus):
            return replace(one, hop_seconds=0.0)
        return replace(one, latency_seconds=0.0)

    network = tuple(level(one) for one in machine.network)
    return replace(machine, chip=chip, network=network)
