"""Mesh axes and parts of them, as Shardy writes them.

`[{"x"}, {"y":(1)2}]` names the axis x and the first half of y: a sub-axis is (the product of the
sizes before it, its size). Collectives are compared by the axes they run over, so these are put in
mesh order and adjacent parts of one axis are joined again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

_AXIS_IN_TEXT = re.compile(r'"([^"]+)"(?::\((\d+)\)(\d+))?')

# An axis as Shardy writes it: its name and, for a sub-axis, (product of sizes before, size).
Axis = tuple[str, "tuple[int, int] | None"]


def axes_in(text: str) -> Iterator[Axis]:
    """The axes of a printed list: `[{"x"}, {"y":(1)2}]` has x and the first half of y."""
    for name, before, size in _AXIS_IN_TEXT.findall(text):
        yield name, (int(before), int(size)) if size else None


def axis_size(axis: Axis, sizes: Mapping[str, int]) -> int:
    name, part = axis
    return part[1] if part else sizes[name]


def permuted_axes(
    before: Sequence[Sequence[str]], after: Sequence[Sequence[str]], mesh_axes: Mapping[str, int]
) -> tuple[str, ...]:
    """The axes of the `collective_permute` between two layouts with equal local shapes.

    Args:
        before: the axes of each dimension, major first; sub-axes as `"x:(1)2"`.
        after: the same, of the layout to reach.
        mesh_axes: sizes by name, in mesh order.

    An axis takes no part where it counts the same steps of the same dimension in both.

    >>> permuted_axes([("x", "y"), ()], [("y", "x"), ()], {"x": 2, "y": 4})
    ('x', 'y')
    """
    parsed = [
        tuple(tuple(_axis(name) for name in dimension) for dimension in layout)
        for layout in (before, after)
    ]
    return printed_axes(permuted(parsed[0], parsed[1], mesh_axes), mesh_axes)


def permuted(
    before: Sequence[Sequence[Axis]], after: Sequence[Sequence[Axis]], sizes: Mapping[str, int]
) -> tuple[Axis, ...]:
    cuts: dict[str, set[int]] = {}
    for layout in (before, after):
        for name, part in (axis for dimension in layout for axis in dimension):
            first, size = part or (1, sizes[name])
            cuts.setdefault(name, set()).update((first, first * size))

    def pieces(axes: Sequence[Axis]) -> list[Axis]:
        found: list[Axis] = []
        for name, part in axes:
            first, size = part or (1, sizes[name])
            inside = sorted(cut for cut in cuts[name] if first <= cut <= first * size)
            found.extend((name, (low, high // low)) for low, high in pairwise(inside))
        return found

    def places(layout: Sequence[Sequence[Axis]]) -> dict[Axis, tuple[int, int]]:
        found: dict[Axis, tuple[int, int]] = {}
        for dimension, axes in enumerate(layout):
            inside = 1
            for axis in reversed(pieces(axes)):
                found[axis] = (dimension, inside)
                inside *= axis_size(axis, sizes)
        return found

    old, new = places(before), places(after)
    return tuple(axis for axis in {**old, **new} if old.get(axis) != new.get(axis))


def _axis(name: str) -> Axis:
    """`x` or `x:(1)2` as Shardy's pair of name and sub-axis."""
    whole, _, part = name.partition(":(")
    if not part:
        return whole, None
    before, _, size = part.partition(")")
    return whole, (int(before), int(size))


def printed_axes(axes: Iterable[Axis], sizes: Mapping[str, int]) -> tuple[str, ...]:
    """Names in mesh order, with adjacent parts of one axis joined."""
    parts: dict[str, list[tuple[int, int]]] = {}
    for name, part in set(axes):
        parts.setdefault(name, []).append(part or (1, sizes[name]))
    printed = []
    for name in (name for name in sizes if name in parts):
        joined: list[tuple[int, int]] = []
        for first, size in sorted(parts[name]):
            if joined and joined[-1][0] * joined[-1][1] == first:
                joined[-1] = (joined[-1][0], joined[-1][1] * size)
            else:
                joined.append((first, size))
        for first, size in joined:
            printed.append(name if size == sizes[name] else f"{name}:({first}){size}")
    return tuple(printed)
