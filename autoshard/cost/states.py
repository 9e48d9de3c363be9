"""Ordered layouts of one value, and the single collectives that lead from one to another.

On the way from one layout to another the axes of a dimension need not stand in mesh order: slicing
``[y]`` by ``x`` leaves ``[y, x]``, which is another arrangement of the shards than ``[x, y]``. So a
**state** is, per dimension, an ordered list of axes, major first:

    ((0, 2), ())        dimension 0 is cut by axis 0, then by axis 2

and a layout is a state whose lists stand in mesh order. One Shardy collective leads from state to
state (https://openxla.org/shardy/sdy_dialect):

    all_gather          drops the minor-most axes of a dimension
    all_slice           appends axes at the minor-most place of one or more dimensions
    all_to_all          moves the minor-most axes of a dimension to the minor-most place of another
    collective_permute  any exchange that leaves every dimension cut into as many parts

A gather of several dimensions at once is left out: HLO's all-gather has one dimension, so that the
partitioner makes one after the other, in an order of its own. As several moves they have the order
that is cheapest: over slow wires first, while little is there to be sent.

The number of states of ``k`` axes in ``r`` dimensions is ``sum_j C(k,j) r (r+1) ... (r+j-1)``: 193
for rank 4 and 3 axes. The graph depends on rank and mesh alone, so values of one rank share it.
Shardy may also move a part of an axis; here such a part is an axis of its own on a finer mesh.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from autoshard.cost.collective import Kind, MeshTopology
from autoshard.program.layout import REPLICATED, Layout, dimension_axes

State = tuple[tuple[int, ...], ...]
MOST_STATES = 4_000


class ReshardError(ValueError):
    """A reshard that cannot be priced."""


@dataclass(frozen=True, slots=True, eq=False)
class Wiring:
    """All states of a rank on a mesh, and the collectives between them, whatever the machine.

    Edges are sorted by source; ``first[s]:first[s + 1]`` are those of state ``s``.

    Attributes:
      states: the states; `rows` is its inverse.
      shards: int array ``[states, rank]``, parts into which each dimension is cut.
      source, target: int arrays ``[edges]``.
      kinds, axes: per edge, the collective and the mesh axes it runs over.
      sized_by: int array ``[edges]``, the state whose local bytes the collective counts.
      collectives: the distinct pairs of a kind and its axes.
      collective: int array ``[edges]``, which of them each edge is.
      layouts: the layouts in ascending order, each with its state.
    """

    states: tuple[State, ...]
    rows: dict[State, int]
    shards: np.ndarray
    source: np.ndarray
    target: np.ndarray
    first: np.ndarray
    kinds: tuple[Kind, ...]
    axes: tuple[tuple[int, ...], ...]
    sized_by: np.ndarray
    collectives: tuple[tuple[Kind, tuple[int, ...]], ...]
    collective: np.ndarray
    layouts: tuple[tuple[Layout, int], ...]


@dataclass(frozen=True, slots=True, eq=False)
class StateGraph:
    """The states of a rank on the mesh of a machine, and what the collectives between them cost.

    Attributes:
      rank, topology: what the states are of.
      wiring: the states and the collectives.
      latency_seconds, seconds_per_byte: float arrays ``[edges]``.
    """

    rank: int
    topology: MeshTopology
    wiring: Wiring
    latency_seconds: np.ndarray
    seconds_per_byte: np.ndarray


def layout_of(state: State, axes: int) -> Layout | None:
    """Return the layout of a state on a mesh of that many axes, or None if out of mesh order."""
    if any(list(places) != sorted(places) for places in state):
        return None
    layout = [REPLICATED] * axes
    for dimension, places in enumerate(state):
        for axis in places:
            layout[axis] = dimension
    return tuple(layout)


def state_of(rank: int, layout: Layout) -> State:
    """Return the state of a layout: its axes by dimension, in mesh order."""
    return dimension_axes(rank, layout)


def state_graph(
    rank: int, topology: MeshTopology, allowed: Sequence[Sequence[int]] | None = None
) -> StateGraph:
    """Build the states of a rank and the collectives between them.

    Args:
      rank: number of dimensions.
      topology: the mesh on its machine.
      allowed: per mesh axis, the dimensions it may shard; all by default.

    Raises:
      ReshardError: there are more than `MOST_STATES` states.
    """
    mesh_shape = topology.mesh_shape
    if allowed is None:
        allowed = [range(rank)] * len(mesh_shape)
    wiring = _wiring(rank, mesh_shape, tuple(tuple(places) for places in allowed))
    rates = [topology.rate(kind, axes) for kind, axes in wiring.collectives]
    latency = np.array([rate.latency_seconds for rate in rates])
    per_byte = np.array([rate.seconds_per_byte for rate in rates])
    chosen = wiring.collective
    return StateGraph(rank, topology, wiring, latency[chosen], per_byte[chosen])


@functools.lru_cache(maxsize=256)
def _wiring(rank: int, mesh_shape: tuple[int, ...], allowed: tuple[tuple[int, ...], ...]) -> Wiring:
    """The states of a rank and the collectives between them; found once per mesh shape."""
    states = _states(rank, mesh_shape, allowed)
    rows = {state: row for row, state in enumerate(states)}
    shards = np.array(
        [[math.prod(mesh_shape[axis] for axis in places) for places in state] for state in states],
        dtype=np.int64,
    ).reshape(len(states), rank)
    edges: list[tuple[int, int, Kind, tuple[int, ...], int]] = []
    for row, state in enumerate(states):
        for axes, target, dimensions in _drops(state):
            other = rows[target]
            if dimensions == 1:
                edges.append((row, other, "all_gather", axes, other))
            edges.append((other, row, "all_slice", axes, row))
        for axes, target in _exchanges(state):
            if target in rows:
                edges.append((row, rows[target], "all_to_all", axes, row))
    edges.extend(
        (row, other, "collective_permute", axes, row)
        for row, other, axes in _permutes(states, shards, mesh_shape)
    )
    edges.sort(key=lambda edge: edge[:2])
    numbers: dict[tuple[Kind, tuple[int, ...]], int] = {}
    for _, _, kind, axes, _ in edges:
        numbers.setdefault((kind, axes), len(numbers))
    source = np.array([edge[0] for edge in edges], dtype=np.int64)
    every = ((layout_of(state, len(mesh_shape)), row) for row, state in enumerate(states))
    return Wiring(
        states=states,
        rows=rows,
        shards=shards,
        source=source,
        target=np.array([edge[1] for edge in edges], dtype=np.int64),
        first=np.searchsorted(source, np.arange(len(states) + 1)),
        kinds=tuple(edge[2] for edge in edges),
        axes=tuple(edge[3] for edge in edges),
        sized_by=np.array([edge[4] for edge in edges], dtype=np.int64),
        collectives=tuple(numbers),
        collective=np.array([numbers[edge[2:4]] for edge in edges], dtype=np.int64),
        layouts=tuple(sorted((layout, row) for layout, row in every if layout is not None)),
    )


def _states(
    rank: int, mesh_shape: Sequence[int], allowed: Sequence[Sequence[int]]
) -> tuple[State, ...]:
    """Insert one axis after the other at every place where it may stand."""
    states: list[State] = [((),) * rank]
    for axis, size in enumerate(mesh_shape):
        if size == 1:
            continue
        states += [
            (*state[:dimension], (*places[:at], axis, *places[at:]), *state[dimension + 1 :])
            for state in states
            for dimension, places in enumerate(state)
            if dimension in allowed[axis]
            for at in range(len(places) + 1)
        ]
        if len(states) > MOST_STATES:
            raise ReshardError(
                f"a value of rank {rank} has more than {MOST_STATES} ordered layouts on the mesh "
                f"{tuple(mesh_shape)}; give the few layouts that matter, or merge mesh axes"
            )
    return tuple(states)


def _drops(state: State) -> Iterator[tuple[tuple[int, ...], State, int]]:
    """Yield (axes that go, the state without them, in how many dimensions they were)."""
    for kept in itertools.product(*(range(len(places) + 1) for places in state)):
        left = list(zip(state, kept, strict=True))
        dropped = [axis for places, keep in left for axis in places[keep:]]
        if dropped:
            target = tuple(places[:keep] for places, keep in left)
            yield tuple(sorted(dropped)), target, sum(keep < len(places) for places, keep in left)


def _exchanges(state: State) -> Iterator[tuple[tuple[int, ...], State]]:
    for origin, places in enumerate(state):
        for keep in range(len(places)):
            moved = places[keep:]
            for goal in range(len(state)):
                if goal != origin:
                    target = list(state)
                    target[origin] = places[:keep]
                    target[goal] = (*state[goal], *moved)
                    yield tuple(sorted(moved)), tuple(target)


def _permutes(
    states: Sequence[State], shards: np.ndarray, mesh_shape: Sequence[int]
) -> Iterator[tuple[int, int, tuple[int, ...]]]:
    """Yield the pairs of states that cut every dimension alike, and the axes that differ."""
    alike: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for row, counts in enumerate(shards.tolist()):
        alike[tuple(counts)].append(row)
    places = [_places(state, mesh_shape) for state in states]
    for group in alike.values():
        for row, other in itertools.permutations(group, 2):
            here, there = places[row], places[other]
            moved = {axis for axis, _ in here.items() ^ there.items()}
            yield row, other, tuple(sorted(moved))


def _places(state: State, mesh_shape: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Return for each axis its dimension and how many shards lie inside one of its steps."""
    found = {}
    for dimension, places in enumerate(state):
        inside = 1
        for axis in reversed(places):
            found[axis] = (dimension, inside)
            inside *= mesh_shape[axis]
    return found
