"""W put anew into orders."""

from __future__ import annotations

from hypothesis import given, settings

from autoshard.solve.schedule.instance_json import instance_from_json
from autoshard.solve.schedule.named import NAMED, named_orders
from autoshard.solve.schedule.optimise.flat import flatten
from autoshard.solve.schedule.optimise.refill import refilled
from autoshard.solve.schedule.optimise.rules import scratch, value_of
from autoshard.solve.schedule.timeline import simulate
from tests.solve.schedule.random_instances import instances


def test_zb_v_is_suited_to_times_that_differ():
    instance = instance_from_json(
        {"p": 4, "m": 8, "S": 8, "F": 5210, "B": 5104, "W": 3858, "comm": 408, "mem_F": 16,
         "mem_B": -9, "mem_W": -7, "placement": [0, 1, 2, 3, 3, 2, 1, 0], "mem_limit": 128}
    )  # fmt: skip
    flat = flatten(instance, "span")
    order = NAMED["zb-v"](instance)
    orders = [flat.order(word) for word in refilled(flat, flat.word(order))]
    best = min(simulate(instance, better).span for better in orders)
    assert best == 238032  # the optimum, which CP-SAT proves in some seconds
    assert best < simulate(instance, order, limited=False).span


@settings(max_examples=40)
@given(instances())
def test_forwards_and_gradients_keep_their_order(instance):
    flat = flatten(instance, "makespan")
    room = scratch(flat)
    for order in named_orders(instance).values():
        word = flat.word(order)
        for better in refilled(flat, word):
            assert sorted(better.tolist()) == sorted(word.tolist())
            assert value_of(flat, better, room) >= 0
            simulate(instance, flat.order(better))
            rows = zip(flat.order(word), flat.order(better), strict=True)
            for old, new in rows:
                assert [t for t in new if t.kind != "W"] == [t for t in old if t.kind != "W"]
