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
from typing import Any

from autoshard.solve.problem import Status
from autoshard.solve.schedule.faults import ScheduleError
from autoshard.solve.schedule.instance import Instance
from autoshard.solve.schedule.instance_json import instance_from_json, instance_to_json
from autoshard.solve.schedule.optimise.outcome import ScheduleOutcome
from autoshard.solve.schedule.optimise.placements import PlacementChoice
from autoshard.solve.schedule.task import order_from_json, order_to_json
from autoshard.solve.schedule.timeline import simulate

KIND = "autoshard schedule"
SCHEMA_VERSION = 1


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
    """The outcome that `choice_to_json` wrote; its timeline is simulated anew.

    Raises:
      ScheduleError: it is none, of another version, or damaged.
    """
    if written.get("kind") != KIND:
        raise ScheduleError("this file", ["it is no answer of `autoshard schedule -o`"])
    version = written.get("schema_version")
    if version != SCHEMA_VERSION:
        fault = f"it has schema version {version!r}, this autoshard reads {SCHEMA_VERSION}"
        raise ScheduleError("this schedule", [f"{fault}: solve again"])
    try:
        instance: Instance = instance_from_json(written["instance"])
        order = order_from_json(written["schedule"], instance.meshes)
        return ScheduleOutcome(
            instance=instance,
            objective=str(written["objective"]),
            status=Status[str(written["status"]).upper()],
            order=order,
            timeline=simulate(instance, order),
            bound=written["bound"],
            seconds=float(written["seconds"]),
            limit_hit=written["limit_hit"],
            found_by=str(written["found_by"]),
        )
    except ScheduleError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        fault = f"{type(error).__name__}: {error}"
        raise ScheduleError("this schedule", [f"it is damaged: {fault}"]) from error
