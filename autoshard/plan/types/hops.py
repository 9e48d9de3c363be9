"""Which single collective leads from one arrangement of shards to another.

A **state** lists per dimension the mesh axes that shard it, major first. A **hop** is a collective
between two states of a value; there is at most one:

    all_gather          drops the minor-most axes of one dimension
    all_slice           appends axes at the minor-most place of some dimensions; nothing is sent
    all_to_all          moves the minor-most axes of a dimension to the minor-most place of another
    collective_permute  leaves every dimension in as many parts as before

>>> str(hop(((0, 1), ()), ((0,), (1,)), (2, 4)))
'all_to_all over (1,), dimension 0 -> 1'
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autoshard.plan.decisions import State


@dataclass(frozen=True, slots=True)
class Hop:
    """A collective between two states of one value.

    Attributes:
      kind: see the module docstring.
      axes: mesh axes that it runs over, in the order in which their shards lie, major first; of
        slices and permutes in mesh order.
      source, target: of an all_gather the dimension that is gathered; of an all_to_all the one that
        is gathered and the one that is split; else -1.
      before, after: the states.
    """

    kind: str
    axes: tuple[int, ...]
    source: int
    target: int
    before: State
    after: State

    def __str__(self) -> str:
        where = "" if self.source < 0 else f", dimension {self.source}"
        onto = "" if self.target < 0 else f" -> {self.target}"
        return f"{self.kind} over {self.axes}{where}{onto}"


def shard_counts(state: State, sizes: Sequence[int]) -> tuple[int, ...]:
    """Into how many parts every dimension is cut on a mesh of `sizes`."""
    return tuple(math.prod(sizes[axis] for axis in axes) for axes in state)


def hop(before: State, after: State, sizes: Sequence[int]) -> Hop | None:
    """The collective that leads from one state to another; None where no single one does.

    Args:
      before, after: of one value, so of equal length; an axis stands in each of them at most once.
      sizes: of the mesh axes.
    """
    changed = [d for d, pair in enumerate(zip(before, after, strict=True)) if pair[0] != pair[1]]
    if not changed:
        return None
    grown = {d for d in changed if _starts(after[d], before[d])}
    shrunk = {d for d in changed if _starts(before[d], after[d])}
    if len(grown) == len(changed):
        added = [axis for d in changed for axis in after[d][len(before[d]) :]]
        there = {axis for axes in before for axis in axes}
        if there.isdisjoint(added):
            return Hop("all_slice", tuple(sorted(added)), -1, -1, before, after)
        return None
    if len(changed) == 1 and shrunk:
        (d,) = changed
        return Hop("all_gather", before[d][len(after[d]) :], d, -1, before, after)
    if len(changed) == 2 and len(grown) == len(shrunk) == 1:
        (source,), (target,) = shrunk, grown
        moved = before[source][len(after[source]) :]
        if moved == after[target][len(before[target]) :]:
            return Hop("all_to_all", moved, source, target, before, after)
    if shard_counts(before, sizes) == shard_counts(after, sizes):
        here, there = places(before, sizes), places(after, sizes)
        moved = tuple(sorted({axis for axis, _ in here.items() ^ there.items()}))
        return Hop("collective_permute", moved, -1, -1, before, after)
    return None


def places(state: State, sizes: Sequence[int]) -> Mapping[int, tuple[int, int]]:
    """For each axis its dimension, and how many shards lie inside one of its steps."""
    found: dict[int, tuple[int, int]] = {}
    for dimension, axes in enumerate(state):
        inside = 1
        for axis in reversed(axes):
            found[axis] = (dimension, inside)
            inside *= sizes[axis]
    return found


def permutation(move: Hop, sizes: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """(source, target) of every message of a collective permute, as numbers within a group.

    Devices of a group are numbered by their places on `move.axes`, the first axis outermost. Where
    axes are replicated, replica `n` before sends to replica `n` after.
    """
    axes = move.axes
    grid = [sizes[axis] for axis in axes]
    senders = {
        _shard(move.before, axes, sizes, device): device for device in range(math.prod(grid))
    }
    return tuple(
        (senders[_shard(move.after, axes, sizes, device)], device)
        for device in range(math.prod(grid))
    )


def _shard(
    state: State, axes: Sequence[int], sizes: Sequence[int], device: int
) -> tuple[tuple[int, ...], int]:
    """The shard that a device of a group holds (per dimension), and which replica of it it is."""
    digits: dict[int, int] = {}
    for axis in reversed(axes):
        device, digits[axis] = divmod(device, sizes[axis])
    where = places(state, sizes)
    numbers = [0] * len(state)
    replica = 0
    for axis in axes:
        if axis in where:
            dimension, inside = where[axis]
            numbers[dimension] += digits[axis] * inside
        else:
            replica = replica * sizes[axis] + digits[axis]
    return tuple(numbers), replica


def _starts(longer: tuple[int, ...], shorter: tuple[int, ...]) -> bool:
    return len(longer) > len(shorter) and longer[: len(shorter)] == shorter
