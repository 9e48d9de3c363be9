"""The records of a typed plan; see `autoshard.plan.types.plan_check`."""

from __future__ import annotations

import math
from dataclasses import dataclass

from autoshard.plan.decisions import State
from autoshard.plan.plan import PlanError
from autoshard.plan.types.axis_type import ValueType
from autoshard.plan.types.hops import shard_counts
from autoshard.program.select import shown_path
from autoshard.program.trace import Program


class PlanTypeError(PlanError):
    """A plan that does not type-check; every fault is listed."""


@dataclass(frozen=True, slots=True)
class TypedMove:
    """A collective that the types need: as `autoshard.plan.Move`, without its price."""

    kind: str
    axes: tuple[str, ...]
    bytes: int
    count: int
    value: str

    def __str__(self) -> str:
        times = "" if self.count == 1 else f", {self.count} times"
        return f"{self.kind} over {', '.join(self.axes)}: {self.value}, {self.bytes} bytes{times}"


@dataclass(frozen=True, slots=True)
class TypedPlan:
    """The types of a plan.

    Attributes:
      stored, copies: by value of the program, its type where it is stored and that of its copy, or
        None.
      moves: the collectives that settle sums, in program order, then those that make copies.
    """

    stored: tuple[ValueType | None, ...]
    copies: tuple[ValueType | None, ...]
    moves: tuple[TypedMove, ...]


def local_bytes(total: int, state: State, sizes: tuple[int, ...]) -> int:
    """The bytes that one device holds in `state` of an array of `total` bytes."""
    return int(total / math.prod(shard_counts(state, sizes)))


def value_name(program: Program, value: int) -> str:
    """What a value is called: its tree path, or the op that makes it and its source line."""
    record = program.values[value]
    if path := shown_path(program, value):
        return path
    if record.producer < 0:
        return f"constant {record}"
    maker = program.ops[record.producer]
    return f"%{value} (of {maker.primitive}, {maker.line or maker.scope or 'no source line'})"
