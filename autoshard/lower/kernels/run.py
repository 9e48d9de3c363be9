"""A Pallas call on one device's parts of its operands: the same kernel on a smaller grid.

The axes of the grid that the plan cuts are shorter by the number of parts, and the arrays are as
small as the parts. `autoshard.program.kernels.cuts` says which may be, and which parts are told
where they start. Nobody but the device that runs it looks at a kernel: no partitioner meets one,
whether it is cut or whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import jax
import jax.numpy as jnp

from autoshard import compat
from autoshard.lower.kernels.known import kernel_in_ring, ring_axes, run_opaque
from autoshard.lower.kernels.ring import RingPlace
from autoshard.lower.kernels.ruled import run_closed
from autoshard.lower.parts.cut import Cut, refused
from autoshard.program.kernels.cuts import GridCut, kernel_cuts
from autoshard.program.kernels.rule import ring_factors


def run_kernel(equation: Any, arrays: Sequence[Any], cut: Cut) -> list[Any]:
    """The results of a Pallas call on one device, from its parts of the operands.

    Raises:
      LoweringError: the plan cuts what the kernel needs whole.
    """
    axes = ring_axes(cut)
    if axes:
        return kernel_in_ring(equation, arrays, cut, axes, run_closed)
    return kernel_in_parts(equation, arrays, cut, compat.bind_kernel)


def opaque_kernel(equation: Any, arrays: Sequence[Any], cut: Cut) -> list[Any]:
    """The same with opaque calls, to be read and not to be run."""

    axes = ring_axes(cut)
    if axes:
        return kernel_in_ring(equation, arrays, cut, axes, run_opaque)

    def called(equation: Any, arrays: Sequence[Any], shapes: Any, *_: Any, maps: bool) -> Any:
        avals = [var.aval for var in equation.outvars]
        results = list(map(compat.shape_struct, avals, shapes))
        return jax.ffi.ffi_call(equation.primitive.name, results)(*arrays)

    return kernel_in_parts(equation, arrays, cut, called)


def kernel_in_parts(
    equation: Any, arrays: Sequence[Any], cut: Cut, bind: Callable[..., Sequence[Any]]
) -> list[Any]:
    """The same with any call in the place of `compat.bind_kernel`.

    Where halves are exchanged (`autoshard.program.kernels.ring`), each half is a call of its own.
    """
    shards, call = grid_shards(equation, cut), compat.kernel_call(equation)
    told = [one for one in kernel_cuts(equation).cuts if one.told and one.axis in shards]
    first = call.bounds + call.scalars
    axes = {one.axis: _axes(cut, first + one.dims[-1][0], one.dims[-1][1]) for one in told}
    maps = any(one.maps for one in told)

    def run(arrays: Sequence[Any], shapes: Any, shards: Any, places: dict[int, Any]) -> Any:
        starts = {}
        for one in told:
            size = call.grid[one.axis]
            assert size is not None
            moves = dict(zip(one.dims, one.steps, strict=True))
            step = places[one.axis] * (size // shards[one.axis])
            starts[one.axis] = compat.Start(step, size, one.period, moves)
        return list(bind(equation, arrays, shapes, shards, starts, maps=maps))

    places = {axis: cut.devices.place(own) for axis, own in axes.items()}
    folded = _folded(cut, told, first, shards)
    if folded is None:
        return run(arrays, cut.local_results, shards, places)
    place = RingPlace(cut.devices, axes[folded.axis])
    dims = {first + number: d for number, d in folded.dims}
    count = len(arrays)
    turned = [place.fold(one, dims[k]) if k in dims else one for k, one in enumerate(arrays)]
    shapes = [
        tuple(size // 2 if dims.get(count + k) == d else size for d, size in enumerate(shape))
        for k, shape in enumerate(cut.local_results)
    ]
    halves, own = [], places[folded.axis]
    for half, at in enumerate((own, 2 * place.count - 1 - own)):
        parts = [
            jnp.split(one, 2, dims[k])[half] if k in dims else one for k, one in enumerate(turned)
        ]
        smaller = {**shards, folded.axis: 2 * place.count}
        halves.append(run(parts, shapes, smaller, {**places, folded.axis: at}))
    joined = []
    for k, (early, late) in enumerate(zip(*halves, strict=True)):
        d = dims.get(count + k)
        whole = early if d is None else place.unfold(jnp.concatenate([early, late], d), d)
        joined.append(whole)
    return joined


def _folded(
    cut: Cut, told: Sequence[GridCut], first: int, shards: Mapping[int, int]
) -> GridCut | None:
    """The axis of which devices take an early and a late half of a part."""
    rings = ring_factors(cut.op.rule, cut.op.kernel.rings if cut.op.kernel is not None else ())
    for ring in (ring for factor, ring in rings.items() if factor in cut.assignment):
        for one in told:
            place = first + one.dims[-1][0], one.dims[-1][1]
            if place in ring.places and shards[one.axis] > 1:
                return one
    return None


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
        raise refused(cut, reasons or "what is cut is not an axis of its grid")
    return {axis: count for axis, count in shards.items() if count > 1}
