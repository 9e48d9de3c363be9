"""Layouts of one value: whether they are possible, and what leads from one to another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from autoshard.plan.decisions import State
from autoshard.plan.plan import MeshShape
from autoshard.plan.types.axis_type import ValueType
from autoshard.plan.types.hops import hop, shard_counts
from autoshard.plan.types.plan_types import TypedMove, local_bytes
from autoshard.plan.types.transitions import proposal
from autoshard.program.graph import Value
from autoshard.program.layout import REPLICATED, UNREDUCED, Layout, dimension_axes, format_state


def layout_faults(
    value: Value, layout: Layout, mesh: MeshShape, *, pending: bool = False
) -> Iterator[str]:
    """Why `layout` is none of `value` on the mesh; only where it is `pending` it may be partial."""
    rank = len(value.shape)
    least = UNREDUCED if pending else REPLICATED
    if len(layout) != len(mesh.sizes) or any(not least <= d < rank for d in layout):
        yield f"in {layout}, which is not a layout of {value}"
        return
    state = dimension_axes(rank, layout)
    for d, count in enumerate(shard_counts(state, mesh.sizes)):
        if value.shape[d] % count:
            axes = ", ".join(mesh.names[axis] for axis in state[d])
            yield (
                f"with dimension {d} of size {value.shape[d]} cut into {count} parts: replicate it "
                f"over one of the axes {axes}"
            )


def chain_moves(
    value: Value, before: State, after: State, states: Sequence[State], mesh: MeshShape
) -> tuple[list[TypedMove], str]:
    """The collectives of a reshard through `states`, and why it is none (empty where it is one)."""

    def text(state: State) -> str:
        return format_state(value.dtype, value.shape, state, mesh.names)

    here, moves = before, []
    for state in states:
        fault = _state_fault(state, value.shape, mesh.sizes)
        if fault:
            return moves, f"from {text(here)} to {state}, {fault}"
        step = hop(here, state, mesh.sizes)
        if step is None:
            return moves, f"no single collective leads from {text(here)} to {text(state)}"
        sized = state if step.kind in ("all_gather", "all_slice") else here
        moves.append(
            TypedMove(
                step.kind,
                tuple(mesh.names[axis] for axis in sorted(step.axes)),
                local_bytes(value.bytes, sized, mesh.sizes),
                value.trips,
                f"{text(here)} -> {text(state)}",
            )
        )
        here = state
    return moves, "" if here == after else f"its reshard ends in {text(here)}"


def missing_call(there: ValueType, need: ValueType, name: str, mesh: MeshShape) -> str:
    """What makes a value of one type one of the other, as a line of JAX where one call does."""
    step = hop(there.state, need.state, mesh.sizes)
    if not there.partial and step is not None and step.kind in ("all_gather", "all_to_all"):
        axes = tuple(mesh.names[axis] for axis in step.axes)
        where = axes[0] if len(axes) == 1 else axes
        split = "" if step.target < 0 else f"split_axis={step.target}, concat_"
        return f"jax.lax.{step.kind}({name}, {where!r}, {split}axis={step.source}, tiled=True)"
    calls = [
        proposal(there.over(axis), need.over(axis), name, label)
        for axis, label in enumerate(mesh.names)
        if str(there.over(axis)).replace("I", "R") != str(need.over(axis)).replace("I", "R")
    ]
    if len(calls) == 1 and not calls[0].startswith("no single"):
        return calls[0]
    if there.partial:
        return " and ".join(calls)
    return f"a reshard {there.text(mesh.names)} -> {need.text(mesh.names)}"


def _state_fault(state: State, shape: tuple[int, ...], sizes: tuple[int, ...]) -> str:
    axes = [axis for places in state for axis in places]
    if len(state) != len(shape) or len(set(axes)) < len(axes):
        return "which is not an arrangement of its shards"
    if any(not 0 <= axis < len(sizes) for axis in axes):
        return f"which names an axis that the mesh of {len(sizes)} has not"
    if any(n % count for n, count in zip(shape, shard_counts(state, sizes), strict=True)):
        return "which does not divide its shape"
    return ""
