"""The step of a plan as a trace for Perfetto (https://ui.perfetto.dev) and chrome://tracing.

Threads for compute and for collectives (see `autoshard.display.timeline`), and a counter of bytes
in use by class. Times are microseconds. Format:
https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from autoshard.display.memory import CLASSES, memory
from autoshard.display.profile import Profile
from autoshard.display.timeline import COMPUTE, Block, StepTimeline, step_timeline
from autoshard.report_moves import collective_name

PROCESS = 0
MICROSECONDS = 1e6


def chrome_trace(found: Profile) -> dict[str, Any]:
    """The trace as a JSON object."""
    plan = found.plan
    timeline = step_timeline(found)
    lanes = 1 + max((block.lane for block in timeline.collectives), default=-1)
    events = [
        _named("process_name", 0, f"{plan.program} on {plan.machine}, mesh {plan.mesh}: a device"),
        _named("thread_name", 0, "compute, and waiting for collectives"),
        *(_named("thread_name", 1 + lane, f"collectives {lane}") for lane in range(lanes)),
        *(_event(found, block, thread=0) for block in timeline.compute),
        *(_event(found, block, thread=1 + block.lane) for block in timeline.collectives),
        *_counters(found, timeline),
    ]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _named(what: str, thread: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": PROCESS, "tid": thread, "args": {"name": name}}


def _event(found: Profile, block: Block, *, thread: int) -> dict[str, Any]:
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
    return {
        "name": name,
        "cat": op.primitive if block.kind == COMPUTE else block.kind,
        "ph": "X",
        "ts": block.start * MICROSECONDS,
        "dur": block.seconds * MICROSECONDS,
        "pid": PROCESS,
        "tid": thread,
        "args": known,
    }


def _counters(found: Profile, timeline: StepTimeline) -> Iterator[dict[str, Any]]:
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
            yield {
                "name": "memory, bytes",
                "ph": "C",
                "ts": float(moment) * MICROSECONDS,
                "pid": PROCESS,
                "args": {CLASSES[k]: count for k, count in zip(used, taken, strict=True)},
            }
        last = taken
