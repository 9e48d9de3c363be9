"""What ends a search before it is done."""

from __future__ import annotations

import enum


class LimitHit(enum.StrEnum):
    """What ended a search; `message` says it to people.

    A member is written and compared as its plain word: `LimitHit.TIME == "time"`.
    """

    message: str

    TIME = "time", "stopped by the time limit"
    GAP = "gap", "as close as was asked for"
    INTERRUPTED = "interrupted", "interrupted"
    CUTOFF = "cutoff", "the caller has a plan that none here beats by more than the gap"
    BOUND = "bound", "looked at for a bound or a plan to beat, not solved"
    ORDER = "order", "better ones take more memory than there is, as their compiler orders them"
    COMPILER = "compiler", "the compiler prefers it to what is predicted best"

    def __new__(cls, word: str, message: str) -> LimitHit:
        member = str.__new__(cls, word)
        member._value_ = word
        member.message = message
        return member


def limit_hit(word: str | None) -> LimitHit | None:
    """The member for a word, as from JSON; None stays None."""
    return None if word is None else LimitHit(word)
