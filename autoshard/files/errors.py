"""How a file is refused: one line with the file, the place in it, the value, what is expected."""

from __future__ import annotations

from autoshard.units import counted

MOST_SHOWN = 60


class FileError(ValueError):
    """A file that cannot be used; the message says where, what is there, and what should be."""


def shown(value: object) -> str:
    """A value as a message has it: short, whatever it is.

    >>> shown([1, 2])
    'a list of 2'
    """
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    if isinstance(value, dict):
        return f"an object of {counted(len(value), 'entry')}"
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, int) and value.bit_length() > 128:
        return f"a number of {round(value.bit_length() * 0.30103)} digits"
    text = repr(value)
    return text if len(text) <= MOST_SHOWN else f"{text[: MOST_SHOWN - 4]}...{text[-1]}"
