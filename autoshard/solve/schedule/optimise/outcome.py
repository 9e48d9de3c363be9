"""What the optimiser answers."""

from __future__ import annotations

from dataclasses import dataclass

from autoshard.solve.limit_hit import LimitHit
from autoshard.solve.problem import Status
from autoshard.solve.schedule.instance import Instance, Number
from autoshard.solve.schedule.task import Order
from autoshard.solve.schedule.timeline import Timeline
from autoshard.units import format_gap


@dataclass(frozen=True, slots=True, eq=False)
class ScheduleProgress:
    """What is known on the way. Times in the instance's unit; `value` is None before the first."""

    phase: str
    value: Number | None
    bound: Number
    seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class ScheduleOutcome:
    """The best order found, and how good it is.

    Attributes:
      status: OPTIMAL, FEASIBLE, or UNKNOWN where the time was over before any order was found.
      order, timeline: None only where the status is UNKNOWN.
      bound: no schedule of the instance has a smaller value; in the instance's unit, as `value`.
      limit_hit: what ended the search before the proof, or None.
      found_by: which part of the search found the order.
    """

    instance: Instance
    objective: str
    status: Status
    order: Order | None
    timeline: Timeline | None
    bound: Number
    seconds: float
    limit_hit: LimitHit | None
    found_by: str = ""

    @property
    def value(self) -> Number | None:
        """The makespan or span, whichever was asked for."""
        return None if self.timeline is None else self.timeline.value(self.objective)

    @property
    def gap(self) -> float:
        """How far the value may be from the best, as a share of it."""
        value = self.value
        return 1.0 if value is None else max(0.0, float(value - self.bound) / float(value))

    def __str__(self) -> str:
        hit = f", {self.limit_hit.message}" if self.limit_hit else ""
        value = "none" if self.value is None else f"{self.value:,.12g}"
        return (
            f"{self.status.name.lower()}: {self.objective} {value}, bound {self.bound:,.12g}, "
            f"gap {format_gap(self.gap)}, {self.seconds:.2f} s{hit}"
        )
