"""Events of a trace for Perfetto (https://ui.perfetto.dev) and chrome://tracing.

Blocks on threads, counters, and arrows from block to block. Times count in microseconds. Format:
https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Event = dict[str, Any]
PROCESS = 0
MICROSECONDS = 1e6


def document(events: Iterable[Event]) -> dict[str, Any]:
    """The trace as a JSON object."""
    return {"traceEvents": list(events), "displayTimeUnit": "ms"}


def process(name: str) -> Event:
    """What all of the threads are, together."""
    return _named("process_name", 0, name)


def thread(number: int, name: str) -> Event:
    """The name of a thread."""
    return _named("thread_name", number, name)


def block(
    name: str,
    category: str,
    *,
    start: float,
    duration: float,
    thread: int,
    known: Mapping[str, Any],
) -> Event:
    """Something that takes time, with what is `known` of it."""
    return {
        "name": name,
        "cat": category,
        "ph": "X",
        "ts": start,
        "dur": duration,
        "pid": PROCESS,
        "tid": thread,
        "args": dict(known),
    }


def counter(name: str, *, time: float, values: Mapping[str, float]) -> Event:
    """Numbers that hold from a time on, stacked."""
    return {"name": name, "ph": "C", "ts": time, "pid": PROCESS, "args": dict(values)}


def arrow(
    name: str, number: int, *, start: float, source: int, end: float, target: int
) -> tuple[Event, Event]:
    """An arrow from one thread's block that ends at `start` to another's that begins at `end`."""
    flow = {"name": name, "cat": name, "id": number, "pid": PROCESS}
    return (
        flow | {"ph": "s", "ts": start, "tid": source},
        flow | {"ph": "f", "bp": "e", "ts": end, "tid": target},
    )


def _named(what: str, number: int, name: str) -> Event:
    return {"name": what, "ph": "M", "pid": PROCESS, "tid": number, "args": {"name": name}}
