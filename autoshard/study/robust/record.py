"""What ranges of a machine's numbers mean for plans, as a record: table, JSON, text, DataFrame."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

from autoshard.files import Count, NotNegative, typed
from autoshard.plan.plan import Plan
from autoshard.solve.limit_hit import LimitHit
from autoshard.units import counted

if TYPE_CHECKING:
    from pandas import DataFrame

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class NumberRow:
    """One number of the machine, the others as they are taken.

    Attributes:
      path, name: of the number.
      taken, low, high: what it is taken for, and its range.
      proven_low, proven_high: the plan is proven to stay best up to these values (no plan is
        cheaper by more than the tolerance), by searches there.
      within: of what lies between these two values: no plan is cheaper by a larger share.
      lost_low, lost_high: from here outwards another plan is cheaper by the tolerance, if known.
      then_low, then_high: what that plan is, in short.
      saved: share of a step that the best plan known saves at the worse end of the range.
      most_saved: no plan saves more there.
      regret_if_known: what is left of the least regret, if this number were known exactly.
    """

    path: str
    name: str
    taken: float
    low: float
    high: float
    proven_low: float
    proven_high: float
    within: float
    lost_low: float | None
    lost_high: float | None
    then_low: str | None
    then_high: str | None
    saved: float
    most_saved: float
    regret_if_known: float

    @property
    def decides(self) -> bool:
        """Whether another plan is better somewhere in the range."""
        return self.lost_low is not None or self.lost_high is not None

    @property
    def stays(self) -> bool:
        """Whether the plan is proven to stay best in all of the range."""
        return (self.proven_low, self.proven_high) == (self.low, self.high)


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """A number of which depends what fits.

    Attributes:
      path, name, taken, low, high: as of `NumberRow`.
      fits_to: the value at which the plan for the machine as it is taken just fits, if the other
        numbers of memory are at their worst.
    """

    path: str
    name: str
    taken: float
    low: float
    high: float
    fits_to: float


@dataclass(frozen=True, slots=True)
class PlanRow:
    """A plan that was found, and how far behind the best it may be.

    Attributes:
      mesh, layouts: in short.
      step_seconds: on the machine as it is taken.
      best_seconds, worst_seconds: on the best and the worst machine of the box.
      peak_bytes: per device, with the heap at its worst.
      known: at some corner of the box it is by this share behind a plan that is known.
      most: at no corner is it by more; None where that was not looked into.
      anywhere: nor by more than this on any machine of the box.
      worst_at: the values of the numbers at that corner, by path.
    """

    mesh: str
    layouts: str
    step_seconds: NotNegative
    best_seconds: NotNegative
    worst_seconds: NotNegative
    peak_bytes: Count
    known: float
    most: float | None
    anywhere: float | None
    worst_at: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class WrittenRobust:
    """The answer as a file has it; see `Robust`."""

    schema_version: Literal[1]
    robust: str
    machine: str
    tolerance: NotNegative
    numbers: tuple[NumberRow, ...]
    memory: tuple[MemoryRow, ...]
    plans: tuple[PlanRow, ...]
    taken: Count
    least: Count
    least_bound: float
    sag: float
    searches: Count
    seconds: NotNegative
    limit_hit: LimitHit | None
    plan: dict[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Robust:
    """The answer of `autoshard.robust`.

    Attributes:
      program, machine: their names.
      tolerance: a plan is better where it is cheaper by this share.
      numbers: one row for each number with a range on which seconds depend.
      memory: and for each on which depends what fits.
      plans: those that came up.
      taken: number of the plan for the machine as it is taken.
      least: number of the plan of least regret.
      least_bound: no plan has a regret at the corners that is less than this share.
      sag: see `autoshard.study.robust.scenarios`: what prices between corners may add, a share.
      searches, seconds: that it took.
      limit_hit: time or an interrupt, where more could be known.
      plan: the plan of least regret, priced on the machine as it is taken.
    """

    program: str
    machine: str
    tolerance: float
    numbers: tuple[NumberRow, ...]
    memory: tuple[MemoryRow, ...]
    plans: tuple[PlanRow, ...]
    taken: int
    least: int
    least_bound: float
    sag: float
    searches: int
    seconds: float
    limit_hit: LimitHit | None
    plan: Plan

    @property
    def to_measure(self) -> tuple[NumberRow, ...]:
        """The numbers whose measurement may change the plan, what saves most first."""
        rows = [row for row in self.numbers if row.decides]
        return tuple(sorted(rows, key=lambda row: (row.regret_if_known, -row.saved)))

    def records(self) -> list[dict[str, Any]]:
        """One flat record per number."""
        rows: list[dict[str, Any]] = [
            {**asdict(row), "decides": row.decides, "stays": row.stays} for row in self.numbers
        ]
        return [*rows, *(asdict(row) for row in self.memory)]

    def frame(self) -> DataFrame:
        """A `pandas.DataFrame` with one line per number: see `NumberRow`."""
        from pandas import DataFrame

        return DataFrame.from_records(self.records())

    def to_json(self) -> dict[str, Any]:
        """Plain data with a schema version, without the plan itself."""
        return {
            "schema_version": SCHEMA_VERSION,
            "robust": self.program,
            "machine": self.machine,
            "tolerance": self.tolerance,
            "numbers": [asdict(row) for row in self.numbers],
            "memory": [asdict(row) for row in self.memory],
            "plans": [asdict(row) for row in self.plans],
            "taken": self.taken,
            "least": self.least,
            "least_bound": self.least_bound,
            "sag": self.sag,
            "searches": self.searches,
            "seconds": self.seconds,
            "limit_hit": self.limit_hit,
            "plan": self.plan.to_json(),
        }

    @classmethod
    def from_json(cls, data: Any) -> Robust:
        """The inverse of `to_json`.

        Raises:
          ValueError: it is no such record.
        """
        if not isinstance(data, dict) or data.get("schema_version") != SCHEMA_VERSION:
            raise ValueError("not what `autoshard robust --json` prints")
        name = "a damaged answer of `autoshard robust`"
        written = typed(data, WrittenRobust, name=name, error=ValueError)
        for field in ("taken", "least"):
            if getattr(written, field) >= len(written.plans):
                raise ValueError(
                    f"{name}: {field} names none of its {counted(len(written.plans), 'plan')}"
                )
        rest = {one.name: getattr(written, one.name) for one in fields(WrittenRobust)}
        del rest["schema_version"]
        rest["program"] = rest.pop("robust")
        rest["plan"] = Plan.from_json(rest["plan"])
        return cls(**rest)

    def save(self, path: str) -> None:
        """Write the JSON to a file."""
        from autoshard.files import write_whole

        write_whole(path, (json.dumps(self.to_json()) + "\n").encode())

    def __str__(self) -> str:
        from autoshard.study.robust.show import format_robust

        return format_robust(self)
