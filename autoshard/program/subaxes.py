"""Axes of a coarse mesh, of which tensors use parts.

A mesh axis `x` of 8 devices may be split, into 2 x 4 say: one tensor is cut by the first part,
another by the second, a third by both. In Shardy's words these are sub-axes: `"x":(1)2` is the
part of size 2 that has 1 device before it, `"x":(2)4` the part of size 4 behind those two. A plan
is made on the mesh of the parts, each of which is an axis named like `x:(1)2`; where parts stand
together they are printed together, up to the whole `x`.

>>> names, sizes = split({"x": (2, 4), "y": 2})
>>> names, sizes
(('x:(1)2', 'x:(2)4', 'y'), (2, 4, 2))
>>> joined(("x:(1)2", "x:(2)4"), names), joined(("x:(2)4", "y"), names)
(('x',), ('"x":(2)4', 'y'))
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jax.sharding import PartitionSpec

_PART = re.compile(r"(.+):\((\d+)\)(\d+)")
_TEXT = re.compile(r"(?:#sdy\.sharding)?<@\w+,\s*\[(.*)\]\s*>")
_DIMENSION = re.compile(r"\{([^{}]*)\}")
_AXIS = re.compile(r'"([^"]+)"(?::\((\d+)\)(\d+))?')


class SubAxisError(ValueError):
    """A part of an axis that is none, or a sharding that the mesh cannot express."""


def split(mesh: Mapping[str, int | Sequence[int]]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Names and sizes of the axes of a mesh, of which some sizes are given in parts, major first.

    Raises:
      SubAxisError: an axis has no parts.
    """
    names: list[str] = []
    sizes: list[int] = []
    for name, size in mesh.items():
        if not isinstance(size, Sequence):
            names.append(name)
            sizes.append(int(size))
            continue
        if not size:
            raise SubAxisError(f"mesh axis {name!r} has no parts; give sizes such as (2, 4)")
        before = 1
        for part in size:
            names.append(name if len(size) == 1 else f"{name}:({before}){part}")
            sizes.append(int(part))
            before *= part
    return tuple(names), tuple(sizes)


def coarse(names: Sequence[str], sizes: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """The axes of the coarse mesh, each with the sizes of its parts; the inverse of `split`."""
    found: dict[str, tuple[int, ...]] = {}
    for name, size in zip(names, sizes, strict=True):
        whole = _parsed(name)[0]
        found[whole] = (*found.get(whole, ()), size)
    return found


def joined(axes: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    """Axes as they are printed: neighbouring parts of one axis together, in Shardy's words.

    Args:
      axes: of one dimension, major first.
      names: of all axes of the mesh.
    """
    if not any(":(" in axis for axis in axes):
        return tuple(axes)
    runs: list[tuple[str, int, int]] = []
    for axis in axes:
        whole, before, size = _parsed(axis)
        if runs and size and runs[-1][0] == whole and runs[-1][1] * runs[-1][2] == before:
            runs[-1] = (whole, runs[-1][1], runs[-1][2] * size)
        else:
            runs.append((whole, before, size))
    lengths: dict[str, int] = {}
    for name in names:
        whole, before, size = _parsed(name)
        lengths[whole] = max(lengths.get(whole, 0), before * size)
    return tuple(
        whole if size in (0, lengths[whole]) else f'"{whole}":({before}){size}'
        for whole, before, size in runs
    )


def shardy_text(spec: PartitionSpec, rank: int, names: Sequence[str]) -> str:
    """A layout as Shardy writes it on the coarse mesh.

    >>> from jax.sharding import PartitionSpec
    >>> shardy_text(PartitionSpec("x:(1)2", None), 2, ("x:(1)2", "x:(2)4"))
    '<@mesh, [{"x":(1)2}, {}]>'
    """
    entries = [*spec, *([None] * (rank - len(spec)))]
    dimensions = []
    for entry in entries:
        axes = (entry,) if isinstance(entry, str) else tuple(entry or ())
        shown = (a if a.startswith('"') else f'"{a}"' for a in joined(axes, names))
        dimensions.append("{" + ", ".join(shown) + "}")
    return f"<@mesh, [{', '.join(dimensions)}]>"


def from_shardy_text(text: str, names: Sequence[str], sizes: Sequence[int]) -> PartitionSpec:
    """The layout, on the mesh of the parts, that Shardy's text describes; open dimensions close.

    Raises:
      SubAxisError: the text is none, or names axes or parts that the mesh has not.

    >>> from_shardy_text('<@mesh, [{"x"}, {"y", ?}]>', ("x:(1)2", "x:(2)4", "y"), (2, 4, 2))
    P(('x:(1)2', 'x:(2)4'), 'y')
    """
    from jax.sharding import PartitionSpec

    match = _TEXT.fullmatch(text.strip())
    if match is None:
        raise SubAxisError(
            f'{text!r} is not a sharding; expected the form <@mesh, [{{"x"}}, {{}}]>'
        )
    parts: dict[str, list[tuple[int, int, str]]] = {}
    for name, length in zip(names, sizes, strict=True):
        whole, before, _ = _parsed(name)
        parts.setdefault(whole, []).append((before, length, name))
    faults: list[str] = []
    entries: list[tuple[str, ...] | str | None] = []
    for body in _DIMENSION.findall(match[1]):
        found: list[str] = []
        for whole, before, size in _AXIS.findall(body):
            here = parts.get(whole, [])
            first = int(before) if before else 1
            last = first * int(size) if size else math.prod(length for _, length, _ in here)
            inside = [p for p in here if p[0] >= first and p[0] * p[1] <= last]
            if not inside or math.prod(p[1] for p in inside) * first != last:
                shown = f'"{whole}":({before}){size}' if size else f'"{whole}"'
                there = ", ".join(f"{name}={length}" for _, length, name in here) or "no such axis"
                faults.append(f"{shown} is not made of parts of the mesh ({there})")
            found += [name for _, _, name in inside]
        entries.append(tuple(found) if len(found) > 1 else found[0] if found else None)
    if faults:
        raise SubAxisError("\n  - ".join([f"{text} does not fit the mesh:", *faults]))
    while entries and entries[-1] is None:
        entries.pop()
    return PartitionSpec(*entries)


def _parsed(name: str) -> tuple[str, int, int]:
    """(axis, devices before the part, size of the part); size 0 for an axis that is not split."""
    match = _PART.fullmatch(name)
    return (name, 1, 0) if match is None else (match[1], int(match[2]), int(match[3]))
