"""Shows the progress of a long search, on stderr and never on stdout.

On a terminal, one line is overwritten again and again. Elsewhere (a log file, a CI job), a new line
appears from time to time, and sooner when the phase changes.

A time limit is for the search. Tracing comes before it, and a phase that is under way when the time
is over is finished where nothing can be said without it; `Phases` says which phases that were.
"""

from __future__ import annotations

import shutil
import sys
import time
from typing import TextIO

UPDATE_SECONDS = 0.1
LINE_SECONDS = 10.0
PHASE_SECONDS = 2.0

GRACE_SECONDS, GRACE = 1.0, 0.1
"""A command may take so long, and this share of its time limit, beyond it without a word."""
WORDS = {
    "trace": "tracing and its sharding rules",
    "analyse": "what the compiler makes of the program",
    "build": "building the problems",
    "forecast": "the plan in the compiler's order",
    "finish": "pricing the plan",
}
"""Phases by name; all others are the solver's."""
SOLVER = "the solver"


class ProgressLine:
    """Shows the latest of many messages; a context manager that clears the line at its end."""

    def __init__(self, *, quiet: bool = False, stream: TextIO | None = None) -> None:
        self.quiet = quiet
        self.stream = sys.stderr if stream is None else stream
        self.terminal = self.stream.isatty()
        self.shown = -float("inf")
        self.group = ""

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def show(self, text: str, *, group: str) -> None:
        """Show `text` if enough time has passed; less is needed if `group` (the phase) is new."""
        if self.quiet:
            return
        now = time.monotonic()
        changed = group != self.group
        pause = PHASE_SECONDS if changed else LINE_SECONDS
        if self.terminal:
            pause = 0.0 if changed else UPDATE_SECONDS
        if now - self.shown < pause:
            return
        self.group, self.shown = group, now
        if self.terminal:
            width = shutil.get_terminal_size().columns - 1
            self.stream.write(f"\r\x1b[K{text[:width]}")
        else:
            self.stream.write(f"{text}\n")
        self.stream.flush()

    def clear(self) -> None:
        """Clear the line, so that further output starts on an empty one."""
        if self.terminal and not self.quiet and self.group:
            self.stream.write("\r\x1b[K")
            self.stream.flush()


class Phases:
    """Adds up the seconds of each phase."""

    def __init__(self) -> None:
        self.started = self.entered = time.monotonic()
        self.now = ""
        self.seconds: dict[str, float] = {}

    def enter(self, phase: str) -> None:
        """Say that a phase begins, which ends the one before."""
        moment = time.monotonic()
        name = WORDS.get(phase, SOLVER)
        if self.now:
            self.seconds[self.now] = self.seconds.get(self.now, 0.0) + moment - self.entered
        self.now, self.entered = name, moment

    def beyond(self, limit: float) -> str:
        """Say in one line which phases took longer than the limit; empty where it was kept."""
        self.enter("finish")
        took = time.monotonic() - self.started
        if took <= limit + max(GRACE_SECONDS, GRACE * limit):
            return ""
        longest = sorted(self.seconds.items(), key=lambda item: -item[1])
        said = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in longest if seconds >= 0.1)
        return (
            f"this took {took:.1f} s, and the time limit is {limit:g} s: {said}; what is begun is "
            "finished where there is no plan without it"
        )
