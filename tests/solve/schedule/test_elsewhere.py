"""What stages take elsewhere has room in every order that the limits allow; and no less may run."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

from autoshard.solve.schedule.elsewhere import within
from autoshard.solve.schedule.instance import Instance
from autoshard.solve.schedule.optimise import smallest_limit, solve
from autoshard.solve.schedule.timeline import peak


def problem(dice: random.Random, placement: tuple[int, ...], *, split: bool) -> Instance:
    stages, meshes = len(placement), max(placement) + 1
    taken = tuple(dice.randint(1, 5) for _ in placement)
    given = tuple(-dice.randint(0, most) if split else -most for most in taken)
    return Instance(
        meshes=meshes,
        microbatches=4,
        forward=(1,) * stages,
        backward=(2,) * stages,
        weight=(1,) * stages if split else (0,) * stages,
        placement=placement,
        transfer=((0,) * meshes,) * meshes,
        time_scale=(1,) * meshes,
        memory_forward=taken,
        memory_backward=given,
        memory_weight=tuple(-a - b for a, b in zip(taken, given, strict=True)),
        memory_limit=(dice.randint(12, 20),) * meshes,
    )


def elsewhere_at_most(instance: Instance, order, takes) -> list[float]:
    there = replace(
        instance,
        memory_forward=takes,
        memory_backward=(0,) * len(takes),
        memory_weight=tuple(-one for one in takes),
    )
    return [peak(there, tasks) for tasks in order]


def test_orders_within_the_limits_have_room_elsewhere():
    dice, binding = random.Random(3), 0
    for placement, split in itertools.product(((0, 1), (0, 1, 1, 0), (0, 0, 1)), (False, True)):
        for _ in range(6):
            instance = problem(dice, placement, split=split)
            takes = tuple(dice.randint(0, 9) for _ in placement)
            rooms = [dice.randint(10, 40) for _ in range(2)]
            limited = within(instance, takes, rooms)
            if any(
                a < b for a, b in zip(limited.memory_limit, smallest_limit(limited), strict=True)
            ):
                continue
            binding += limited != instance
            order = solve(limited, time_limit=5).order
            used = elsewhere_at_most(instance, order, takes)
            assert all(most <= room for most, room in zip(used, rooms, strict=True))
            simulated = [peak(instance, tasks) for tasks in order]
            assert all(a <= b for a, b in zip(simulated, instance.memory_limit, strict=True))
    assert binding > 5


def test_one_stage_on_a_mesh_has_as_many_microbatches_as_there_is_room_for():
    dice = random.Random(5)
    for _ in range(20):
        instance = problem(dice, (0, 1), split=False)
        takes, rooms = (dice.randint(1, 9), dice.randint(1, 9)), (19, 23)
        limited = within(instance, takes, rooms)
        for mesh in range(2):
            most = min(
                instance.memory_limit[mesh] // instance.memory_forward[mesh],
                rooms[mesh] // takes[mesh],
            )
            found = limited.memory_limit[mesh] // limited.memory_forward[mesh]
            assert min(found, 4) == min(most, 4)


def test_what_takes_nothing_of_the_mesh_is_counted_there_by_ones():
    instance = replace(
        problem(random.Random(1), (0, 1), split=False),
        memory_forward=(0, 0),
        memory_backward=(0, 0),
        memory_weight=(0, 0),
    )
    limited = within(instance, (5, 1), (11, 100))
    assert (limited.memory_forward, limited.memory_limit) == ((1, 0), (2, instance.memory_limit[1]))
