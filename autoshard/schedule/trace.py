"""A timeline as a trace for Perfetto (https://ui.perfetto.dev) and chrome://tracing.

One thread a mesh, one counter a mesh for the memory taken, one arrow for each transfer between
meshes. The format counts in microseconds: one unit of the instance's time is shown as one. Format:
https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from autoshard.schedule.instance import Instance
from autoshard.schedule.timeline import Run, Timeline, memory_over_time

PROCESS = 0


def chrome_trace(instance: Instance, timeline: Timeline) -> dict[str, Any]:
    """The trace as a JSON object."""
    events: list[dict[str, Any]] = [_named("process_name", 0, instance.name or "pipeline")]
    for mesh, runs in enumerate(timeline.runs):
        events.append(_named("thread_name", mesh, f"mesh {mesh}"))
        for task, start, end in runs:
            events.append(
                {
                    "name": str(task),
                    "cat": task.kind,
                    "ph": "X",
                    "ts": start,
                    "dur": end - start,
                    "pid": PROCESS,
                    "tid": mesh,
                    "args": {"stage": task.stage, "microbatch": task.microbatch},
                }
            )
        for time, taken in memory_over_time(instance, runs):
            events.append(
                {
                    "name": f"memory of mesh {mesh}",
                    "ph": "C",
                    "ts": time,
                    "pid": PROCESS,
                    "args": {"taken": taken},
                }
            )
    events += _transfers(instance, timeline)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _named(what: str, mesh: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": PROCESS, "tid": mesh, "args": {"name": name}}


def _transfers(instance: Instance, timeline: Timeline) -> Iterator[dict[str, Any]]:
    """An arrow from each task to each that reads what it made on another mesh."""
    runs: dict[tuple[str, int, int], tuple[int, Run]] = {}
    for mesh, row in enumerate(timeline.runs):
        for run in row:
            kind = "F" if run.task.kind == "F" else run.task.kind[0]
            runs[kind, run.task.stage, run.task.microbatch] = (mesh, run)
    number = 0
    for (kind, stage, microbatch), (mesh, run) in runs.items():
        readers = {"F": instance.readers, "B": instance.sources}.get(kind)
        for reader in readers(stage) if readers else ():
            there, later = runs[kind, reader, microbatch]
            if there == mesh:
                continue
            number += 1
            flow = {"name": "transfer", "cat": "transfer", "id": number, "pid": PROCESS}
            yield flow | {"ph": "s", "ts": run.end, "tid": mesh}
            yield flow | {"ph": "f", "bp": "e", "ts": later.start, "tid": there}
