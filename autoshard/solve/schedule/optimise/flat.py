"""A schedule problem as integer arrays.

All microbatches are alike, so some optimal schedule runs each kind of task of each stage in the
order of the microbatches. Proof: take any schedule and give the k-th start of every (kind, stage)
to microbatch k. If task y of each microbatch needs its task x, then k starts of y need k ends of x
before them, so the k-th start of y still comes after the k-th end of x; and memory depends only
on how many of each have started and ended.

What is left of a task is its *letter*, the (kind, stage); an order is a *word* for each mesh, with
every letter m times.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from autoshard.native import Record
from autoshard.solve.problem import Integers
from autoshard.solve.schedule.faults import ScheduleError
from autoshard.solve.schedule.instance import Instance, Number
from autoshard.solve.schedule.keyed import depths
from autoshard.solve.schedule.task import Kind, Order, Task

LARGEST_TIME = 2**50
"""Ticks that all tasks together may take; finer times are rounded down to so many."""
LARGEST_MEMORY = 2**50
"""What all tasks together may take, in units that make all amounts whole."""

Letter = tuple[Kind, int]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Arrays(Record):
    """What the loops see, times in ticks; `struct` is what C reads (`words.h`).

    By letter: `time`, `home` (its mesh), `take` (memory at the start), `give` (memory at the end),
    `is_forward`, `is_weight`, `depth` (of the stage), `turn` (how many stages of its mesh are less
    deep). Letter l needs the letters `before[i]`, and after each `lag[i]` more, for i from
    `before_start[l]` to `before_start[l + 1]`; `after*` are those that need it. Mesh d runs the
    letters `letters[letters_start[d] : letters_start[d + 1]]`, and its word is at `word_start[d] :
    word_start[d + 1]`. `sources` are the gradients of the stages that read no other. `span` is 1
    where a mesh's value is its span, else 0.
    """

    microbatches: int
    span: int
    time: Integers
    home: Integers
    take: Integers
    give: Integers
    is_forward: Integers
    is_weight: Integers
    depth: Integers
    turn: Integers
    before_start: Integers
    before: Integers
    lag: Integers
    after_start: Integers
    after: Integers
    after_lag: Integers
    letters_start: Integers
    letters: Integers
    word_start: Integers
    limit: Integers
    sources: Integers

    def counts(self) -> tuple[int, ...]:
        return self.time.size, self.word_start.size - 1, self.sources.size


@dataclass(frozen=True, slots=True, eq=False)
class Flat:
    """A schedule problem with its objective, as letters and arrays.

    Attributes:
      letters: their kinds and stages; where a stage is fused, BW in place of B and W.
      ticks: in one unit of the instance's time.
      exact: whether all times are whole ticks; else they are rounded down.
    """

    instance: Instance
    objective: str
    letters: tuple[Letter, ...]
    arrays: Arrays
    ticks: Fraction
    exact: bool

    def order(self, word: np.ndarray) -> Order:
        """The order that a word stands for."""
        count = [0] * len(self.letters)
        order = []
        bounds = self.arrays.word_start.tolist()
        for start, stop in itertools.pairwise(bounds):
            tasks = []
            for letter in word[start:stop].tolist():
                kind, stage = self.letters[letter]
                tasks.append(Task(kind, stage, count[letter]))
                count[letter] += 1
            order.append(tuple(tasks))
        return tuple(order)

    def word(self, order: Order) -> np.ndarray:
        """The word of an order; BW is taken apart or put together as this problem has it."""
        number = {letter: at for at, letter in enumerate(self.letters)}
        word = []
        for tasks in order:
            for kind, stage, _ in tasks:
                fused = ("BW", stage) in number
                if kind == "BW" and not fused:
                    word += [number["B", stage], number["W", stage]]
                elif kind == "B" and fused:
                    word.append(number["BW", stage])
                elif not (kind == "W" and fused):
                    word.append(number[kind, stage])
        return np.array(word, dtype=np.int64)

    def time(self, ticks: float) -> Number:
        """A number of ticks in the instance's unit, whole where it is."""
        exact = Fraction(ticks) / self.ticks
        return int(exact) if exact.denominator == 1 else float(exact)


def flatten(instance: Instance, objective: str, fused: Collection[int] = ()) -> Flat:
    """The arrays of a problem whose stages `fused` run B and W as one task."""
    letters = _letters(instance, fused)
    number = {letter: at for at, letter in enumerate(letters)}
    ticks, exact = _ticks(instance)
    before = _needs(instance, number, ticks)
    after: list[list[tuple[int, int]]] = [[] for _ in letters]
    for at, needs in enumerate(before):
        for need, lag in needs:
            after[need].append((at, lag))
    home = [instance.placement[stage] for _, stage in letters]
    on = [[at for at, place in enumerate(home) if place == d] for d in range(instance.meshes)]
    changes, limit = _memory(instance, letters)
    depth = depths(instance)
    arrays = Arrays(
        microbatches=instance.microbatches,
        span=int(objective == "span"),
        time=_array(math.floor(_exact_time(instance, *letter) * ticks) for letter in letters),
        home=_array(home),
        take=_array(max(change, 0) for change in changes),
        give=_array(max(-change, 0) for change in changes),
        is_forward=_array(kind == "F" for kind, _ in letters),
        is_weight=_array(kind == "W" for kind, _ in letters),
        depth=_array(depth[stage] for _, stage in letters),
        turn=_array(_turn(instance, depth, stage) for _, stage in letters),
        before_start=_starts(before),
        before=_array(need for needs in before for need, _ in needs),
        lag=_array(lag for needs in before for _, lag in needs),
        after_start=_starts(after),
        after=_array(reader for readers in after for reader, _ in readers),
        after_lag=_array(lag for readers in after for _, lag in readers),
        letters_start=_starts(on),
        letters=_array(letter for row in on for letter in row),
        word_start=_starts(on) * instance.microbatches,
        limit=_array(limit),
        sources=_array(
            number["BW" if ("BW", stage) in number else "B", stage]
            for stage in range(instance.stages)
            if not instance.sources(stage)
        ),
    )
    return Flat(instance, objective, tuple(letters), arrays, ticks, exact)


def _letters(instance: Instance, fused: Collection[int]) -> list[Letter]:
    letters: list[Letter] = []
    for stage in range(instance.stages):
        kinds: tuple[Kind, ...] = ("F", "BW") if stage in fused else ("F", "B", "W")
        letters.extend((kind, stage) for kind in kinds)
    return letters


def _turn(instance: Instance, depth: Sequence[int], stage: int) -> int:
    return sum(depth[other] < depth[stage] for other in instance.on(instance.placement[stage]))


def _needs(
    instance: Instance, number: dict[Letter, int], ticks: Fraction
) -> list[list[tuple[int, int]]]:
    """What each letter needs, with the ticks that it takes to arrive."""
    needs: list[list[tuple[int, int]]] = []
    for kind, stage in number:
        if kind == "W":
            needs.append([(number["B", stage], 0)])
            continue
        here, own, givers = instance.placement[stage], [], instance.sources(stage)
        if kind != "F":
            own, givers = [(number["F", stage], 0)], instance.readers(stage)
        for giver in givers:
            wanted: Kind = "F" if kind == "F" else "BW" if ("BW", giver) in number else "B"
            lag = Fraction(str(instance.transfer[instance.placement[giver]][here]))
            own.append((number[wanted, giver], math.floor(lag * ticks)))
        needs.append(own)
    return needs


def _exact_time(instance: Instance, kind: str, stage: int) -> Fraction:
    """The time of a task, without the rounding of floating point products."""
    times = {"F": instance.forward, "B": instance.backward, "W": instance.weight}
    if kind in times:
        time = Fraction(str(times[kind][stage]))
    elif instance.fused is not None:
        time = Fraction(str(instance.fused[stage]))
    else:
        time = Fraction(str(instance.backward[stage])) + Fraction(str(instance.weight[stage]))
    return time * Fraction(str(instance.time_scale[instance.placement[stage]]))


def _ticks(instance: Instance) -> tuple[Fraction, bool]:
    """Ticks in one unit of time, as few as make all times whole; and whether they do."""
    kinds = ("F", "B", "W") if instance.fused is None else ("F", "B", "W", "BW")
    times = [_exact_time(instance, k, s) for k in kinds for s in range(instance.stages)]
    lags = [Fraction(str(time)) for row in instance.transfer for time in row]
    whole, total = _whole([*times, *lags]), sum(times) * instance.microbatches + sum(lags)
    if total * whole <= LARGEST_TIME:
        return whole, True
    return Fraction(LARGEST_TIME) / total, False


def _memory(instance: Instance, letters: list[Letter]) -> tuple[list[int], list[int]]:
    """Whole changes by letter and limits by mesh, scaled; nothing is made to look smaller.

    Raises:
      ScheduleError: the amounts have too many digits to be counted exactly.
    """
    kinds = ("F", "B", "W")
    amounts = [Fraction(str(instance.memory(k, s))) for s in range(instance.stages) for k in kinds]
    whole = _whole(amounts)
    total = sum(map(abs, amounts)) * instance.microbatches
    if total * whole > LARGEST_MEMORY:
        raise ScheduleError(
            "the memory of this instance", [f"it adds up to {float(total):g}; give whole bytes"]
        )
    changes = []
    for kind, stage in letters:
        forward, backward, weight = amounts[3 * stage : 3 * stage + 3]
        change = {"F": forward, "B": backward, "W": weight, "BW": backward + weight}[kind]
        changes.append(int(change * whole))
    if instance.memory_limit is None:
        return changes, [2 * LARGEST_MEMORY] * instance.meshes
    limits = [
        min(Fraction(str(most)) * whole, 2 * LARGEST_MEMORY) for most in instance.memory_limit
    ]
    return changes, [math.floor(limit) for limit in limits]


def _whole(numbers: list[Fraction]) -> Fraction:
    """The least factor that makes all numbers whole."""
    denominator = math.lcm(*(number.denominator for number in numbers))
    divisor = math.gcd(*(int(number * denominator) for number in numbers))
    return Fraction(denominator, max(divisor, 1))


def _array(values: Iterable[int]) -> np.ndarray:
    return np.array(list(values), dtype=np.int64)


def _starts(rows: Sequence[Sequence[object]]) -> np.ndarray:
    return np.cumsum([0, *map(len, rows)], dtype=np.int64)
