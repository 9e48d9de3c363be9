"""How one value lies on a mesh, in a form that is quick to enumerate.

A mesh has axes of sizes ``m_0, m_1, ...``. A **layout** says for every axis which dimension of the
value it shards, or -1 where the value is replicated over the axis:

    layout = (0, -1, 0)    axes 0 and 2 shard dimension 0, nothing varies over axis 1

Several axes on one dimension are ordered as in the mesh, the major one first. That order is the
canonical one: it makes a layout a plain tuple, equal layouts equal tuples, and the set of all
layouts of a rank-``r`` value a subset of ``{-1, ..., r-1}^axes``. With ``shards_d`` the product of
the sizes of the axes on dimension ``d``, a layout is possible where ``shards_d`` divides
``shape_d`` for every ``d``, and each device holds

    bytes = itemsize * prod_d (shape_d / shards_d).

An axis of size 1 shards nothing, so it is always -1 in an enumerated layout.
JAX is imported only where a `PartitionSpec` is made, so that the cost laws do without it.
Types print as JAX prints them: ``bf16[4096@model, 8]``, ``f32[8@(data,model), 4]``.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from autoshard.program.subaxes import joined
from autoshard.units import counted

if TYPE_CHECKING:
    from jax.sharding import PartitionSpec

Layout = tuple[int, ...]
REPLICATED = -1
UNREDUCED = -2
"""In a layout, of an axis over which a value is a pending sum: `autoshard.plan.unreduced_sums`."""


class LayoutError(ValueError):
    """A layout, a mesh and a shape that do not fit together."""


def shard_counts(rank: int, layout: Layout, mesh_shape: Sequence[int]) -> tuple[int, ...]:
    """Return into how many parts each of the `rank` dimensions is cut.

    Raises:
      LayoutError: the layout has not one entry per mesh axis, or names a dimension out of range.

    >>> shard_counts(2, (0, -1, 0), (2, 4, 8))
    (16, 1)
    """
    if len(layout) != len(mesh_shape):
        raise LayoutError(
            f"layout {layout} has {counted(len(layout), 'entry')} but the mesh "
            f"{tuple(mesh_shape)} has "
            f"{counted(len(mesh_shape), 'axis')}; give one dimension (or -1) per mesh axis"
        )
    counts = [1] * rank
    for axis, dimension in enumerate(layout):
        if dimension in (REPLICATED, UNREDUCED):
            continue
        if not 0 <= dimension < rank:
            raise LayoutError(
                f"layout {layout} puts mesh axis {axis} on dimension {dimension} of a value of "
                f"rank {rank}; use 0 to {rank - 1}, or -1 for replicated"
            )
        counts[dimension] *= mesh_shape[axis]
    return tuple(counts)


def divides(shape: Sequence[int], layout: Layout, mesh_shape: Sequence[int]) -> bool:
    """Tell whether every dimension of `shape` is cut into equal whole parts."""
    counts = shard_counts(len(shape), layout, mesh_shape)
    return all(size % count == 0 for size, count in zip(shape, counts, strict=True))


def local_shape(shape: Sequence[int], layout: Layout, mesh_shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of the part that one device holds.

    Raises:
      LayoutError: some dimensions do not divide; all of them are named.

    >>> local_shape((32, 6), (0, 1), (4, 2))
    (8, 3)
    """
    counts = shard_counts(len(shape), layout, mesh_shape)
    offenders = [
        f"  dimension {dimension} has size {size}, cut into {count} parts"
        for dimension, (size, count) in enumerate(zip(shape, counts, strict=True))
        if size % count
    ]
    if offenders:
        raise LayoutError(
            f"layout {layout} on mesh {tuple(mesh_shape)} does not divide {tuple(shape)}:\n"
            + "\n".join(offenders)
            + "\nShard another dimension, or pad these to a multiple."
        )
    return tuple(size // count for size, count in zip(shape, counts, strict=True))


def local_bytes(
    shape: Sequence[int], itemsize: float, layout: Layout, mesh_shape: Sequence[int]
) -> int:
    """Return the bytes that one device holds; `itemsize` may be 0.5 for 4-bit types."""
    return math.ceil(math.prod(local_shape(shape, layout, mesh_shape)) * itemsize)


def canonical(layout: Layout, mesh_shape: Sequence[int]) -> Layout:
    """Return the layout with every axis of size 1 written as replicated."""
    return tuple(
        dimension if size > 1 else REPLICATED
        for dimension, size in zip(layout, mesh_shape, strict=True)
    )


@dataclass(frozen=True, slots=True, eq=False)
class LayoutTable:
    """All layouts of one shape on one mesh, as arrays with one row per layout.

    Attributes:
      shape, itemsize, mesh_shape: what was enumerated.
      layouts: the layouts; row ``i`` of every array belongs to ``layouts[i]``. The first one is
        fully replicated.
      dimensions: int array ``[layouts, axes]``, the layouts as an array.
      shards: int array ``[layouts, rank]``, the parts into which each dimension is cut.
      local_bytes: float array ``[layouts]``, bytes held by one device.
    """

    shape: tuple[int, ...]
    itemsize: float
    mesh_shape: tuple[int, ...]
    layouts: tuple[Layout, ...]
    dimensions: np.ndarray
    shards: np.ndarray
    local_bytes: np.ndarray
    rows: dict[Layout, int]

    def __len__(self) -> int:
        return len(self.layouts)

    def index(self, layout: Layout) -> int:
        """Return the row of a layout.

        Raises:
          LayoutError: the layout is not in the table (most often because it does not divide).
        """
        row = self.rows.get(layout)
        if row is None:
            row = self.rows.get(canonical(layout, self.mesh_shape))
        if row is None:
            local_shape(self.shape, layout, self.mesh_shape)
            raise LayoutError(
                f"layout {layout} of shape {self.shape} is not among the {len(self)} layouts of "
                "this table; build the table with the dimensions it shards"
            )
        return row


def layout_table(
    shape: Sequence[int],
    itemsize: float,
    mesh_shape: Sequence[int],
    *,
    dimensions: Sequence[int] | None = None,
) -> LayoutTable:
    """Enumerate every layout of `shape` that divides.

    Args:
      shape: global sizes.
      itemsize: bytes per element.
      mesh_shape: sizes of the mesh axes.
      dimensions: the dimensions that may be sharded; all by default.

    >>> layout_table((4, 6), 4, (2, 4)).layouts
    ((-1, -1), (-1, 0), (0, -1), (1, -1), (1, 0))
    """
    shape, mesh_shape = tuple(shape), tuple(mesh_shape)
    allowed = np.array(
        sorted({*range(len(shape))} if dimensions is None else {*dimensions}), dtype=np.int64
    )
    sizes = np.array(shape, dtype=np.int64)
    codes = np.zeros((1, 0), dtype=np.int64)
    shards = np.ones((1, len(shape)), dtype=np.int64)
    for axis_size in mesh_shape:
        choices = np.concatenate([[REPLICATED], allowed if axis_size > 1 else allowed[:0]])
        factor = np.ones((len(choices), len(shape)), dtype=np.int64)
        factor[np.arange(1, len(choices)), choices[1:]] = axis_size
        shards = (shards[:, None, :] * factor[None, :, :]).reshape(
            len(shards) * len(choices), len(shape)
        )
        codes = np.concatenate(
            [np.repeat(codes, len(choices), axis=0), np.tile(choices, len(codes))[:, None]], axis=1
        )
        keep = (sizes % shards == 0).all(axis=1)
        codes, shards = codes[keep], shards[keep]
    layouts = tuple(map(tuple, codes.tolist()))
    return LayoutTable(
        shape=shape,
        itemsize=itemsize,
        mesh_shape=mesh_shape,
        layouts=layouts,
        dimensions=codes,
        shards=shards,
        local_bytes=math.prod(shape) * itemsize / shards.prod(axis=1),
        rows={layout: row for row, layout in enumerate(layouts)},
    )


def shards_of(dimensions: np.ndarray, mesh_shape: Sequence[int], rank: int) -> np.ndarray:
    """Into how many parts layouts `[layouts, axes]` cut each dimension; `[layouts, rank]`.

    >>> shards_of(np.array([[0, 0], [1, -1]]), (2, 4), 2).tolist()
    [[8, 1], [1, 2]]
    """
    cut = np.asarray(dimensions)[:, :, None] == np.arange(rank)
    return np.where(cut, np.asarray(mesh_shape)[None, :, None], 1).prod(axis=1)


def with_pending(table: LayoutTable) -> LayoutTable:
    """The table with, for every layout, those in which some replicated axes are unreduced.

    >>> with_pending(layout_table((2,), 4, (2,))).layouts
    ((-1,), (0,), (-2,))
    """
    every = dict.fromkeys(table.layouts)
    for axis, size in enumerate(table.mesh_shape):
        if size > 1:
            every |= {
                (*layout[:axis], UNREDUCED, *layout[axis + 1 :]): None
                for layout in every
                if layout[axis] == REPLICATED
            }
    found = tuple(every)
    settled = [tuple(REPLICATED if d == UNREDUCED else d for d in layout) for layout in found]
    rows = np.array([table.rows[layout] for layout in settled], dtype=np.int64)
    return LayoutTable(
        shape=table.shape,
        itemsize=table.itemsize,
        mesh_shape=table.mesh_shape,
        layouts=found,
        dimensions=np.array(found, dtype=np.int64).reshape(len(found), len(table.mesh_shape)),
        shards=table.shards[rows],
        local_bytes=table.local_bytes[rows],
        rows={layout: row for row, layout in enumerate(found)},
    )


def layouts(
    shape: Sequence[int], mesh_shape: Sequence[int], *, dimensions: Sequence[int] | None = None
) -> list[Layout]:
    """Return every layout of `shape` that divides; see `layout_table`."""
    return list(layout_table(shape, 1, mesh_shape, dimensions=dimensions).layouts)


def dimension_axes(rank: int, layout: Layout) -> tuple[tuple[int, ...], ...]:
    """Return for each dimension the mesh axes that shard it, major first.

    >>> dimension_axes(2, (0, -1, 0))
    ((0, 2), ())
    """
    return tuple(
        tuple(axis for axis, dimension in enumerate(layout) if dimension == wanted)
        for wanted in range(rank)
    )


def to_partition_spec(layout: Layout, axis_names: Sequence[str], rank: int) -> PartitionSpec:
    """Return JAX's `PartitionSpec` of a layout; trailing replicated dimensions are left out.

    >>> from jax.sharding import PartitionSpec
    >>> spec = to_partition_spec((0, -1, 0), ("pod", "data", "model"), 3)
    >>> spec == PartitionSpec(("pod", "model"))
    True
    """
    from jax.sharding import PartitionSpec

    shard_counts(rank, layout, [1] * len(axis_names))
    entries: list[str | tuple[str, ...] | None] = []
    for axes in dimension_axes(rank, layout):
        names = tuple(axis_names[axis] for axis in axes)
        entries.append(None if not names else names[0] if len(names) == 1 else names)
    while entries and entries[-1] is None:
        entries.pop()
    return PartitionSpec(*entries)


def from_partition_spec(spec: PartitionSpec, axis_names: Sequence[str], rank: int) -> Layout:
    """Return the layout that a `PartitionSpec` describes.

    Raises:
      LayoutError: the spec is longer than the rank, names unknown or repeated axes, leaves a
        dimension unconstrained, or orders the axes of a dimension differently from the mesh. All
        offenders are listed.

    >>> from jax.sharding import PartitionSpec
    >>> from_partition_spec(PartitionSpec(("pod", "model"), None), ("pod", "data", "model"), 2)
    (0, -1, 0)
    """
    axis_names = tuple(axis_names)
    problems: list[str] = []
    layout = [REPLICATED] * len(axis_names)
    if len(spec) > rank:
        problems.append(
            f"it has {counted(len(spec), 'entry')} for a value of rank {rank}; remove the rest"
        )
    for dimension, entry in enumerate(tuple(spec)[:rank]):
        if entry is None:
            continue
        if not isinstance(entry, str | tuple):
            problems.append(
                f"dimension {dimension}: {entry!r} is not a mesh axis; name it or use None"
            )
            continue
        axes: list[int] = []
        for name in (entry,) if isinstance(entry, str) else entry:
            if name not in axis_names:
                problems.append(f"dimension {dimension}: no mesh axis {name!r} in {axis_names}")
                continue
            axis = axis_names.index(name)
            if layout[axis] != REPLICATED:
                problems.append(
                    f"dimension {dimension}: axis {name!r} already shards dimension {layout[axis]}"
                )
                continue
            layout[axis] = dimension
            axes.append(axis)
        if axes != sorted(axes):
            proposal = tuple(axis_names[axis] for axis in sorted(axes))
            problems.append(
                f"dimension {dimension}: axes {entry} are not in mesh order; write {proposal}, "
                "or reorder the mesh"
            )
    if problems:
        raise LayoutError(f"{spec} on mesh axes {axis_names}:\n" + _bullets(problems))
    return tuple(layout)


def format_type(
    dtype: object, shape: Sequence[int], layout: Layout | None, axis_names: Sequence[str]
) -> str:
    """Return a type as JAX prints it, with the axes of each dimension.

    >>> format_type("float32", (8, 4), (0, 0), ("data", "model"))
    'f32[8@(data,model), 4]'
    """
    axes = None if layout is None else dimension_axes(len(shape), layout)
    return format_state(dtype, shape, axes, axis_names)


def format_state(
    dtype: object,
    shape: Sequence[int],
    axes_of_dimension: Sequence[Sequence[int]] | None,
    axis_names: Sequence[str],
) -> str:
    """Return a type whose dimensions carry ordered lists of axes; see `format_type`."""
    parts = []
    for dimension, size in enumerate(shape):
        here = axes_of_dimension[dimension] if axes_of_dimension else ()
        names = joined([axis_names[axis] for axis in here], axis_names)
        suffix = "" if not names else f"@{names[0]}" if len(names) == 1 else f"@({','.join(names)})"
        parts.append(f"{size}{suffix}")
    return f"{short_dtype(str(dtype))}[{', '.join(parts)}]"


@functools.lru_cache(maxsize=256)
def short_dtype(name: str) -> str:
    """Return JAX's short name of a dtype.

    >>> short_dtype("bfloat16"), short_dtype("uint8"), short_dtype("bool")
    ('bf16', 'u8', 'bool')
    """
    match = re.fullmatch(r"(bfloat|float|uint|int|complex)(\d+)(.*)", name)
    if match is None:
        return name
    letters = {"bfloat": "bf", "float": "f", "uint": "u", "int": "i", "complex": "c"}
    return letters[match[1]] + match[2] + match[3]


def _bullets(problems: Sequence[str]) -> str:
    return "\n".join(f"  * {problem}" for problem in problems)
