"""Schedules of many microbatches from those of few: warm-up, a repeated period, cool-down.

Cut a good schedule of few microbatches at one in its middle, h. Those before h keep their times;
h is repeated, each time later by the work that one microbatch makes on the busiest mesh, for as
many microbatches as are missing; those after h are later by all these periods. The tasks of each
mesh by these times are the order of a long schedule, which is as good as the short one wherever
that repeats itself around h.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from autoshard.solve.schedule.optimise.flat import Flat
from autoshard.solve.schedule.optimise.rules import scratch, timed
from autoshard.solve.schedule.task import Order, Task

FEWEST_FOLD = 3
"""From so many microbatches a mesh on, a shorter schedule is made first."""
SHORT_FOLD = 2
"""Microbatches a mesh of the shorter schedule."""


def stretched(short: Flat, word: np.ndarray, microbatches: int) -> Iterator[Order]:
    """Orders of more microbatches, from a word of a problem that has fewer."""
    arrays = short.arrays
    room = scratch(short)
    timed(short, word, room)
    few, missing = arrays.microbatches, microbatches - arrays.microbatches
    work = np.bincount(arrays.home, arrays.time, short.instance.meshes)
    period = int(work.max())
    for cut in sorted({few // 2, few // 2 - 1, few // 2 + 1, few - 1}):
        if not 0 <= cut < few:
            continue
        repeats = np.arange(1, missing + 1) * period
        ends = np.concatenate(
            [
                room.ends[:, : cut + 1],
                room.ends[:, cut : cut + 1] + repeats,
                room.ends[:, cut + 1 :] + missing * period,
            ],
            axis=1,
        )
        yield _by_time(short, ends)


def _by_time(flat: Flat, ends: np.ndarray) -> Order:
    """The tasks of each mesh by when they end."""
    order = []
    arrays = flat.arrays
    for mesh in range(flat.instance.meshes):
        mine = arrays.letters[arrays.letters_start[mesh] : arrays.letters_start[mesh + 1]].tolist()
        tasks = sorted(
            (int(end), place, k)
            for place, letter in enumerate(mine)
            for k, end in enumerate(ends[letter])
        )
        row = []
        for _, place, k in tasks:
            kind, stage = flat.letters[mine[place]]
            row.append(Task(kind, stage, k))
        order.append(tuple(row))
    return tuple(order)
