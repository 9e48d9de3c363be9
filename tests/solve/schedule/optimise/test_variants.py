"""The choice of ways and order equals brute force over both; memory decides where it binds."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from autoshard.solve import Status
from autoshard.solve.schedule.instance import Instance
from autoshard.solve.schedule.optimise import InfeasibleLimitError, solve
from autoshard.solve.schedule.optimise.variants import Variant, applied, choose
from autoshard.solve.schedule.timeline import simulate

LEAN, RICH = Variant(2, 6, 0, 1, 0), Variant(2, 4, 0, 4, 0)
"""A stage that computes its forward pass again, and one that saves it: 2 less, 3 more a
microbatch."""


def chain(meshes: int, microbatches: int, placement: tuple[int, ...] | None = None) -> Instance:
    placement = tuple(range(meshes)) if placement is None else placement
    stages = len(placement)
    return Instance(
        meshes=meshes,
        microbatches=microbatches,
        forward=(1,) * stages,
        backward=(1,) * stages,
        weight=(0,) * stages,
        placement=placement,
        transfer=((0,) * meshes,) * meshes,
        time_scale=(1,) * meshes,
        memory_forward=(0,) * stages,
        memory_backward=(0,) * stages,
        memory_weight=(0,) * stages,
    )


def drawn(dice: random.Random) -> tuple[Instance, list[list[Variant]], list[int], list[int]]:
    """A small problem: two meshes, two or three stages, two or three ways each."""
    placement = dice.choice([(0, 1), (0, 1), (0, 1, 0), (0, 1, 1)])
    split = len(placement) == 2 and dice.random() < 0.5
    variants = []
    for _ in placement:
        ways = []
        for _ in range(dice.choice((2, 3))):
            kept = dice.randint(1, 6)
            ways.append(
                Variant(
                    dice.randint(1, 5),
                    dice.randint(1, 7),
                    dice.randint(1, 3) if split else 0,
                    kept,
                    dice.randint(0, kept) if split else 0,
                    dice.randint(0, 3),
                    dice.randint(0, 3),
                    dice.randint(0, 2),
                )
            )
        variants.append(ways)
    instance = chain(2, dice.choice((2, 3)), placement)
    return instance, variants, [dice.randint(6, 30), dice.randint(6, 30)], [0, dice.randint(0, 2)]


def brute(instance, variants, limits, once) -> float:
    """The least value over all choices, each with its best order; infinite if none fits."""
    best = float("inf")
    for ways in itertools.product(*variants):
        made, _ = applied(instance, ways, limits)
        after = max(
            once[d] + sum(ways[s].once for s in instance.on(d)) for d in range(instance.meshes)
        )
        try:
            outcome = solve(made, time_limit=20)
        except InfeasibleLimitError:
            continue
        assert outcome.status is Status.OPTIMAL
        best = min(best, outcome.value + after)
    return best


@pytest.mark.parametrize("seed", range(20))
def test_equals_brute_force_over_ways_and_orders(seed):
    instance, variants, limits, once = drawn(random.Random(seed))
    found = choose(instance, variants, limits, once=once, time_limit=60)
    assert found.value == brute(instance, variants, limits, once)
    if found.chosen is None:
        assert found.order is None
        return
    assert found.bound == found.value
    assert found.limit_hit is None
    ways = [variants[s][way] for s, way in enumerate(found.chosen)]
    made, lacking = applied(instance, ways, limits)
    assert made == found.instance
    assert not any(lacking)
    after = max(once[d] + sum(ways[s].once for s in instance.on(d)) for d in (0, 1))
    assert simulate(made, found.order).makespan + after == found.value


def test_ample_memory_saves_in_all_stages():
    found = choose(chain(4, 8), [(LEAN, RICH)] * 4, [100] * 4)
    assert found.chosen == (1, 1, 1, 1)
    assert found.bound == found.value == 66  # 8 of 6, and three F and B to fill and drain


def test_early_stages_compute_again_where_memory_is_tight():
    # What four lean microbatches, or one rich one, take: 1F1B has four in flight on the first mesh.
    found = choose(chain(4, 8), [(LEAN, RICH)] * 4, [4] * 4)
    assert found.chosen == (0, 0, 0, 1)
    assert found.bound == found.value
    # Room for two rich ones, which the third stage needs, and not for three.
    roomy = choose(chain(4, 8), [(LEAN, RICH)] * 4, [8] * 4)
    assert roomy.chosen[2:] == (1, 1)
    assert roomy.chosen[0] == 0
    assert roomy.value <= found.value


def test_no_choice_fits():
    found = choose(chain(2, 2), [(LEAN, RICH)] * 2, [1, 0])
    assert found.chosen is None
    assert found.value == float("inf")


def test_a_gap_is_kept():
    exact = choose(chain(4, 8), [(LEAN, RICH)] * 4, [8] * 4)
    near = choose(chain(4, 8), [(LEAN, RICH)] * 4, [8] * 4, gap=0.2)
    assert near.bound <= exact.value <= near.value
    assert near.bound >= near.value * (1 - 0.2)


def test_room_elsewhere_decides_where_it_binds():
    """With one stage on a mesh each memory limits how many microbatches are on their way."""
    dice, seen = random.Random(7), set()
    for _ in range(25):
        instance = chain(3, 4)
        variants = [
            [
                Variant(
                    dice.randint(1, 3), dice.randint(1, 6), 0, dice.randint(1, 4), 0,
                    elsewhere=dice.choice((0, 2, 5)),
                )
                for _ in range(2)
            ]
            for _ in range(3)
        ]  # fmt: skip
        limits, rooms = [dice.randint(4, 9) for _ in range(3)], [dice.randint(4, 12)] * 3
        best = float("inf")
        for ways in itertools.product(*variants):
            most = [
                min(
                    limit // way.after_forward, room // way.elsewhere if way.elsewhere else 4
                )
                for way, limit, room in zip(ways, limits, rooms, strict=True)
            ]  # fmt: skip
            if min(most) == 0:
                continue
            made, _ = applied(instance, ways, limits)
            counted = replace(
                made,
                memory_forward=(1,) * 3,
                memory_backward=(-1,) * 3,
                memory_weight=(0,) * 3,
                memory_limit=tuple(most),
            )
            best = min(best, solve(counted, time_limit=20).value)
        found = choose(instance, variants, limits, rooms=rooms, time_limit=60)
        free = choose(instance, variants, limits, rooms=[10**6] * 3, time_limit=60)
        assert found.value == best
        assert found.bound <= found.value
        seen.add((found.value == float("inf"), found.value > free.value))
    assert (False, True) in seen
