"""The best of several placements of the same work."""

from __future__ import annotations

import contextlib

import pytest

from autoshard.solve.schedule.faults import ScheduleError
from autoshard.solve.schedule.instance import Instance, Number
from autoshard.solve.schedule.instance_json import instance_from_json
from autoshard.solve.schedule.named import named_orders
from autoshard.solve.schedule.optimise.placements import PlacementChoice, best_placement
from autoshard.solve.schedule.optimise.solve import InfeasibleLimitError
from autoshard.solve.schedule.timeline import simulate


def placed(places: list[int], extra: int, limit: int | None = None) -> Instance:
    """Work of 8 a kind and microbatch on two meshes; the first and last stage have more."""
    stages = len(places)
    times = [8 // stages + extra * (stage in (0, stages - 1)) for stage in range(stages)]
    return instance_from_json(
        {"p": 2, "m": 4, "S": stages, "F": times, "B": times, "W": times, "placement": places,
         "mem_F": 8 // stages, "mem_B": -4 // stages, "mem_W": -4 // stages, "mem_limit": limit}
    )  # fmt: skip


PLACES = {"line": [0, 1], "loop": [0, 1, 0, 1], "vee": [0, 1, 1, 0]}


def values_of(choice: PlacementChoice) -> dict[str, Number]:
    """The value of every placement."""
    values = {name: outcome.value for name, outcome in choice.outcomes.items()}
    return {name: value for name, value in values.items() if value is not None}


def test_the_best_placement_flips_with_the_costs():
    even = best_placement({n: placed(p, 0, 16) for n, p in PLACES.items()}, time_limit=60)
    heavy = best_placement({n: placed(p, 4, 16) for n, p in PLACES.items()}, time_limit=60)
    even_values, heavy_values = values_of(even), values_of(heavy)
    assert even_values[even.name] == min(even_values.values())
    assert heavy_values[heavy.name] == min(heavy_values.values())
    assert even.best is even.outcomes[even.name]
    assert even_values["vee"] < even_values["line"]
    assert heavy_values["vee"] > heavy_values["loop"]
    assert heavy.reason.startswith(f"{heavy.name} is the best of 3\n  {heavy.name}: makespan ")
    assert "\n  vee: makespan " in heavy.reason


def test_what_has_no_schedule_is_said():
    choice = best_placement(
        {"line": placed([0, 1], 0, 16), "tight": placed([0, 1], 0, 3)}, time_limit=60, gap=0.5
    )
    assert choice.name == "line"
    assert "tight: mesh 0 has a limit of 3, and one microbatch takes 4 there" in choice.reason
    with pytest.raises(InfeasibleLimitError):
        best_placement({"tight": placed([0, 1], 0, 3)})
    with pytest.raises(ScheduleError, match="none of the placements has a schedule"):
        best_placement({"a": placed([0, 1], 0, 3), "b": placed([0, 1, 1, 0], 0, 3)})


# Times of the first and last stage beside the others', and of the last two meshes beside the first.
@pytest.mark.parametrize(("ends", "speed"), [(1.5, 1.0), (1.0, 1.25), (1.5, 1.25)])
def test_the_choice_beats_every_named_schedule_of_every_placement(ends, speed):
    places = {"v1": [0, 1, 2, 3], "loop": [0, 1, 2, 3] * 2, "v": [0, 1, 2, 3, 3, 2, 1, 0]}
    instances = {}
    for name, place in places.items():
        part, last = 8 // len(place), len(place) - 1
        size = [part * (ends if s in (0, last) else 1) for s in range(len(place))]
        forward, backward, weight = ([round(t * one) for one in size] for t in (18, 18, 10))
        instances[name] = instance_from_json(
            {"p": 4, "m": 6, "S": len(place), "F": forward, "B": backward, "W": weight, "comm": 2,
             "placement": place, "dev_scale": [1, 1, speed, speed], "mem_F": 2 * part,
             "mem_B": -part, "mem_W": -part, "mem_limit": 16}
        )  # fmt: skip
    choice = best_placement(instances, time_limit=15, gap=0.005)
    named = {}
    for name, instance in instances.items():
        for schedule, order in named_orders(instance).items():
            with contextlib.suppress(ScheduleError):  # it takes more memory than 1F1B
                named[name, schedule] = simulate(instance, order).makespan
    assert {name for name, _ in named} == {"v1", "v"}  # loops by name need more memory
    assert choice.best.value is not None
    assert choice.best.value < min(named.values())
