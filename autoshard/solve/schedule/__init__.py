"""Pipeline schedules: the problem, orders of tasks, when they run, those that go by a name.

    instance = instance_from_json(json.load(file))
    order = NAMED["zb-h1"](instance)
    print(simulate(instance, order).makespan)

`autoshard.solve.schedule.optimise` finds better ones.
"""

from autoshard.solve.schedule.comparators import Comparator, Fragment, comparator, comparator_of
from autoshard.solve.schedule.faults import ScheduleError
from autoshard.solve.schedule.instance import Instance
from autoshard.solve.schedule.instance_json import instance_from_json, instance_to_json
from autoshard.solve.schedule.named import NAMED, Schedule, named_orders
from autoshard.solve.schedule.task import Kind, Order, Task, order_from_json, order_to_json
from autoshard.solve.schedule.timeline import Run, Timeline, memory_over_time, simulate

__all__ = [
    "NAMED",
    "Comparator",
    "Fragment",
    "Instance",
    "Kind",
    "Order",
    "Run",
    "Schedule",
    "ScheduleError",
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
]
