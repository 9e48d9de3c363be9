"""Shows the progress of a long search, on stderr and never on stdout.

On a terminal, one line is overwritten again and again, by rich: what else is written to stderr
stands above it, and not in its midst. Elsewhere (a log file, a CI job), a new line appears from
time to time, and sooner when the phase changes; rich would show the last one only.

A time limit is for the search. Tracing comes before it, and a phase that is under way when the time
is over is finished where nothing can be said without it; `Phases` says which phases that were.
"""

from __future__ import annotations

import math
import os
import sys
import time
from typing import TYPE_CHECKING, TextIO

from autoshard.terminal import colour_system, is_terminal, page_width

if TYPE_CHECKING:
    from rich.live import Live

UPDATE_SECONDS = 0.1
LINE_SECONDS = 10.0
PHASE_SECONDS = 2.0
UNBROKEN = 10_000
"""Columns of what is written above the line: the terminal itself breaks what is longer than it."""

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
        self.terminal = is_terminal(self.stream) and os.environ.get("TERM") != "dumb"
        self.shown = -float("inf")
        self.group = ""
        self.began = self.limit = float("nan")
        self._line: Live | None = None

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def within(self, limit: float, began: float | None = None) -> None:
        """Say from now on how many seconds have passed, and how many of a limit are left.

        They are counted from `began`, by default from now.
        """
        self.began = time.monotonic() if began is None else began
        self.limit = limit

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
        if not math.isnan(self.limit):
            passed = now - self.began
            text = f"[{passed:.1f} s, {max(self.limit - passed, 0):.0f} s left] {text}"
        if self.terminal:
            self._redraw(text)
        else:
            self.stream.write(f"{text}\n")
            self.stream.flush()

    def clear(self) -> None:
        """Clear the line, so that further output starts on an empty one."""
        if self._line is not None:
            self._line.stop()
            self._line = None

    def _redraw(self, text: str) -> None:
        from rich.text import Text

        if self._line is None:
            self._line = _live(self.stream)
            self._line.start()
        one = Text(text, style="cyan", end="")
        one.truncate(page_width(self.stream) - 1, overflow="ellipsis")
        self._line.update(one, refresh=True)


def _live(stream: TextIO) -> Live:
    """One line of a terminal, which is not there any more when it is stopped."""
    from rich.console import Console
    from rich.live import Live

    colours = colour_system(stream)
    console = Console(
        file=stream,
        width=UNBROKEN,
        color_system=colours,  # pyright: ignore[reportArgumentType]
        no_color=colours is None,
        force_terminal=True,
        force_jupyter=False,
        highlight=False,
    )
    return Live(console=console, auto_refresh=False, transient=True, redirect_stdout=False)


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
