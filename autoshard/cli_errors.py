"""How a command ends when it cannot do what was asked: one message and one of these codes."""

from __future__ import annotations

USAGE, INFEASIBLE, TIME_LIMIT, FAILED, INTERRUPTED = 2, 3, 4, 5, 130


class CommandError(Exception):
    """Ends the command with one message and an exit code."""

    def __init__(self, message: str, code: int = USAGE) -> None:
        super().__init__(message)
        self.code = code
