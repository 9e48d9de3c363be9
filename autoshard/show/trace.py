"""The step of a plan as a trace for Perfetto and chrome://tracing (see `autoshard.trace_events`).

Threads for compute and for collectives (see `autoshard.show.timeline`), and a counter of bytes
in use by class.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from autoshard import trace_events
from autoshard.plan.text.moves import collective_name
from autoshard.show.memory import CLASSES, memory
from autoshard.show.profile import Profile
from autoshard.show.timeline import COMPUTE, Block, StepTimeline, step_timeline
from autoshard.trace_events import MICROSECONDS, Event


def chrome_trace(found: Profile) -> dict[str, Any]:
    """The trace as a JSON object."""
    plan = found.plan
    timeline = step_timeline(found)
    lanes = 1 + max((block.lane for block in timeline.collectives), default=-1)
    events = [
        trace_events.process(f"{plan.program} on {plan.machine}, mesh {plan.mesh}: a device"),
        trace_events.thread(0, "compute, and waiting for collectives"),
        *(trace_events.thread(1 + lane, f"collectives {lane}") for lane in range(lanes)),
        *(_event(found, block, thread=0) for block in timeline.compute),
        *(_event(found, block, thread=1 + block.lane) for block in timeline.collectives),
        *_counters(found, timeline),
    ]
    return trace_events.document(events)


def _event(found: Profile, block: Block, *, thread: int) -> Event:
    op = found.program.ops[block.op]
    if block.placed is None:
        name = f"{op.primitive} {op.scope}".strip()
        known = {"scope": op.scope, "line": op.line, "times": op.trips, "TFLOP": op.flops / 1e12}
        known["pass"] = "backward" if op.backward else "forward or update"
    else:
        move = block.placed.move
        name = collective_name(move.kind, move.axes, found.plan.mesh.names)
        name = name if block.kind == move.kind else f"wait for {name}"
        known = {
            "value": move.value,
            "scope": move.scope,
            "line": move.line,
            "times": move.count,
            "bytes": move.bytes,
            "seconds": move.seconds,
            "exposed_seconds": move.exposed_seconds,
        }
    return trace_events.block(
        name,
        op.primitive if block.kind == COMPUTE else block.kind,
        start=block.start * MICROSECONDS,
        duration=block.seconds * MICROSECONDS,
        thread=thread,
        known=known,
    )


def _counters(found: Profile, timeline: StepTimeline) -> Iterator[Event]:
    """Bytes in use by class; of the program points that fall on one moment, the fullest."""
    curves = memory(found).curves
    used = [k for k in range(len(CLASSES)) if curves[k].max(initial=0.0) > 0.5]
    totals = curves.sum(axis=0)
    end = found.plan.estimate.step_seconds
    starts = [timeline.starts[index] for index in found.order]
    times = np.array([*starts, *[end] * (len(totals) - len(starts))])
    last: list[int] | None = None
    for moment in np.unique(times):
        points = np.flatnonzero(times == moment)
        fullest = points[totals[points].argmax()]
        taken = [round(float(curves[k, fullest])) for k in used]
        if taken != last:
            yield trace_events.counter(
                "memory, bytes",
                time=float(moment) * MICROSECONDS,
                values={CLASSES[k]: count for k, count in zip(used, taken, strict=True)},
            )
        last = taken
