"""What plans say of the compiler that they are made for: which habits, seen with which version."""

from __future__ import annotations

import functools

from autoshard.compiler.probes import KINDS, version_of
from autoshard.xla import HABITS


@functools.cache
def belief(compiler: str, flags: str = "default") -> str:
    """What is believed of a compiler, by its name, in a few words; memoised.

    With a set of flags (`autoshard.machine.compiler.FLAGS`) that is not its default, that too.

    Its habits are those that probes saw with some versions. Where another version is installed, no
    probe has seen that, and the words say so.
    """
    if not compiler:
        return "laws alone: its machine file names no compiler"
    seen = sorted({one for habit in HABITS if habit.compiler == compiler for one in habit.seen})
    installed = version_of(KINDS[compiler])
    known = ", ".join(seen)
    compiler += "" if flags == "default" else f" with {flags} flags"
    if installed and installed not in seen:
        return f"{compiler}; no probe has seen {installed}, only {known}: ask `bench habits`"
    return f"{compiler}, as probes saw it with {known}"
