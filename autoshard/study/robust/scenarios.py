"""The box of all machines that ranges allow, its corners, and what prices cannot do between them.

Every number on which seconds depend has a cost u (`autoshard.machine.numbers`); ranges give a box
of costs. Let v(u) be the seconds of the best plan: a minimum over plans of sums of terms, each made
of products, sums, maxima and minima of such costs. In each cost by itself v never falls, and
v(u) / u never rises. So for every machine s whose v is known,

    v(u)  >=  v(s) * prod_k min(1, u_k / s_k).                                      (1)

Between two values a < b = r a of one cost, a function with both properties lies at most

    1 + K(r)  times below its chord,       K(r) = (sqrt(r) - 1) / (sqrt(r) + 1),   (2)

since it is at least max(f(a), f(b) u / b), which is furthest from the chord where
f(b) = sqrt(r) f(a) and u = sqrt(r) a. Where v is concave in a cost, as a minimum of plans whose
seconds are affine in it (latencies, shares), it is not below its chord at all, and K is 0.

A plan whose reshards keep their sequences of collectives has seconds that are convex in each cost:
they are not above their chords. Chords of both in all costs, one after another, are interpolations
between corners of the box, of which a ratio is largest at a corner. So if at every corner a plan
takes at most 1 + R times the best seconds, then for every machine of the box it takes at most

    (1 + R) * prod_k (1 + K(r_k))                                                   (3)

times the best. For absolute differences under affine prices this is the theorem of interval regret
(Kouvelis and Yu, Robust discrete optimization and its applications, 1997, section 1.3).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from autoshard.machine.machine import Machine, Range
from autoshard.machine.numbers import Number, number, with_numbers

Point = tuple[float, ...]
"""The cost of every number with a range, in their order: a machine of the box."""


@dataclass(frozen=True, slots=True)
class Axis:
    """A number with a range, in costs: `fast` <= `taken` <= `slow`."""

    number: Number
    low: float
    high: float

    @property
    def taken(self) -> float:
        """The cost of what the number is taken for."""
        return self.number.cost(self.number.value)

    @property
    def fast(self) -> float:
        return min(self.number.cost(self.low), self.number.cost(self.high))

    @property
    def slow(self) -> float:
        return max(self.number.cost(self.low), self.number.cost(self.high))

    def sag(self, first: float, second: float) -> float:
        """How far below its chord the best plan's price may be between two costs: K of (2)."""
        return sag(second / first) if self.number.hinged and first > 0 else 0.0


def sag(ratio: float) -> float:
    """K of (2).

    >>> round(sag(1.21), 4)
    0.0476
    """
    root = math.sqrt(max(ratio, 1 / ratio))
    return (root - 1) / (root + 1)


@dataclass(frozen=True, slots=True)
class Box:
    """All machines that ranges allow."""

    machine: Machine
    axes: tuple[Axis, ...]

    @property
    def taken(self) -> Point:
        """The machine as it is taken."""
        return tuple(axis.taken for axis in self.axes)

    @property
    def fast(self) -> Point:
        return tuple(axis.fast for axis in self.axes)

    @property
    def slow(self) -> Point:
        return tuple(axis.slow for axis in self.axes)

    @property
    def sag(self) -> float:
        """What the factors of (3) multiply to, less 1."""
        return math.prod(1 + axis.sag(axis.fast, axis.slow) for axis in self.axes) - 1

    def at(self, point: Point) -> Machine:
        """The machine at a point."""
        values = {
            axis.number.path: axis.number.at_cost(cost)
            for axis, cost in zip(self.axes, point, strict=True)
            if cost != axis.taken
        }
        return with_numbers(self.machine, values)

    def along(self, axis: int, cost: float) -> Point:
        """The machine as it is taken, but for one number."""
        return (*self.taken[:axis], cost, *self.taken[axis + 1 :])


def box_of(machine: Machine, ranges: Iterable[Range]) -> Box:
    """The box of the ranges that seconds depend on; those of memory say what fits."""
    axes = (Axis(number(machine, one.path), one.low, one.high) for one in ranges)
    return Box(machine, tuple(axis for axis in axes if not axis.number.of_memory))


def least_at(known: Mapping[Point, float], point: Point) -> float:
    """What no plan undercuts at a point, by (1), from bounds at others."""
    best = 0.0
    for other, bound in known.items():
        factor = 1.0
        for own, its in zip(point, other, strict=True):
            if own < its:
                factor *= own / its
        best = max(best, factor * bound)
    return best


def memory_of(machine: Machine, ranges: Sequence[Range]) -> tuple[Machine, Machine]:
    """The machine with the least memory that ranges allow, and the one with the most."""
    tight, loose = {}, {}
    for one in ranges:
        sense = number(machine, one.path).sense
        if sense == "memory":
            tight[one.path], loose[one.path] = one.low, one.high
        elif sense == "overhead":
            tight[one.path], loose[one.path] = one.high, one.low
    return with_numbers(machine, tight), with_numbers(machine, loose)
