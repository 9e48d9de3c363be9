"""Marks in a schedule: events that begin or end with a task, and whose position is needed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CopyBegins:
    """The first collective that makes a copy of a value begins; `life` as in `UnderWay.begun`."""

    value: int
    life: int


@dataclass(frozen=True, slots=True)
class FirstTurn:
    """A collective begins before a loop, for a copy that its first turn reads; as `CopyBegins`."""

    value: int
    life: int


@dataclass(frozen=True, slots=True)
class Sent:
    """The first collective that makes a copy of a value ends; `life` as in `UnderWay.begun`."""

    value: int
    life: int


@dataclass(frozen=True, slots=True)
class SumEnds:
    """The last collective that reduces the partial results of an op ends."""

    op: int


@dataclass(frozen=True, slots=True)
class Passes:
    """A collective begins whose result, of `bytes`, the next collective of the same copy reads."""

    value: int
    life: int
    number: int
    bytes: float


@dataclass(frozen=True, slots=True)
class Passed:
    """The collective that reads the result of `passes` ends."""

    passes: Passes


@dataclass(frozen=True, slots=True)
class Replaces:
    """A result is copied over the donated input that it updates."""

    value: int


@dataclass(frozen=True, slots=True)
class Picks:
    """A kernel picks the positions to which `op` scatters: `bytes` live until the op has run."""

    op: int
    bytes: float
