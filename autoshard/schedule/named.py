"""The schedules that go by a name: instance in, order out.

Each raises a `ScheduleError` that says why where it is not made for an instance: the way in which
stages are placed, or the number of microbatches. What memory an order takes is another question
(`autoshard.schedule.timeline`).
"""

from __future__ import annotations

from collections.abc import Callable

from autoshard.schedule import keyed
from autoshard.schedule.faults import ScheduleError
from autoshard.schedule.instance import Instance
from autoshard.schedule.task import Order
from autoshard.schedule.vee import dualpipe_v, zb_v

Schedule = Callable[[Instance], Order]


def gpipe(instance: Instance) -> Order:
    """All forwards, then all backwards, microbatch by microbatch."""
    return keyed.order_by_key(instance, keyed.gpipe_key(instance), fused=True)


def circular(instance: Instance) -> Order:
    """All forwards, then all backwards, stage by stage."""
    return keyed.order_by_key(instance, keyed.circular_key(instance), fused=True)


def one_f_one_b(instance: Instance) -> Order:
    """1F1B, for one stage a mesh."""
    return keyed.order_by_key(instance, keyed.one_f_one_b_key(instance), fused=True)


def interleaved(instance: Instance) -> Order:
    """Interleaved 1F1B, for stages that go round the meshes."""
    return keyed.order_by_key(instance, keyed.interleaved_key(instance), fused=True)


def interleaved_zb(instance: Instance) -> Order:
    """Interleaved 1F1B with W apart and late, for stages that go round the meshes."""
    return keyed.order_by_key(instance, keyed.interleaved_key(instance), fused=False)


def zb_h1(instance: Instance) -> Order:
    """ZB-H1, for one stage a mesh."""
    return keyed.order_by_key(instance, keyed.zb_h1_key(instance), fused=False)


def zb_h2(instance: Instance) -> Order:
    """ZB-H2, for one stage a mesh."""
    return keyed.order_by_key(instance, keyed.zb_h2_key(instance), fused=False)


NAMED: dict[str, Schedule] = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "circular": circular,
    "interleaved": interleaved,
    "interleaved-zb": interleaved_zb,
    "zb-h1": zb_h1,
    "zb-h2": zb_h2,
    "zb-v": zb_v,
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
