"""What a compiler's own timeline says that each collective of a program takes."""

from __future__ import annotations

from pathlib import Path

from autoshard.compiler import cache as answers
from autoshard.compiler.hlo.collectives import Found, HloCollective, find
from autoshard.compiler.hlo.schedule import Schedule, read_schedule
from autoshard.compiler.hlo.text import read_module
from autoshard.plan.plan import MeshShape


def collective_times(
    key: str, mesh: MeshShape, *, cache: Path | None = None
) -> list[tuple[HloCollective, float]]:
    """The collectives of a compiled program with the seconds from their start to their done.

    Empty where the compiler estimates no times for the chip. Of one that it only guesses at, as it
    does for some groups, nothing is said.

    Args:
      key: of a `Compiled`, which is kept.
      mesh: that it was compiled for.
      cache: folder of earlier answers; by default the user's.
    """
    answer = answers.load(cache or answers.default_folder(), key)
    if answer is None or not answer.schedule:
        return []
    schedule = read_schedule(answer.schedule)
    if not schedule.is_measured:
        return []
    found = find(read_module(answer.final), mesh)
    timed = ((one.record, _seconds(one, schedule)) for one in found)
    return [(record, seconds) for record, seconds in timed if seconds is not None]


def _seconds(one: Found, schedule: Schedule) -> float | None:
    computation = schedule.computations.get(one.place.computation.name)
    start = one.event.instruction.name
    if computation is None or start not in computation.starts:
        return None
    for instruction in one.place.computation.instructions:
        if instruction.opcode.endswith("-done") and instruction.operands[:1] == (start,):
            if computation.guesses([(start, instruction.name)]):
                return None
            return computation.starts[instruction.name] - computation.starts[start]
    return computation.duration(start)
