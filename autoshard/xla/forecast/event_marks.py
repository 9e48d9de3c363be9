"""What begins or ends with a task of a plan: marks in an order, whose places are asked for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CopyBegins:
    """The first collective that makes a copy of a value begins; `life` as in `UnderWay.begun`."""

    value: int
    life: int


@dataclass(frozen=True, slots=True)
class Sent:
    """The first collective that makes a copy of a value ends; `life` as in `UnderWay.begun`."""

    value: int
    life: int


@dataclass(frozen=True, slots=True)
class SumEnds:
    """The last collective that settles the partial results of an op ends."""

    op: int


@dataclass(frozen=True, slots=True)
class Passes:
    """A collective begins whose result of so many bytes the next collective of a copy reads."""

    value: int
    life: int
    number: int
    bytes: float


@dataclass(frozen=True, slots=True)
class Passed:
    """The collective that reads what `passes` ends."""

    passes: Passes


@dataclass(frozen=True, slots=True)
class Replaces:
    """A result is copied into the place of the input that it renews."""

    value: int


@dataclass(frozen=True, slots=True)
class Picks:
    """What `op` scatters to is picked from windows: so many bytes, until the op has run."""

    op: int
    bytes: float
