"""The step as a list of instructions for one controller: run, send, stack, free.

Instructions name programs and slots, never arrays or devices. A slot holds one array on one mesh
and is written once:

    outer value           on a mesh: inputs, what phases make, finished totals
    (value, stage, i)     of microbatch i
    total after i parts   a sum over microbatches on its way

A slot is freed after its last reader; an input that no later instruction reads can be donated.
`autoshard.lower.mpmd.script` writes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from autoshard.lower.mpmd.cut.fragments import SHARED
from autoshard.lower.mpmd.cut.graph import Node
from autoshard.solve.schedule.task import Task
from autoshard.units import counted


class Slot(NamedTuple):
    """Where an array is: on `mesh`; `microbatch` is -1 for outer values."""

    mesh: int
    value: int
    stage: int = SHARED
    microbatch: int = -1
    total: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """A program of one mesh.

    It reads `inputs` (those that are `sliced` at the index of the microbatch), runs `nodes`, and
    returns `outputs` and then for each of `adds` its total so far plus the value. Arguments are
    inputs, totals, and the index if anything is sliced.
    """

    name: str
    mesh: int
    nodes: tuple[Node, ...]
    inputs: tuple[int, ...]
    sliced: tuple[bool, ...]
    adds: tuple[int, ...]
    outputs: tuple[int, ...]

    @property
    def indexed(self) -> bool:
        """Whether the program takes the index of the microbatch."""
        return any(self.sliced)


class Part(NamedTuple):
    """A unit within a merged one: where its inputs (and totals) are, and where its outputs go."""

    unit: Unit
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Merged:
    """Several units, one after another, as one program of a mesh.

    Arguments are numbered from 0, then come all results of the parts. Arguments are `inputs` many
    arrays, and the index of the microbatch for every part that is indexed.
    """

    name: str
    mesh: int
    parts: tuple[Part, ...]
    inputs: int
    outputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """Run a unit; `tasks` are those of the loop, one for each part of it.

    `inner` are the slots of all results of the parts of a merged unit, by their numbers.
    """

    unit: int
    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]
    tasks: tuple[Task, ...] = ()
    inner: tuple[Slot, ...] = ()


@dataclass(frozen=True, slots=True)
class Send:
    """Copy a slot to another mesh."""

    source: Slot
    target: Slot


@dataclass(frozen=True, slots=True)
class Gather:
    """Stack the arrays of all microbatches."""

    sources: tuple[Slot, ...]
    target: Slot


Instruction = Run | Send | Gather


@dataclass(frozen=True, slots=True, eq=False)
class Script:
    """All that a step does.

    Attributes:
      units: the programs.
      instructions: what is done, in order.
      inputs: for every input of the step, per piece, the slots that it is put into, home first.
      outputs: for every output of the step, per piece, its slot.
      frees: for every instruction the slots that nothing reads after it.
    """

    units: tuple[Unit | Merged, ...]
    instructions: tuple[Instruction, ...]
    inputs: tuple[tuple[tuple[Slot, ...], ...], ...]
    outputs: tuple[tuple[Slot, ...], ...]
    frees: tuple[tuple[Slot, ...], ...]

    def __str__(self) -> str:
        sends = sum(isinstance(one, Send) for one in self.instructions)
        runs = sum(isinstance(one, Run) for one in self.instructions)
        return (
            f"{counted(len(self.units), 'program')}, {counted(runs, 'run')}, "
            f"{counted(sends, 'transfer')}"
        )


def indices_of(unit: Unit | Merged, tasks: Sequence[Task]) -> tuple[int, ...]:
    """The microbatches whose indices a program takes, after its arrays."""
    parts = [unit] if isinstance(unit, Unit) else [part.unit for part in unit.parts]
    return tuple(task.microbatch for part, task in zip(parts, tasks, strict=False) if part.indexed)


def reads_and_writes(one: Instruction) -> tuple[tuple[Slot, ...], tuple[Slot, ...]]:
    """The slots that an instruction reads and writes."""
    if isinstance(one, Run):
        return one.inputs, one.outputs
    if isinstance(one, Send):
        return (one.source,), (one.target,)
    return one.sources, (one.target,)


def frees_of(
    instructions: Sequence[Instruction], kept: Iterable[Slot]
) -> tuple[tuple[Slot, ...], ...]:
    """For every instruction the slots that nothing reads after it, but those that are `kept`."""
    seen, frees = set(kept), []
    for one in reversed(instructions):
        reads, writes = reads_and_writes(one)
        last = [slot for slot in dict.fromkeys((*reads, *writes)) if slot not in seen]
        seen.update(last)
        frees.append(tuple(last))
    return tuple(reversed(frees))
