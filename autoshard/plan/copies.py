"""Resharded copies of a value: whom they serve, how often they are made, how long they live.

A value's readers are in two phases, see `autoshard.program.readers`. A copy's mode is a set of
bits: it serves the first readers, the second, or both; kept in between, or made anew for the
second.
"""

from __future__ import annotations

from collections.abc import Sequence

from autoshard.program.graph import Program
from autoshard.program.readers import Phase, Reader

FIRST, SECOND, KEPT, ANEW = 1, 2, 3, 7
VISIBLE = {Phase.FIRST: FIRST, Phase.SECOND: SECOND, Phase.AFTER: 0}
"""The bit that a reader of each phase looks for."""
_LIVES = frozenset({FIRST, ANEW}), frozenset({SECOND, ANEW}), frozenset({KEPT})
"""The modes in which a copy lives from the first to the last of the readers in the first phase, in
the second, and in both."""


def value_trips(program: Program, value: int) -> float:
    """How often a value is made, and so how often a copy of it is."""
    record = program.values[value]
    weight = program.ops[record.producer].weight if record.producer >= 0 else 1.0
    return record.trips * weight


def crosses_passes(program: Program, readers: Sequence[Reader]) -> bool:
    """Whether the two phases are the two passes, so that a copy may be worth making anew."""
    early = [program.ops[use.op] for use in readers if use.phase is not Phase.AFTER]
    return len({op.backward for op in early}) == 2


def copy_intervals(readers: Sequence[Reader]) -> list[tuple[frozenset[int], tuple[int, int]]]:
    """The modes in which a copy lives over an interval of program points, and the interval."""
    first = [use for use in readers if use.phase is Phase.FIRST]
    second = [use for use in readers if use.phase is Phase.SECOND]
    lives = zip(_LIVES, (first, second, first + second), strict=True)
    return [
        (modes, (min([use.at for use in uses]), max([use.last for use in uses]) + 1))
        for modes, uses in lives
        if uses
    ]
