"""The schedules that go by a name: instance in, order out.

Each raises a `ScheduleError` that says why where it is not made for an instance: the way in which
stages are placed, or the number of microbatches. What memory an order takes is another question
(`autoshard.solve.schedule.timeline`).
"""

from __future__ import annotations

from collections.abc import Callable

from autoshard.solve.schedule import keyed
from autoshard.solve.schedule.blocks import v_half, v_min
from autoshard.solve.schedule.faults import ScheduleError
from autoshard.solve.schedule.instance import Instance
from autoshard.solve.schedule.keyed import Key, order_by_key
from autoshard.solve.schedule.task import Order
from autoshard.solve.schedule.vee import dualpipe_v, zb_v

Schedule = Callable[[Instance], Order]


def by_key(key_of: Callable[[Instance], Key], *, fused: bool) -> Schedule:
    """The schedule in which every mesh runs its tasks by ascending key; B and W as one or apart."""

    def schedule(instance: Instance) -> Order:
        return order_by_key(instance, key_of(instance), fused=fused)

    return schedule


NAMED: dict[str, Schedule] = {
    "gpipe": by_key(keyed.gpipe_key, fused=True),
    "1f1b": by_key(keyed.one_f_one_b_key, fused=True),
    "circular": by_key(keyed.circular_key, fused=True),
    "interleaved": by_key(keyed.interleaved_key, fused=True),
    "interleaved-zb": by_key(keyed.interleaved_key, fused=False),
    "zb-h1": by_key(keyed.zb_h1_key, fused=False),
    "zb-h2": by_key(keyed.zb_h2_key, fused=False),
    "zb-v": zb_v,
    "v-half": v_half,
    "v-min": v_min,
    "dualpipe-v": dualpipe_v,
}


def named_orders(instance: Instance) -> dict[str, Order]:
    """The orders of all named schedules that are made for an instance."""
    orders = {}
    for name, schedule in NAMED.items():
        try:
            orders[name] = schedule(instance)
        except ScheduleError:
            continue
    return orders
