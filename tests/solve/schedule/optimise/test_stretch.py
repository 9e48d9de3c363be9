"""Long schedules from short ones."""

from __future__ import annotations

from dataclasses import replace

from autoshard.solve.schedule.instance_json import instance_from_json
from autoshard.solve.schedule.named import NAMED
from autoshard.solve.schedule.optimise.flat import flatten
from autoshard.solve.schedule.optimise.stretch import stretched
from autoshard.solve.schedule.timeline import simulate


def test_a_periodic_schedule_stretches_without_loss():
    long = instance_from_json(
        {"p": 3, "m": 15, "F": 1, "B": 1, "W": 1, "mem_F": 2, "mem_B": -1, "mem_W": -1}
    )
    few = replace(long, microbatches=8)
    for name in ("zb-h1", "zb-h2"):
        short, whole = NAMED[name](few), NAMED[name](long)
        flat = flatten(few, "makespan")
        values = [simulate(long, order).makespan for order in stretched(flat, flat.word(short), 15)]
        assert len(values) == 4
        assert min(values) <= simulate(long, whole).makespan
        assert min(values) <= simulate(few, short).makespan + 7 * 3
