"""A timeline as a trace for Perfetto and chrome://tracing (see `autoshard.trace_events`).

One thread a mesh, one counter a mesh for the memory taken, one arrow for each transfer between
meshes. The format counts in microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from autoshard import trace_events
from autoshard.solve.schedule.instance import Instance
from autoshard.solve.schedule.timeline import Run, Timeline, memory_over_time
from autoshard.trace_events import Event


def chrome_trace(
    instance: Instance, timeline: Timeline, *, microseconds: float = 1.0
) -> dict[str, Any]:
    """The trace as a JSON object; a unit of the instance's time is so many microseconds."""
    events: list[Event] = [trace_events.process(instance.name or "pipeline")]
    for mesh, runs in enumerate(timeline.runs):
        events.append(trace_events.thread(mesh, f"mesh {mesh}"))
        for task, start, end in runs:
            known = {"stage": task.stage, "microbatch": task.microbatch}
            events.append(
                trace_events.block(
                    str(task),
                    task.kind,
                    start=start * microseconds,
                    duration=(end - start) * microseconds,
                    thread=mesh,
                    known=known,
                )
            )
        events += [
            trace_events.counter(
                f"memory of mesh {mesh}", time=time * microseconds, values={"taken": taken}
            )
            for time, taken in memory_over_time(instance, runs)
        ]
    return trace_events.document([*events, *_transfers(instance, timeline, microseconds)])


def _transfers(instance: Instance, timeline: Timeline, microseconds: float) -> Iterator[Event]:
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
            yield from trace_events.arrow(
                "transfer",
                number,
                start=run.end * microseconds,
                source=mesh,
                end=later.start * microseconds,
                target=there,
            )
