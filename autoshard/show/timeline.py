"""One step on one device, as the estimate has it: a lane of compute, and lanes of collectives.

Compute runs in the order of the program points. A collective stands in its way for its exposed
seconds; the rest of it runs beside compute: before that, where a reader waits for it, and after it,
where a sum is settled. So the compute lane ends at the estimate's `step_seconds`, and what is
exposed on it is the exposed part of the collectives. All iterations of a loop are drawn as one: an
operation is one block, with the seconds of all of its executions in the step.
"""

from __future__ import annotations

from dataclasses import dataclass

from autoshard.show.profile import PlacedMove, Profile

COMPUTE, WAITING = "compute", "exposed"


@dataclass(frozen=True, slots=True)
class Block:
    """Something that takes time: from `start`, for `seconds`.

    Attributes:
      start, seconds: in seconds from the start of the step.
      kind: "compute", "exposed" (compute waits for a collective), or the kind of a collective.
      op: index of the op that computes, or waits, or whose sum is settled.
      placed: the collective, if it is one or waits for one.
      lane: collectives that overlap are on different lanes, from 0 on; compute has its own.
    """

    start: float
    seconds: float
    kind: str
    op: int
    placed: PlacedMove | None = None
    lane: int = 0


@dataclass(frozen=True, slots=True)
class StepTimeline:
    """The lane of compute and waiting, the collectives, and when every op starts, by its index."""

    compute: tuple[Block, ...]
    collectives: tuple[Block, ...]
    starts: tuple[float, ...]


def step_timeline(found: Profile) -> StepTimeline:
    """Lay out the step of a plan over time."""
    step = found.plan.estimate.step_seconds
    moves: dict[tuple[int, bool], list[PlacedMove]] = {}
    for one in found.moves:
        moves.setdefault((one.op, one.before), []).append(one)
    compute: list[Block] = []
    spans: list[tuple[float, PlacedMove]] = []
    starts = [0.0] * len(found.program.ops)
    now = 0.0

    def wait(one: PlacedMove) -> None:
        nonlocal now
        exposed = one.move.exposed_seconds
        begins = now + exposed - one.move.seconds if one.before else now
        spans.append((max(min(begins, step - one.move.seconds), 0.0), one))
        if exposed > 0:
            compute.append(Block(now, exposed, WAITING, one.op, one))
        now += exposed

    for op in (found.program.ops[index] for index in found.order):
        for one in moves.get((op.index, True), ()):
            wait(one)
        starts[op.index] = now
        seconds = found.op_seconds.get(op.index, 0.0)
        if seconds > 0:
            compute.append(Block(now, seconds, COMPUTE, op.index))
            now += seconds
        for one in moves.get((op.index, False), ()):
            wait(one)
    return StepTimeline(tuple(compute), _on_lanes(spans), tuple(starts))


def _on_lanes(spans: list[tuple[float, PlacedMove]]) -> tuple[Block, ...]:
    """Each in the first lane that is free when it begins."""
    free: list[float] = []
    blocks = []
    for start, one in sorted(spans, key=lambda span: span[0]):
        seconds = one.move.seconds
        lane = next((k for k, until in enumerate(free) if until <= start), len(free))
        free[lane : lane + 1] = [start + seconds]
        blocks.append(Block(start, seconds, one.move.kind, one.op, one, lane))
    return tuple(blocks)
