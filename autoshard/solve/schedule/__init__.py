"""Pipeline schedules: the problem, orders of tasks, when they run, those that go by a name.

    instance = instance_from_json(json.load(file))
    order = NAMED["zb-h1"](instance)
    print(simulate(instance, order).makespan)

    better = solve(instance, objective="makespan", time_limit=60)

`solve` (`autoshard.solve.schedule.optimise`) finds better ones, with a proven bound.
"""

import importlib
from typing import TYPE_CHECKING

from autoshard.solve.schedule.comparators import Comparator, Fragment, comparator, comparator_of
from autoshard.solve.schedule.faults import ScheduleError
from autoshard.solve.schedule.instance import Instance
from autoshard.solve.schedule.instance_json import instance_from_json, instance_to_json
from autoshard.solve.schedule.named import NAMED, Schedule, named_orders
from autoshard.solve.schedule.task import Kind, Order, Task, order_from_json, order_to_json
from autoshard.solve.schedule.timeline import Run, Timeline, memory_over_time, simulate

if TYPE_CHECKING:
    from autoshard.solve.schedule.optimise.outcome import ScheduleOutcome
    from autoshard.solve.schedule.optimise.solve import (
        InfeasibleLimitError,
        smallest_limit,
        solve,
    )

__all__ = [
    "NAMED",
    "Comparator",
    "Fragment",
    "InfeasibleLimitError",
    "Instance",
    "Kind",
    "Order",
    "Run",
    "Schedule",
    "ScheduleError",
    "ScheduleOutcome",
    "Task",
    "Timeline",
    "comparator",
    "comparator_of",
    "instance_from_json",
    "instance_to_json",
    "memory_over_time",
    "named_orders",
    "order_from_json",
    "order_to_json",
    "simulate",
    "smallest_limit",
    "solve",
]

# These load the compiled loops; records and the simulator come without them.
_LATER = {
    "InfeasibleLimitError": "solve",
    "ScheduleOutcome": "outcome",
    "smallest_limit": "solve",
    "solve": "solve",
}


def __getattr__(name: str) -> object:
    if name in _LATER:
        home = f"autoshard.solve.schedule.optimise.{_LATER[name]}"
        return getattr(importlib.import_module(home), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
