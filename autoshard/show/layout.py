"""Which devices hold which part of an array, as text and as SVG.

Every part of the array is a cell; in it are the devices that hold it, counted along the mesh with
the last axis fastest. The last dimension that is cut runs to the right, those before it down:

    f32[8@x, 4@y] over x=2, y=2

             0:2  2:4
        0:4    0    1
        4:8    2    3

An array that is not cut is one cell. Long runs of rows or columns are folded in the middle.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, product

from jax.sharding import PartitionSpec

from autoshard import terminal
from autoshard.program.layout import LayoutError, format_state
from autoshard.show.html import Markup, element
from autoshard.units import counted

MOST_ROWS, MOST_COLUMNS = 16, 12
"""Cells that are drawn down and across; the middle of what is longer is left out."""
COLOURS = tuple(
    f"{c}66" for c in ("#4269d0", "#efb118", "#3ca951", "#ff725c", "#a463f2", "#6cc5b0")
)
"""Of parts, in turn; half transparent, so that they suit light and dark pages."""
CELL, LEFT, TOP = (84, 26), 96, 22


@dataclass(frozen=True, slots=True)
class Grid:
    """The parts of an array: labels of rows and columns, and the devices of every part.

    Attributes:
      type: the array with its axes, as `f32[8@x, 4]`.
      mesh: as `x=2, y=4`.
      rows, columns: index ranges; of several dimensions with commas between them.
      devices: `devices[row][column]`, the devices that hold the part.
    """

    type: str
    mesh: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    devices: tuple[tuple[tuple[int, ...], ...], ...]

    def __str__(self) -> str:
        rows, columns = _shown(len(self.rows), MOST_ROWS), _shown(len(self.columns), MOST_COLUMNS)
        head = ["", *("…" if c is None else self.columns[c] for c in columns)]
        lines = [head]
        for r in rows:
            if r is None:
                lines.append(["…"] * len(head))
                continue
            cells = ("…" if c is None else runs(self.devices[r][c]) for c in columns)
            lines.append([self.rows[r], *cells])
        body = "\n".join(terminal.columns(lines, right=range(len(head)), indent=4))
        return f"{self.type} over {self.mesh}\n{body}"

    def _repr_html_(self) -> str:
        return svg(self)


def layout_grid(
    shape: Sequence[int],
    spec: PartitionSpec | Sequence[object],
    mesh: Mapping[str, int],
    *,
    dtype: str = "float32",
) -> Grid:
    """Lay an array out over a mesh.

    Args:
      shape: of the whole array.
      spec: the mesh axes of every dimension, as in a `PartitionSpec`; the rest is whole.
      mesh: sizes of the axes by name, major to minor, as `mesh.shape` of a `jax.sharding.Mesh`.
      dtype: for the type that is shown.

    Raises:
      LayoutError: an axis that the mesh has not, or twice; more entries than dimensions; a
        dimension that does not divide. All of them are named.

    >>> print(layout_grid((8, 4), PartitionSpec("x", "y"), {"x": 2, "y": 2}))
    f32[8@x, 4@y] over x=2, y=2
             0:2  2:4
        0:4    0    1
        4:8    2    3
    """
    names = list(mesh)
    axes_of = _axes(shape, spec, mesh)
    numbers = [[names.index(axis) for axis in axes] for axes in axes_of]
    cut = [d for d, axes in enumerate(axes_of) if math.prod(mesh[a] for a in axes) > 1]
    down, across = cut[:-1], cut[-1:]
    parts = {d: math.prod(mesh[axis] for axis in axes_of[d]) for d in cut}
    holders: dict[tuple[int, ...], list[int]] = {}
    for device, at in enumerate(product(*(range(size) for size in mesh.values()))):
        place = []
        for d in cut:
            index = 0
            for axis in numbers[d]:
                index = index * mesh[names[axis]] + at[axis]
            place.append(index)
        holders.setdefault(tuple(place), []).append(device)

    def labels(dimensions: Sequence[int]) -> tuple[str, ...]:
        ranges = [
            [
                f"{k * shape[d] // parts[d]}:{(k + 1) * shape[d] // parts[d]}"
                for k in range(parts[d])
            ]
            for d in dimensions
        ]
        return tuple(", ".join(one) for one in product(*ranges))

    rows = list(product(*(range(parts[d]) for d in down)))
    columns = list(product(*(range(parts[d]) for d in across)))
    return Grid(
        type=format_state(dtype, shape, numbers, names),
        mesh=", ".join(f"{name}={size}" for name, size in mesh.items()),
        rows=labels(down),
        columns=labels(across) if cut else ("whole",),
        devices=tuple(tuple(tuple(holders[r + c]) for c in columns) for r in rows),
    )


def svg(grid: Grid) -> Markup:
    """A grid as an inline SVG; its words have the colour of the text around it."""
    rows, columns = _shown(len(grid.rows), MOST_ROWS), _shown(len(grid.columns), MOST_COLUMNS)
    wide, high = CELL
    parts = []
    for x, c in enumerate(columns):
        label = "…" if c is None else grid.columns[c]
        parts.append(_text(LEFT + (x + 0.5) * wide, TOP - 8, label))
    for y, r in enumerate(rows):
        top = TOP + y * high
        parts.append(_text(LEFT - 8, top + high / 2 + 4, "…" if r is None else grid.rows[r], "end"))
        for x, c in enumerate(columns):
            left = LEFT + x * wide
            if r is None or c is None:
                parts.append(_text(left + wide / 2, top + high / 2 + 4, "…"))
                continue
            number = (r * len(grid.columns) + c) % len(COLOURS)
            held = grid.devices[r][c]
            title = element("title", f"devices {runs(held)}")
            parts.append(
                element(
                    "rect",
                    title,
                    x=left,
                    y=top,
                    width=wide,
                    height=high,
                    fill=COLOURS[number],
                    stroke="#888",
                )
            )
            parts.append(_text(left + wide / 2, top + high / 2 + 4, _fitting(held)))
    width, height = LEFT + len(columns) * wide + 2, TOP + len(rows) * high + 2
    return element(
        "svg",
        *parts,
        class_="layout",
        viewBox=f"0 0 {width} {height}",
        width=width,
        height=height,
        role="img",
        aria_label=f"{grid.type} over {grid.mesh}",
        font_family="sans-serif",
        font_size=11,
        fill="currentColor",
    )


def runs(devices: Sequence[int]) -> str:
    """Sorted numbers with runs together: `0-3, 8`.

    >>> runs((0, 1, 2, 3, 8))
    '0-3, 8'
    """
    found = []
    for _, group in groupby(enumerate(devices), key=lambda pair: pair[1] - pair[0]):
        numbers = [number for _, number in group]
        joint = f"{numbers[0]}-{numbers[-1]}" if len(numbers) > 1 else str(numbers[0])
        found.append(joint)
    return ", ".join(found)


def _fitting(devices: Sequence[int]) -> str:
    text = runs(devices)
    return text if len(text) <= 13 else f"{devices[0]}, … {devices[-1]}"


def _text(x: float, y: float, text: str, anchor: str = "middle") -> Markup:
    return element("text", text, x=x, y=y, text_anchor=anchor)


def _shown(count: int, most: int) -> list[int | None]:
    """The positions that are shown; None stands for those in the middle that are not."""
    if count <= most:
        return list(range(count))
    half = most // 2
    return [*range(half), None, *range(count - half, count)]


def _axes(
    shape: Sequence[int], spec: PartitionSpec | Sequence[object], mesh: Mapping[str, int]
) -> list[tuple[str, ...]]:
    entries = [
        () if e is None else (e,) if isinstance(e, str) else tuple(e)  # type: ignore[arg-type]
        for e in spec
    ]
    faults = []
    if len(entries) > len(shape):
        faults.append(f"{counted(len(entries), 'entry')} for {counted(len(shape), 'dimension')}")
    entries += [()] * (len(shape) - len(entries))
    named = [axis for axes in entries for axis in axes]
    faults += [f"no axis {axis!r} in the mesh" for axis in named if axis not in mesh]
    faults += [f"axis {axis!r} is used twice" for axis in set(named) if named.count(axis) > 1]
    if not faults:
        for d, (size, axes) in enumerate(zip(shape, entries, strict=True)):
            parts = math.prod(mesh[axis] for axis in axes)
            if size % parts:
                faults.append(f"dimension {d} of size {size} is cut into {parts} parts")
    if faults:
        shown = ", ".join(f"{name}={size}" for name, size in mesh.items())
        heading = f"{tuple(shape)} cannot be laid out as {spec} over {shown}:"
        raise LayoutError("\n  - ".join([heading, *faults]))
    return entries
