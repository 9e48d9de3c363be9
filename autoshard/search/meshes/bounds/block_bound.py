"""Lower bounds of a repeated block on a kind of mesh, the bricks of the joint bound.

For every mesh shape that stages may get, the solver plans the program of a stage with n blocks
without a memory limit. The bound of a block is an n-th of the solver's proven bound. A stage that
holds the block takes at least that long for it, for these reasons:

*   Costs are sums over ops and collectives. The decisions of the stage's plan for the ops of its
    blocks are also decisions for the program of the blocks alone, and cost no more there. Values
    that cross the border of the blocks are free to read in any layout. Latencies and launches,
    which blocks could share if they were gathered or fused together, are zero. The remaining cost
    is proportional to the number of blocks.
*   An op that reads neither state nor activations (a mask, a table of positions) may be computed
    once for many blocks. It costs nothing, except in the first block.
*   Iterations of a scan get the values that cross their border in the order of their dimensions, so
    transpositions count. Iterations are stacked, and the stack may be sharded, so n is a multiple
    of whatever could shard it. Other blocks stand alone, and their transpositions are free.
*   A memory limit, or the order of tasks, only excludes plans.

Before the solver runs, and where its time runs out, the bound is the work of the ops, perfectly
shared. The bound assumes that ops fuse with ops just outside the border in the same way in both
programs; with a scan over layers, no ops fuse across the border.

With k times as many microbatches, each with a k-th of the rows, the work is no less. Data movement
and compute for rows stay the same, and those for weights grow k-fold (`BlockBound.finer`). If no
transposition is priced, the same holds for the whole bound, because a layout that divides a part
evenly also divides the whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from autoshard.cost.step_prices import step_prices
from autoshard.machine.chip import Chip
from autoshard.machine.machine import Machine
from autoshard.machine.network import Level, Torus
from autoshard.plan.plan import MeshShape
from autoshard.problem.build import build
from autoshard.problem.memo import Shared
from autoshard.problem.requirements.restrict import EmptyDomainError
from autoshard.program.facts import Facts
from autoshard.program.trace import Program
from autoshard.search.meshes.stage_program import KINDS, StageProgram, kind_of
from autoshard.search.options import SearchOptions, WarmStart
from autoshard.search.search import MeshError, prepare
from autoshard.solve import Status
from autoshard.solve.limit_hit import LimitHit
from autoshard.solve.pipeline import solve
from autoshard.solve.schedule.task import Kind
from autoshard.xla import analyse

GAP = 0.01
"""The relative gap at which the bound of a block is good enough."""


@dataclass(frozen=True, slots=True)
class BlockBound:
    """The lower bound of one block on one kind of mesh.

    Attributes:
      by_shape: seconds of a step for all microbatches and the update, by mesh shape.
      work_seconds: the same without any communication, for all shapes.
      forward_seconds, loop_seconds: seconds of F, and of all tasks, of one microbatch; work only.
      state_bytes: bytes of the whole state and totals of gradients.
    """

    by_shape: Mapping[MeshShape, float]
    work_seconds: float
    forward_seconds: float
    loop_seconds: float
    state_bytes: float

    @property
    def seconds(self) -> float:
        """Return the seconds of a step on the best shape."""
        return min(self.by_shape.values(), default=self.work_seconds)

    def raised(self, shape: MeshShape, seconds: float) -> BlockBound:
        """Return the bound, updated with the new seconds for a mesh shape."""
        known = max(self.by_shape.get(shape, self.work_seconds), seconds)
        return replace(self, by_shape={**self.by_shape, shape: known})

    def least(self, other: BlockBound) -> BlockBound:
        """Return the smaller of each number of two bounds on the same shapes."""
        shapes = {
            shape: min(seconds, other.by_shape[shape]) for shape, seconds in self.by_shape.items()
        }
        return BlockBound(
            shapes,
            min(self.work_seconds, other.work_seconds),
            min(self.forward_seconds, other.forward_seconds),
            min(self.loop_seconds, other.loop_seconds),
            min(self.state_bytes, other.state_bytes),
        )

    def finer(self, times: int, *, solved: bool = False) -> BlockBound:
        """Return the bound for `times` as many microbatches: of the work only, or `solved`."""
        return replace(
            self,
            by_shape=self.by_shape if solved else dict.fromkeys(self.by_shape, self.work_seconds),
            forward_seconds=self.forward_seconds / times,
            loop_seconds=self.loop_seconds / times,
        )


@dataclass(slots=True)
class Block:
    """The program of a stage of equal blocks, whose bound is sought on kinds of meshes.

    Attributes:
      stage: the stage.
      program: the relaxed program of the stage.
      count: the number of blocks.
      scanned: whether the blocks are iterations of a scan.
      shared: the tables that builds for different machines share, by mesh shape.
      flows: the program's analysis, by chip.
    """

    stage: StageProgram
    program: Program
    count: int = 1
    scanned: bool = False
    shared: dict[MeshShape, Shared] = field(default_factory=dict)
    flows: dict[Chip, Facts] = field(default_factory=dict)

    @classmethod
    def of(
        cls, stage: StageProgram, *, first: bool, count: int = 1, scanned: bool = False
    ) -> Block:
        """Return the blocks of a stage; `first` says if the first of the step is among them."""
        return cls(stage, relaxed(stage.traced(), stage, first=first), count, scanned)

    def work(self, machine: Machine, shapes: Sequence[MeshShape]) -> BlockBound:
        """Return the bound from the work of a block, perfectly shared, without the solver."""
        program, stage = self.program, self.stage
        machine = without_latency(machine, scanned=False)
        law = step_prices(program, self._flow(machine.chip), machine, (machine.chips,))

        def work(kinds: Iterable[Kind | None]) -> float:
            wanted = set(kinds)
            ops = [[op.index] for op in program.ops if kind_of(op.scope) in wanted]
            return law.ideal_seconds(ops) / self.count

        inside = work(KINDS[stage.mode])
        total = inside + work((None,))
        state = sum(
            math.prod(aval.shape) * aval.dtype.itemsize
            for group in stage.args[:2]
            for aval in group
        )
        return BlockBound(
            dict.fromkeys(shapes, total),
            total,
            work(("F",)) / stage.microbatches,
            inside / stage.microbatches,
            state / self.count,
        )

    def solved(self, machine: Machine, shape: MeshShape, time_limit: float) -> float:
        """Return the lower bound in seconds of a step that the solver proves on a mesh shape.

        Raises:
          KeyboardInterrupt: an interrupt came.
        """
        machine = without_latency(machine, scanned=self.scanned)
        mesh = dict(zip(shape.names, shape.sizes, strict=True))
        try:
            flow = self._flow(machine.chip)
            asked = SearchOptions(mesh=mesh, gap=GAP)
            searcher, _ = prepare(self.program, machine, asked, WarmStart(facts=flow))
            built = build(
                searcher.prices(shape.sizes),
                searcher.classes,
                limit=None,
                shared=self.shared.setdefault(shape, Shared()),
            )
            assert searcher.demands is not None
            built = searcher.demands.applied(built, seconds=time_limit)
        except (EmptyDomainError, MeshError):
            return 0.0
        ideal = searcher.ideal
        outcome = solve(built.problem, time_limit=time_limit, gap=GAP, known_bound=ideal)
        if outcome.report.limit_hit is LimitHit.INTERRUPTED:
            raise KeyboardInterrupt
        proven = 0.0 if outcome.status is Status.INFEASIBLE else outcome.report.bound
        return proven / self.count

    def _flow(self, chip: Chip) -> Facts:
        if chip not in self.flows:
            self.flows[chip] = analyse(self.program, chip)
        return self.flows[chip]


def relaxed(program: Program, stage: StageProgram, *, first: bool) -> Program:
    """Return a block's program in which border values, and work that may be shared, are free."""
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


def without_latency(machine: Machine, *, scanned: bool) -> Machine:
    """Return the machine with all costs zero that do not grow with sizes, such as those of tiles.

    Args:
      scanned: whether blocks are iterations of a scan; otherwise transpositions are free too.
    """
    chip = replace(machine.chip, launch_seconds=0.0, lanes=1, sublanes=1)
    if not scanned:
        chip = replace(chip, transaction_bytes=0.0)

    def level(one: Level) -> Level:
        if isinstance(one, Torus):
            return replace(one, hop_seconds=0.0)
        return replace(one, latency_seconds=0.0, start_seconds=0.0)

    network = tuple(level(one) for one in machine.network)
    return replace(machine, chip=chip, network=network)
