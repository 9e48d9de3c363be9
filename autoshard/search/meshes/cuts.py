"""Decides how many blocks each stage gets, so that the lower bound of the choice stays low.

This is a local search in whole numbers. From a start, it moves one block at a time from one stage
to another, as long as that helps. The first objective is the largest right-hand side of the
inequalities (`autoshard.search.meshes.bounds.relaxation`), or the longest busy time of a mesh. The
second objective is the sum of squares of the stages' times, which makes stages similar when nothing
else matters.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np

from autoshard.search.meshes.bounds.relaxation import Floats, Relaxation

ENOUGH = 1e-4
"""The relative decrease of the first objective from which a move counts as an improvement of it."""


def tapered(relaxed: Relaxation, start: Sequence[float], scale: Floats) -> tuple[int, ...]:
    """Return block counts that minimise the largest right-hand side.

    The start is the fractional solution of the linear program.

    Args:
      scale: the ratio of a stage's time to its known lower bound, by stage.
    """

    def value(counts: tuple[int, ...]) -> float:
        return float(relaxed.seconds(counts, scale).max())

    return _improved(relaxed, rounded(start), scale, value)


def even(relaxed: Relaxation, scale: Floats) -> tuple[int, ...]:
    """Return block counts that balance the busy times of meshes, and make stages similar."""
    meshes = np.array(relaxed.mesh_of)

    def value(counts: tuple[int, ...]) -> float:
        return float(np.bincount(meshes, relaxed.stage_seconds(counts, scale)).max())

    # A block of the most common class is faster on some meshes, so those get more blocks.
    commonest = max(set(relaxed.classes), key=relaxed.classes.count)
    speed = 1.0 / np.maximum(relaxed.busy[:, commonest] * scale, 1e-30)
    start = speed / np.bincount(meshes)[meshes]
    return _improved(relaxed, rounded(start / start.sum() * len(relaxed.classes)), scale, value)


def rounded(parts: Sequence[float] | Floats) -> tuple[int, ...]:
    """Return whole numbers of at least 1 that are near these numbers and have the same sum."""
    total = round(float(np.sum(parts)))
    counts = np.maximum(np.floor(np.asarray(parts) + 1e-9), 1).astype(int)
    while counts.sum() != total:
        step = 1 if counts.sum() < total else -1
        short = (np.asarray(parts) - counts) * step
        if step < 0:
            short[counts == 1] = -np.inf
        counts[int(np.argmax(short))] += step
    return tuple(counts.tolist())


def _improved(
    relaxed: Relaxation,
    counts: tuple[int, ...],
    scale: Floats,
    value: Callable[[tuple[int, ...]], float],
) -> tuple[int, ...]:
    def squares(one: tuple[int, ...]) -> float:
        return float((relaxed.stage_seconds(one, scale) ** 2).sum())

    now, second = value(counts), squares(counts)
    while True:
        best = None
        for giver, taker in itertools.permutations(range(len(counts)), 2):
            if counts[giver] == 1:
                continue
            moved = list(counts)
            moved[giver] -= 1
            moved[taker] += 1
            trial = tuple(moved)
            new = value(trial)
            if new > now * (1 + 1e-12):
                continue
            lower = new < now * (1 - ENOUGH)
            rank = (not lower, new if lower else squares(trial), trial)
            if (lower or rank[1] < second * (1 - 1e-9)) and (best is None or rank < best):
                best = rank
        if best is None:
            return counts
        counts = best[2]
        now, second = value(counts), squares(counts)
