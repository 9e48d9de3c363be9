"""Words to start from: named schedules, and lists by priority rules drawn at random."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from autoshard.solve.schedule.optimise.flat import Flat
from autoshard.solve.schedule.optimise.kernels import NEVER, fits, list_schedule, run
from autoshard.solve.schedule.task import Order

UNBOUNDED = 1e9
"""More microbatches in flight than there are."""


NO_WAITING = 100.0
"""What waiting for the time of a mean task adds to a score where nothing else is to count."""
GUIDED = 0.5
"""The share of random rules that follow a guide."""


REDRAWN = 0.2
"""How often a mutation draws anew how well W must fit into gaps."""


ALTERNATION = (0.0, 2.0, 0.0, 0.5)
"""What random rules add to F after F and to B after B, in turns."""


class Rule(NamedTuple):
    """What `list_schedule` decides by."""

    numbers: np.ndarray
    guide: np.ndarray


class Scratch(NamedTuple):
    """Arrays that the loops write into, made once for a problem."""

    ends: np.ndarray
    counts: np.ndarray
    at: np.ndarray
    started: np.ndarray
    ended: np.ndarray
    taken: np.ndarray
    pending: np.ndarray
    last: np.ndarray
    sequence: np.ndarray


def scratch(flat: Flat) -> Scratch:
    """Arrays for the loops over words of this problem."""
    letters, meshes = flat.arrays.time.size, flat.instance.meshes
    by_letter, by_mesh = (letters,), (meshes,)
    word = (int(flat.arrays.word_start[-1]),)
    shapes = ((letters, flat.arrays.microbatches), by_letter, *[by_mesh] * 6, word)
    return Scratch(*(np.zeros(shape, np.int64) for shape in shapes))


def value_of(flat: Flat, word: np.ndarray, room: Scratch) -> int:
    """The value of a word in ticks; NEVER for a deadlock or too much memory."""
    if word.size != flat.arrays.word_start[-1] or not fits(flat.arrays, word):
        return NEVER
    return int(timed(flat, word, room))


def timed(flat: Flat, word: np.ndarray, room: Scratch) -> int:
    """The value of a word in ticks, memory set aside; `room.ends` becomes when its tasks end."""
    return run(
        flat.arrays, word, room.ends, room.counts, room.at, room.started, room.ended, room.sequence
    )


def listed(flat: Flat, rules: Iterable[Rule], room: Scratch) -> Iterator[np.ndarray]:
    """The words that rules lead to."""
    for rule in rules:
        word = np.zeros(int(flat.arrays.word_start[-1]), np.int64)
        done = list_schedule(
            flat.arrays, rule.numbers, rule.guide, word, room.ends, room.counts, room.at,
            room.taken, room.ended, room.pending, room.last,
        )  # fmt: skip
        if done != NEVER:
            yield word


def guides_of(flat: Flat, orders: Iterable[Order], room: Scratch) -> list[np.ndarray]:
    """When orders end their tasks, (letters, microbatches) in mean task times, memory set aside."""
    unit = float(flat.arrays.time.mean())
    guides = []
    for order in orders:
        word = flat.word(order)
        if word.size == flat.arrays.word_start[-1]:
            timed(flat, word, room)
            guides.append(room.ends / unit)
    return guides


def words_of(flat: Flat, orders: Iterable[Order], room: Scratch) -> Iterator[np.ndarray]:
    """The words of orders that this problem allows."""
    for order in orders:
        word = flat.word(order)
        if value_of(flat, word, room) != NEVER:
            yield word


def random_rules(
    flat: Flat, guides: Sequence[np.ndarray], dice: np.random.Generator
) -> Iterator[Rule]:
    """Rules for `list_schedule`, without end.

    First come plain ones: gradients or forwards first, W last, waiting for what is about to arrive
    or never, as many microbatches in flight as wanted or as 1F1B or ZB-H2 have. Then each guide is
    followed as it is. Then chance decides, among other things whether to follow one.
    """
    unit = float(flat.arrays.time.mean())
    meshes = flat.instance.meshes
    nowhere = np.zeros((len(flat.letters), flat.arrays.microbatches))
    plain = np.array([1, 0, 2, 0, 0, 0, 0, 0, 0, 1 / unit, 1, 0, UNBOUNDED, 0, 0, 0, 0, 0])
    flights = ((UNBOUNDED, 0), (meshes, 1), (2 * meshes, 2))
    for forward, waiting, flight in itertools.product((1, -1), (NO_WAITING, 1), flights):
        rule = plain.copy()
        rule[0], rule[9], rule[12:14] = forward, waiting / unit, flight
        yield Rule(rule, nowhere)
    for guide in guides:
        yield Rule(
            np.array([0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0.8, 1, UNBOUNDED, 0, 0, 0, 0, 0]), guide
        )
    alternation = itertools.cycle(ALTERNATION)
    while True:
        rule = plain.copy()
        rule[0:3] = (
            dice.choice([-1.0, 0.0, 1.0]) * dice.random(),
            dice.choice([-1.0, -0.5, 0.0]) * dice.random(),
            dice.choice([0.5, 1.0, 2.0, 3.0]),
        )
        rule[3:6] = dice.uniform(-0.5, 0.5, 3)
        rule[6:9] = dice.choice([0.0, 0.05, 0.2, 1.0]) * dice.random(3)
        rule[9] = dice.choice([0.0, 0.3, 1.0, 3.0, NO_WAITING]) / unit
        rule[10] = dice.choice([0.0, 0.2, 0.5, 0.8, 1.0])
        if dice.random() < 0.6:
            rule[12] = meshes + dice.integers(-1, 2 * meshes + 1).item()
            rule[13] = dice.choice([0.0, 0.5, 1.0, 2.0])
        rule[14:17] = dice.choice([0.0, 1.0]) * dice.uniform(-1, 1, 3)
        rule[17] = next(alternation)
        guide = nowhere
        if guides and dice.random() < GUIDED:
            guide = guides[int(dice.integers(len(guides)))]
            rule[11] = dice.choice([0.1, 0.3, 1.0, 3.0])
            rule[3:9] *= dice.choice([0.0, 0.3])
            rule[12:14] = UNBOUNDED, 0
        yield Rule(rule, guide)


def mutated(rule: Rule, flat: Flat, dice: np.random.Generator) -> Rule:
    """The rule with some of its numbers changed a little, or drawn anew."""
    numbers = rule.numbers.copy()
    unit = float(flat.arrays.time.mean())
    scales = np.array(
        [*[0.3] * 3, *[0.15] * 3, *[0.02] * 3, 0.5 / unit, 0.25, 0.3, 1.0, 0.3, *[0.3] * 4]
    )
    for at in dice.choice(numbers.size, size=int(dice.integers(1, 5)), replace=False):
        if numbers[at] >= UNBOUNDED:
            continue
        numbers[at] += scales[at] * dice.normal()
    numbers[9:12] = np.maximum(numbers[9:12], 0)
    if dice.random() < REDRAWN:
        numbers[10] = dice.choice([0.0, 0.2, 0.5, 0.8, 1.0])
    return Rule(numbers, rule.guide)
