"""How many blocks every stage gets: whole numbers that keep the inequalities of a choice low.

From a start, one block at a time is moved from one stage to another, as long as that helps. What is
lowered first is the largest right-hand side of the inequalities
(`autoshard.search.meshes.bounds.relaxation`), or the longest time that a mesh works; then the sum
of squares of the stages' times, which makes stages alike where nothing else matters.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np

from autoshard.search.meshes.bounds.relaxation import Floats, Relaxation

ENOUGH = 1e-4
"""What a move has to lower the first objective by, as a share, to count for it."""


def tapered(relaxed: Relaxation, start: Sequence[float], scale: Floats) -> tuple[int, ...]:
    """Counts for the smallest right-hand side, from fractions that the linear program gives.

    Args:
      scale: by stage, what it takes of what is known to be its least.
    """

    def value(counts: tuple[int, ...]) -> float:
        return float(relaxed.seconds(counts, scale).max())

    return _improved(relaxed, rounded(start), scale, value)


def even(relaxed: Relaxation, scale: Floats) -> tuple[int, ...]:
    """Counts with which meshes work as long as each other, and stages are alike."""
    meshes = np.array(relaxed.mesh_of)

    def value(counts: tuple[int, ...]) -> float:
        return float(np.bincount(meshes, relaxed.stage_seconds(counts, scale)).max())

    # A block of the commonest class is faster on some meshes: those get more of them.
    commonest = max(set(relaxed.classes), key=relaxed.classes.count)
    speed = 1.0 / np.maximum(relaxed.busy[:, commonest] * scale, 1e-30)
    start = speed / np.bincount(meshes)[meshes]
    return _improved(relaxed, rounded(start / start.sum() * len(relaxed.classes)), scale, value)


def rounded(parts: Sequence[float] | Floats) -> tuple[int, ...]:
    """Whole numbers of at least 1 with the same sum, near these."""
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
