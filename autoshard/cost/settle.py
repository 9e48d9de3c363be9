"""How a partial sum becomes a sum.

An operation whose summed factor lies on mesh axes ``U`` leaves on every device one term of a sum
over ``U``. To **settle** it, some of the axes are scattered, each onto a dimension, and the others
are reduced:

    reduce_scatter over the scattered axes     local bytes  b       ->  b / n
    all_reduce     over the others             local bytes  b / n   ->  b / n

in this order, so that the all-reduce moves the smaller value. (One reduce-scatter over all of ``U``
and an all-gather over the others is faster where the axes have links of their own; that is two
decisions, a settlement with more axes scattered and a reshard, and is priced as such.) A scattered
axis lands at the
minor-most place of its dimension; where that is not its place in mesh order, a collective-permute
of the (now smallest) shards puts it there, or a longer way round if that is cheaper.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from autoshard.cost.collective import Kind
from autoshard.cost.reshard import ReshardCache, Step
from autoshard.cost.states import ReshardError, State, layout_of, state_of
from autoshard.program.layout import REPLICATED, Layout, canonical, local_shape


@dataclass(frozen=True, slots=True)
class Settlement:
    """The collectives that turn a partial sum into a sum.

    Attributes:
      layout: of the settled value.
      steps: reduce_scatter, all_reduce, then what brings axes into mesh order; any may be absent.
      seconds: the sum over the steps.
    """

    layout: Layout
    steps: tuple[Step, ...]
    seconds: float


def settle_path(
    cache: ReshardCache,
    shape: Sequence[int],
    itemsize: float,
    written: Layout,
    reduced_axes: Collection[int],
    *,
    scatter: Mapping[int, int] | None = None,
) -> Settlement:
    """Return the collectives that settle a partial sum, scattering some of the axes.

    Args:
      cache: of the mesh.
      shape: global sizes of the value.
      itemsize: bytes per element of the partial sums.
      written: the layout of the partial sum; it replicates over the reduced axes.
      reduced_axes: the mesh axes over which the terms are spread.
      scatter: for some of the reduced axes, the dimension that each comes to shard.

    Raises:
      ReshardError: an axis is both sharded and reduced, or scattered and not reduced.
      LayoutError: the value's layout, before or after, does not divide its shape.

    >>> from autoshard.cost.collective import MeshTopology
    >>> from autoshard.machine import load
    >>> cache = ReshardCache(MeshTopology(load("h100-64"), (8, 8)))
    >>> done = settle_path(cache, (4096, 4096), 4, (-1, -1), (0, 1), scatter={1: 0})
    >>> [step.kind for step in done.steps], done.layout
    (['reduce_scatter', 'all_reduce'], (-1, 0))
    """
    topology, scatter = cache.topology, dict(scatter or {})
    shape, written = tuple(shape), canonical(written, topology.mesh_shape)
    large = {axis for axis in reduced_axes if topology.mesh_shape[axis] > 1}
    faults = [
        f"axis {axis} is reduced, but shards dimension {written[axis]} of the partial sum"
        for axis in sorted(large)
        if written[axis] != REPLICATED
    ] + [
        f"axis {axis} is scattered onto dimension {dimension}, but it is not reduced"
        for axis, dimension in sorted(scatter.items())
        if axis not in reduced_axes
    ]
    if faults:
        raise ReshardError(
            f"cannot settle {shape} in layout {written} over axes {sorted(reduced_axes)}:\n"
            + "\n".join(f"  * {fault}" for fault in faults)
        )
    scatter = {axis: scatter[axis] for axis in sorted(scatter) if axis in large}
    layout = tuple(scatter.get(axis, dimension) for axis, dimension in enumerate(written))
    local_shape(shape, layout, topology.mesh_shape)
    bytes = math.prod(local_shape(shape, written, topology.mesh_shape)) * itemsize
    state, steps = state_of(len(shape), written), []

    def step(kind: Kind, axes: Sequence[int], after: State) -> None:
        seconds = topology.collective_seconds(kind, tuple(axes), bytes)
        steps.append(Step(kind, tuple(axes), state, after, bytes, seconds))

    if scatter:
        after = tuple(
            (*places, *(axis for axis, goal in scatter.items() if goal == dimension))
            for dimension, places in enumerate(state)
        )
        step("reduce_scatter", tuple(scatter), after)
        state, bytes = after, bytes / topology.group_size(scatter)
    rest = tuple(sorted(large - scatter.keys()))
    if rest:
        step("all_reduce", rest, state)
    if layout_of(state, len(layout)) is None:
        steps += cache.table(shape, itemsize, layouts=(layout,)).steps_from_state(state, layout)
    return Settlement(layout, tuple(steps), math.fsum(step.seconds for step in steps))
