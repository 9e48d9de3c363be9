"""An answer of the optimiser as JSON, what `autoshard schedule -o` writes.

kind, schema_version
name, objective, status ("optimal" or "feasible"), limit_hit (null, "time", "gap" or
"interrupted"), schedule ({"0": [["F", stage, microbatch], ...], ...}), makespan, span, bound
(of the objective), gap, seconds, memory_limit and peak_memory by mesh, found_by
instance    the problem itself (`autoshard.solve.schedule.instance_json`)
considered  the same work placed otherwise: name, value and bound of each, or why it has none
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from autoshard.files import NotNegative, typed
from autoshard.files.errors import shown
from autoshard.solve.limit_hit import LimitHit
from autoshard.solve.problem import Status
from autoshard.solve.schedule.faults import ScheduleError
from autoshard.solve.schedule.instance_json import instance_from_json, instance_to_json
from autoshard.solve.schedule.optimise.outcome import ScheduleOutcome
from autoshard.solve.schedule.optimise.placements import PlacementChoice
from autoshard.solve.schedule.task import WrittenOrder, order_from_json, order_to_json
from autoshard.solve.schedule.timeline import simulate

KIND = "autoshard schedule"
SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Considered:
    """A placement that was considered; it has a value, or a note why it has none."""

    name: str
    value: int | float | None
    bound: int | float | None
    note: str = ""


@dataclass(frozen=True, slots=True)
class WrittenSchedule:
    """The content of the file; see the module."""

    kind: str
    schema_version: Literal[1]
    objective: Literal["makespan", "span"]
    status: Literal["optimal", "feasible"]
    schedule: WrittenOrder
    bound: int | float
    seconds: NotNegative
    instance: dict[str, Any]
    name: str = ""
    limit_hit: LimitHit | None = None
    found_by: str = ""
    considered: tuple[Considered, ...] = ()
    makespan: Any = None
    span: Any = None
    gap: Any = None
    memory_limit: Any = None
    peak_memory: Any = None


def choice_to_json(choice: PlacementChoice) -> dict[str, Any]:
    """The best outcome, and a line for each placement that was considered."""
    outcome = choice.best
    timeline, order = outcome.timeline, outcome.order
    assert timeline is not None
    assert order is not None
    limits = outcome.instance.memory_limit
    considered = [
        {"name": name, "value": one.value, "bound": one.bound, "note": ""}
        for name, one in choice.outcomes.items()
    ]
    considered += [
        {"name": name, "value": None, "bound": None, "note": why}
        for name, why in choice.infeasible.items()
    ]
    return {
        "kind": KIND,
        "schema_version": SCHEMA_VERSION,
        "name": outcome.instance.name or choice.name,
        "objective": outcome.objective,
        "status": outcome.status.name.lower(),
        "limit_hit": outcome.limit_hit,
        "schedule": order_to_json(order),
        "makespan": timeline.makespan,
        "span": timeline.span,
        "bound": outcome.bound,
        "gap": outcome.gap,
        "seconds": outcome.seconds,
        "memory_limit": None if limits is None else list(limits),
        "peak_memory": list(timeline.peak_memory),
        "found_by": outcome.found_by,
        "instance": instance_to_json(outcome.instance),
        "considered": considered,
    }


def outcome_from_json(written: Mapping[str, Any]) -> ScheduleOutcome:
    """The outcome that `choice_to_json` wrote; see `choice_from_json`."""
    return choice_from_json(written)[0]


def choice_from_json(
    written: Mapping[str, Any],
) -> tuple[ScheduleOutcome, tuple[Considered, ...]]:
    """The outcome that `choice_to_json` wrote, and the placements that were considered.

    The timeline is simulated anew.

    Raises:
      ScheduleError: it is none, of another version, or damaged.
    """
    if written.get("kind") != KIND:
        raise ScheduleError("this file", ["it is not an answer of `autoshard schedule -o`"])
    version = written.get("schema_version")
    if version != SCHEMA_VERSION:
        fault = f"it has schema version {shown(version)}, this autoshard reads {SCHEMA_VERSION}"
        raise ScheduleError("this schedule", [f"{fault}: solve again"])
    found = typed(written, WrittenSchedule, name="this schedule", error=_damaged)
    instance = instance_from_json(found.instance)
    order = order_from_json(found.schedule, instance.meshes)
    outcome = ScheduleOutcome(
        instance=instance,
        objective=found.objective,
        status=Status[found.status.upper()],
        order=order,
        timeline=simulate(instance, order),
        bound=found.bound,
        seconds=found.seconds,
        limit_hit=found.limit_hit,
        found_by=found.found_by,
    )
    return outcome, found.considered


def _damaged(message: str) -> ScheduleError:
    what, _, fault = message.partition(": ")
    return ScheduleError(what, [f"it is damaged: {fault}"])
