"""A Pallas call on one device's parts of its operands: the same kernel on a smaller grid.

The axes of the grid that the plan cuts are shorter by the number of parts, and the arrays are as
small as the parts. `autoshard.program.kernels.cuts` says which may be, and which parts are told
where they start. Nobody but the device that runs it looks at a kernel: no partitioner meets one,
whether it is cut or whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from autoshard import compat
from autoshard.lower.cut import Cut, refused
from autoshard.program.kernels.cuts import kernel_cuts


def run_kernel(equation: Any, arrays: Sequence[Any], cut: Cut) -> list[Any]:
    """The results of a Pallas call on one device, from its parts of the operands.

    Raises:
      LoweringError: the plan cuts what the kernel needs whole.
    """
    shards = grid_shards(equation, cut)
    call = compat.kernel_call(equation)
    first = call.bounds + call.scalars
    starts, maps = {}, False
    for one in kernel_cuts(equation).cuts:
        size = call.grid[one.axis]
        if one.told and one.axis in shards and size is not None:
            number, d = one.dims[-1]
            place = cut.devices.place(_axes(cut, first + number, d))
            step = place * (size // shards[one.axis])
            moves = dict(zip(one.dims, one.steps, strict=True))
            starts[one.axis] = compat.Start(step, size, one.period, moves)
            maps |= one.maps
    return compat.bind_kernel(equation, arrays, cut.local_results, shards, starts, maps=maps)


def _axes(cut: Cut, number: int, dimension: int) -> tuple[int, ...]:
    """The mesh axes that cut a dimension of an operand, or of a result behind all operands."""
    layout = (*cut.reads, *cut.written)[number]
    return tuple(axis for axis, d in enumerate(layout) if d == dimension)


def grid_shards(equation: Any, cut: Cut) -> dict[int, int]:
    """Into how many parts each axis of a kernel's grid is cut, for those that are.

    Raises:
      LoweringError: the plan cuts what the kernel needs whole.
    """
    call, found = compat.kernel_call(equation), kernel_cuts(equation)
    first = call.bounds + call.scalars
    layouts = (*cut.reads, *cut.written)
    parts = {
        (number - first, d): prod(
            size for size, here in zip(cut.devices.sizes, layout, strict=True) if here == d
        )
        for number, layout in enumerate(layouts)
        for d in set(layout) - {-1}
    }
    shards: dict[int, int] = {}
    for one in found.cuts:
        counts = {parts.pop(place, 1) for place in one.dims}
        if len(counts) > 1 or one.parts % max(counts):
            raise refused(cut, f"axis {one.axis} of its grid is cut in several ways")
        shards[one.axis] = max(counts)
    if parts or cut.partial:
        reasons = "; ".join(f"axis {axis} of its grid: {reason}" for axis, reason in found.whole)
        raise refused(cut, reasons or "what is cut is no axis of its grid")
    return {axis: count for axis, count in shards.items() if count > 1}
