"""Resharded copies of a value: whom they serve, how often they are made, how long they live.

A copy's mode is a set of bits: it serves the readers of the forward pass, of the backward pass, or
both; kept in between, or made anew for the second.
"""

from __future__ import annotations

from collections.abc import Sequence

from autoshard.dataflow import Phase, Reader
from autoshard.graph import Program

FORWARD, BACKWARD, KEPT, ANEW = 1, 2, 3, 7
VISIBLE = {Phase.FORWARD: FORWARD, Phase.BACKWARD: BACKWARD, Phase.AFTER: 0}
"""The bit that a reader of each phase looks for."""


def value_trips(program: Program, value: int) -> float:
    """How often a value is made, and so how often a copy of it is."""
    record = program.values[value]
    weight = program.ops[record.producer].weight if record.producer >= 0 else 1.0
    return record.trips * weight


def copy_intervals(readers: Sequence[Reader]) -> dict[str, tuple[int, int]]:
    """Program points over which a copy lives for each phase, and in between if it is kept."""
    result: dict[str, tuple[int, int]] = {}
    for name, phase in (("forward", Phase.FORWARD), ("backward", Phase.BACKWARD)):
        uses = [use for use in readers if use.phase is phase]
        if uses:
            result[name] = (min(use.at for use in uses), max(use.last for use in uses) + 1)
    if len(result) == 2:
        result["between"] = (result["forward"][1], result["backward"][0])
    return result
