"""What is believed of compilers, held to them: which habits hold.

    named(names)     the habits of these names
    ask(habits)      every probe compiled by the installed compilers

What each of them is worth says `autoshard.study.worth`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from autoshard.compiler.probes import Outcome, run_probe
from autoshard.near import did_you_mean
from autoshard.xla import HABITS, Habit


class HabitError(ValueError):
    """Names that are not habits; the message proposes near ones."""


def named(names: Sequence[str]) -> tuple[Habit, ...]:
    """The habits of these names.

    Raises:
      HabitError: some are not names of habits.
    """
    known = {habit.name: habit for habit in HABITS}
    lines = []
    for name in names:
        if name not in known:
            asked = did_you_mean(name, known)
            lines.append(f"there is no habit {name!r}{f'; {asked}' if asked else ''}")
    if lines:
        raise HabitError("\n  - ".join(["no habits:", *lines]))
    return tuple(known[name] for name in names)


def ask(
    habits: Iterable[Habit], *, workers: int | None = None, cache: Path | None = None
) -> Iterator[Outcome]:
    """What the installed compilers say of each, in order, as the answers come.

    Args:
      habits: with their probes.
      workers: compiles at once; by default as many as there are cores.
      cache: folder of earlier answers; by default the user's.
    """
    with ThreadPoolExecutor(workers or os.cpu_count()) as pool:
        yield from pool.map(lambda habit: run_probe(habit, cache=cache), habits)
