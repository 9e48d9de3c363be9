"""Shows the progress of a long search, on stderr and never on stdout.

On a terminal, one line is overwritten again and again. Elsewhere (a log file, a CI job), a new line
appears from time to time, and sooner when the phase changes.
"""

from __future__ import annotations

import shutil
import sys
import time
from typing import TextIO

UPDATE_SECONDS = 0.1
LINE_SECONDS = 10.0
PHASE_SECONDS = 2.0


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
