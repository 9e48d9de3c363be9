"""The cheapest sequence of collectives from one layout of a value to another.

With the states and single collectives of `autoshard.cost.states` as a graph, and the seconds of
each collective on this value's bytes as lengths, a reshard is a shortest path. For every state
``s`` and layout ``t`` the table solves

    d(s, t) = min over collectives s -> u of  seconds(s -> u) + d(u, t),        d(t, t) = 0

by sweeping over ``s`` until nothing changes. States that do not divide the shape are absent.

Shards that are gathered arrive one after the other, so a gather is of the outermost dimension.
XLA:GPU transposes the shard first for any other one, and this reads and writes it, where memory
transactions count (`Chip.transaction_bytes`). XLA:TPU does so with shards that fill no whole tiles
along that dimension (`Chip.sublanes`), and puts the whole into tiles afterwards, read and written:
it copies Llama's `wo: [32, 128@64, 4096]`, two rows of 128 a shard, once it is gathered. Shards of
whole tiles are priced as transposed, too, an upper bound: XLA:TPU gathers them as they lie. Without
a compiler a gather along any dimension moves its bytes alone.

Gathers that may run as one share a latency (`autoshard.cost.combined`), and some values are sent in
a narrower type (`autoshard.xla.narrow_copies`). That changes the seconds of a path, and does not
decide which path is taken: it is the same for all values of a shape.

Lengths are rounded up to whole multiples of ``2^-40`` s (a picosecond). Sums of such numbers are
exact in double precision up to hours, so that a path costs exactly the sum of its steps and

    d(s, t) <= d(s, u) + d(u, t)

holds without any tolerance, of what is gathered alone and as it is. The cost depends on shape,
itemsize and mesh, and on those two: keep one `ReshardCache` per mesh and ask it.

    >>> from autoshard.machine import load
    >>> cache = ReshardCache(MeshTopology(load("v5p-64"), (4, 16)))
    >>> table = cache.table((4096, 8192), 2)
    >>> for step in table.steps((0, 1), (-1, 0)):
    ...     print(step.text((4096, 8192), "bf16", ("x", "y")))
    all_to_all@x: bf16[4096@x, 8192@y] -> bf16[4096, 8192@(y,x)], 1.05 MB, 8.3 us
    all_to_all@x,y: bf16[4096, 8192@(y,x)] -> bf16[4096@(y,x), 8192], 1.05 MB, 12.3 us
    all_gather@x: bf16[4096@(y,x), 8192] -> bf16[4096@y, 8192], 4.19 MB, 20.0 us
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from autoshard.cost.collective import Kind, MeshTopology
from autoshard.cost.combined import latency_share
from autoshard.cost.shortest_paths import paid_along, shortest_distances
from autoshard.cost.states import ReshardError, State, StateGraph, state_graph, state_of
from autoshard.machine.chip import Chip
from autoshard.program.layout import Layout, canonical, format_state, local_shape
from autoshard.units import counted

TICKS_PER_SECOND = 2.0**40


@dataclass(frozen=True, slots=True)
class Step:
    """One collective of a reshard.

    Attributes:
      kind: the collective.
      axes: mesh axes that it runs over, in mesh order.
      from_state, to_state: per dimension the axes that shard it, major first, before and after.
      bytes: local bytes that it counts (see `MeshTopology.collective_seconds`).
      seconds: its price.
    """

    kind: Kind
    axes: tuple[int, ...]
    from_state: State
    to_state: State
    bytes: float
    seconds: float

    def text(self, shape: Sequence[int], dtype: object, axis_names: Sequence[str]) -> str:
        """Return the step as one line, with the types before and after in JAX's notation."""
        before = format_state(dtype, shape, self.from_state, axis_names)
        after = format_state(dtype, shape, self.to_state, axis_names)
        names = ",".join(axis_names[axis] for axis in self.axes)
        return (
            f"{self.kind}@{names}: {before} -> {after}, "
            f"{self.bytes / 1e6:.2f} MB, {self.seconds * 1e6:.1f} us"
        )


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ReshardTable:
    """Seconds between all layouts of one value, and the collectives they stand for.

    Attributes:
      shape, itemsize, topology: of the value, and the mesh it lies on.
      layouts: row ``i`` and column ``i`` of `seconds` belong to ``layouts[i]``.
      seconds: float array ``[layouts, layouts]``, from row to column; 0 on the diagonal.
    """

    shape: tuple[int, ...]
    itemsize: float
    topology: MeshTopology
    layouts: tuple[Layout, ...]
    seconds: np.ndarray
    rows: dict[Layout, int]
    _graph: StateGraph
    _lengths: np.ndarray
    _distances: np.ndarray
    _paid: np.ndarray

    def __repr__(self) -> str:
        return f"ReshardTable({len(self)} layouts of {self.shape}, {self.topology})"

    def __len__(self) -> int:
        return len(self.layouts)

    def index(self, layout: Layout) -> int:
        """Return the row of a layout.

        Raises:
          LayoutError: it does not divide the shape.
          ReshardError: it was not among the layouts of this table.
        """
        row = self.rows.get(layout)
        if row is None:
            row = self.rows.get(canonical(layout, self.topology.mesh_shape))
        if row is None:
            local_shape(self.shape, layout, self.topology.mesh_shape)
            raise ReshardError(
                f"layout {layout} of shape {self.shape} is not among the {len(self)} layouts of "
                "this reshard table; ask the cache for a table with it"
            )
        return row

    def path(self, source: int, target: int) -> tuple[Step, ...]:
        """Return the collectives from one row's layout to another's; none if they are equal.

        The seconds of the steps add up to ``seconds[source, target]`` exactly.
        """
        graph = self._graph
        start = graph.wiring.rows[state_of(graph.rank, self.layouts[source])]
        return self._walk(start, target)

    def steps(self, source: Layout, target: Layout) -> tuple[Step, ...]:
        """Return the collectives from one layout to another."""
        return self.path(self.index(source), self.index(target))

    def seconds_of(self, steps: Iterable[Step]) -> float:
        """Return what a sequence of collectives takes, such as one found at other prices."""
        graph, total = self._graph, 0.0
        for step in steps:
            start, target = graph.wiring.rows[step.from_state], graph.wiring.rows[step.to_state]
            edges = range(int(graph.wiring.first[start]), int(graph.wiring.first[start + 1]))
            total += min(
                float(self._paid[edge])
                for edge in edges
                if graph.wiring.target[edge] == target
                and (graph.wiring.kinds[edge], graph.wiring.axes[edge]) == (step.kind, step.axes)
            )
        return total

    def peak_bytes(self, source: int, target: int) -> float:
        """Return the most that one device holds of the value in any state of a path, in bytes.

        A path may lead through a state that is larger than both its ends.
        """
        graph, total = self._graph, math.prod(self.shape) * self.itemsize
        states = [state_of(graph.rank, self.layouts[source])]
        states += [step.to_state for step in self.path(source, target)]
        return max(
            float(total / graph.wiring.shards[graph.wiring.rows[state]].prod()) for state in states
        )

    def steps_from_state(self, state: State, target: Layout) -> tuple[Step, ...]:
        """Return the collectives from any ordered state to a layout."""
        if state not in self._graph.wiring.rows:
            raise ReshardError(
                f"state {state} is not in the graph of {self.shape}'s layouts; build the table "
                "with it"
            )
        return self._walk(self._graph.wiring.rows[state], self.index(target))

    def _walk(self, state: int, target: int) -> tuple[Step, ...]:
        graph, distances = self._graph, self._distances[:, target]
        if math.isinf(distances[state]):
            raise ReshardError(
                f"state {graph.wiring.states[state]} does not divide {self.shape}, so nothing "
                f"leads from it to layout {self.layouts[target]}"
            )
        total = math.prod(self.shape) * self.itemsize
        steps = []
        while distances[state] > 0:
            edges = slice(graph.wiring.first[state], graph.wiring.first[state + 1])
            ahead = self._lengths[edges] + distances[graph.wiring.target[edges]]
            edge = int(graph.wiring.first[state] + np.argmin(ahead))
            after = int(graph.wiring.target[edge])
            steps.append(
                Step(
                    kind=graph.wiring.kinds[edge],
                    axes=graph.wiring.axes[edge],
                    from_state=graph.wiring.states[state],
                    to_state=graph.wiring.states[after],
                    bytes=float(total / graph.wiring.shards[graph.wiring.sized_by[edge]].prod()),
                    seconds=float(self._paid[edge]),
                )
            )
            state = after
        return tuple(steps)


def reshard_table(
    graph: StateGraph,
    shape: Sequence[int],
    itemsize: float,
    *,
    layouts: Iterable[Layout] | None = None,
    together: int = 1,
    width: int | None = None,
) -> ReshardTable:
    """Price the reshards between layouts of one value.

    Args:
      graph: the states of the value's rank on its mesh.
      shape: global sizes.
      itemsize: bytes per element.
      layouts: rows and columns of the table; by default all layouts of the graph that divide.
      together: how many gathers may run as one, with those of the value.
      width: bytes per element of what is sent, if not those of the value.

    Raises:
      ReshardError: a layout is not in the graph.
      LayoutError: a layout does not divide the shape.
    """
    shape, topology = tuple(shape), graph.topology
    valid = (np.array(shape, dtype=np.int64) % graph.wiring.shards == 0).all(axis=1)
    if layouts is None:
        pairs = [(layout, state) for layout, state in graph.wiring.layouts if valid[state]]
        chosen = tuple(layout for layout, _ in pairs)
        targets = np.array([state for _, state in pairs], dtype=np.int64)
    else:
        chosen = tuple(dict.fromkeys(canonical(layout, topology.mesh_shape) for layout in layouts))
        for layout in chosen:
            local_shape(shape, layout, topology.mesh_shape)
        states = [graph.wiring.rows.get(state_of(graph.rank, layout)) for layout in chosen]
        missing = [one for one, state in zip(chosen, states, strict=True) if state is None]
        if missing:
            raise ReshardError(
                f"layouts {missing} of {shape} are not in the state graph; rebuild it"
            )
        targets = np.array(states, dtype=np.int64)
    local_bytes = math.prod(shape) * itemsize / graph.wiring.shards.prod(axis=1)
    lengths = np.where(
        valid[graph.wiring.source] & valid[graph.wiring.target],
        _seconds(graph, shape, local_bytes),
        np.inf,
    )
    distances = shortest_distances(graph, lengths, valid, targets)
    paid, total = lengths, distances[targets]
    if together > 1 or width is not None:
        sent = local_bytes if width is None else local_bytes * (width / itemsize)
        paid = _seconds(graph, shape, sent) - _saved(graph, sent, together)
        wiring = graph.wiring
        total = paid_along(wiring.first, wiring.target, lengths, paid, distances, targets)
    return ReshardTable(
        shape=shape,
        itemsize=itemsize,
        topology=topology,
        layouts=chosen,
        seconds=total,
        rows={layout: row for row, layout in enumerate(chosen)},
        _graph=graph,
        _lengths=lengths,
        _distances=distances,
        _paid=paid,
    )


def _seconds(graph: StateGraph, shape: tuple[int, ...], local_bytes: np.ndarray) -> np.ndarray:
    """Whole ticks per edge, in seconds; `local_bytes` are those of every state."""
    seconds = graph.latency_seconds + graph.seconds_per_byte * local_bytes[graph.wiring.sized_by]
    seconds = seconds + _transposing(graph, shape, local_bytes)
    return np.ceil(seconds * TICKS_PER_SECOND) / TICKS_PER_SECOND


def _transposing(graph: StateGraph, shape: tuple[int, ...], local_bytes: np.ndarray) -> np.ndarray:
    """Seconds per edge of putting in order what is gathered along an inner dimension."""
    chip = graph.topology.machine.chip
    before, after = (
        graph.wiring.shards[graph.wiring.source],
        graph.wiring.shards[graph.wiring.target],
    )
    if not before.size or not _is_transposed(chip):
        return np.zeros(len(graph.wiring.source))
    sizes = np.array(shape, dtype=np.int64) // before
    gathers = np.array([kind == "all_gather" for kind in graph.wiring.kinds])
    outer = np.cumsum(sizes > 1, axis=1) - (sizes > 1)
    edges, gathered = np.arange(len(sizes)), (before != after).argmax(axis=1)
    inside = outer[edges, gathered] > 0
    moved = 2 * local_bytes[graph.wiring.source]
    in_tiles = sizes[edges, gathered] % chip.sublanes == 0
    moved = moved + np.where(in_tiles, 0.0, 2 * local_bytes[graph.wiring.target])
    return np.where(gathers & inside, moved / chip.memory_rate, 0.0)


def _is_transposed(chip: Chip) -> bool:
    """Whether a shard that is gathered along an inner dimension is put in another order first."""
    has = chip.compiler.has
    by_transactions = has("gpu.gathers-along-first-dimension") and has("gpu.gathers-as-it-lies")
    in_tiles = has("tpu.few-rows-turned-for-gathers")
    return (chip.transaction_bytes > 0 and by_transactions) or (chip.sublanes > 1 and in_tiles)


def _saved(graph: StateGraph, local_bytes: np.ndarray, together: int) -> np.ndarray:
    """Seconds per edge that gathers do not pay since they may run with others."""
    gathers = np.array([kind == "all_gather" for kind in graph.wiring.kinds], dtype=bool)
    made = local_bytes[graph.wiring.target]
    share = latency_share(together, made, graph.topology.machine.chip, "all_gather")
    saved = np.floor((1 - share) * graph.latency_seconds * TICKS_PER_SECOND) / TICKS_PER_SECOND
    return np.where(gathers, saved, 0.0)


@dataclass(slots=True, repr=False)
class ReshardCache:
    """Reshard tables of one mesh, each found once.

    Attributes:
      topology: the mesh on its machine.
    """

    topology: MeshTopology
    _graphs: dict[object, StateGraph] = field(default_factory=dict)
    _tables: dict[object, ReshardTable] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"ReshardCache({counted(len(self._tables), 'table')}, {self.topology})"

    def table(
        self,
        shape: Sequence[int],
        itemsize: float,
        *,
        layouts: Iterable[Layout] | None = None,
        together: int = 1,
        width: int | None = None,
    ) -> ReshardTable:
        """Return the table of a shape; see `reshard_table`.

        Where `layouts` are given, the paths between them use only dimensions that one of them
        shards with the same axis. This keeps meshes of many axes affordable.
        """
        chosen = None if layouts is None else tuple(dict.fromkeys(layouts))
        key = (tuple(shape), itemsize, chosen, together, width)
        if key not in self._tables:
            graph = self.graph(len(key[0]), chosen)
            self._tables[key] = reshard_table(
                graph, shape, itemsize, layouts=chosen, together=together, width=width
            )
        return self._tables[key]

    def graph(self, rank: int, layouts: Sequence[Layout] | None = None) -> StateGraph:
        """Return the state graph of a rank, limited to the dimensions that `layouts` shard."""
        axes = range(len(self.topology.mesh_shape))
        allowed = None
        if layouts is not None:
            allowed = tuple(
                tuple(sorted({layout[axis] for layout in layouts} & {*range(rank)}))
                for axis in axes
            )
        key = (rank, allowed)
        if key not in self._graphs:
            self._graphs[key] = state_graph(rank, self.topology, allowed)
        return self._graphs[key]
