"""What the cost laws say of every row of a table, on any machine.

Nothing is modelled here: the seconds are those of `autoshard.cost.roofline` and
`autoshard.cost.collective`, so that what is fitted is what a search uses.

    matmul       one operation of 2 b m n k FLOP that reads both operands and writes the result
    compute      one operation, as given
    elementwise  one operation without FLOP; memory alike
    launch       one operation without FLOP and bytes
    attention    q k^T, then a softmax that reads and writes the scores, then p v
    collective   `MeshTopology.collective_seconds`
    step         compute + collectives - overlap * what could hide
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from autoshard.cost.collective import Kind, MeshTopology, Rate
from autoshard.cost.roofline import Unit, op_seconds
from autoshard.machine.machine import Machine
from autoshard.study.calibrate.table import Row

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Operations:
    """Operations of one dtype and unit, as arrays: the row that each belongs to, FLOP and bytes."""

    dtype: str
    unit: Unit
    rows: NDArray[np.int64]
    flops: Floats
    bytes: Floats


@dataclass(frozen=True, slots=True)
class Collectives:
    """Rows of one collective over the same axes of the same mesh."""

    kind: Kind
    mesh_shape: tuple[int, ...]
    axes: tuple[int, ...]
    rows: NDArray[np.int64]
    bytes: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Laws:
    """The rows of a table, grouped so that all are priced at once."""

    measured: Floats
    operations: tuple[Operations, ...]
    collectives: tuple[Collectives, ...]
    steps: NDArray[np.int64]
    step_seconds: Floats
    hideable_seconds: Floats
    _rates: dict[object, tuple[Rate, ...]] = field(default_factory=dict, repr=False)

    def seconds(self, machine: Machine) -> Floats:
        """Return the predicted seconds of every row; `[rows]`."""
        result = np.zeros(len(self.measured))
        for group in self.operations:
            each = op_seconds(machine.chip, group.flops, group.bytes, group.dtype, unit=group.unit)
            np.add.at(result, group.rows, each)
        for group, rate in zip(self.collectives, self._collective_rates(machine), strict=True):
            result[group.rows] = rate.latency_seconds + rate.seconds_per_byte * group.bytes
        result[self.steps] = self.step_seconds - machine.overlap * self.hideable_seconds
        return result

    def _collective_rates(self, machine: Machine) -> tuple[Rate, ...]:
        """The rates of all groups; remembered, since most machines of a fit share a network."""
        chip = machine.chip
        key = (machine.network, chip.launch_seconds, chip.memory_efficiency)
        if key not in self._rates:
            topologies: dict[tuple[int, ...], MeshTopology] = {}
            for group in self.collectives:
                if group.mesh_shape not in topologies:
                    topologies[group.mesh_shape] = MeshTopology(machine, group.mesh_shape)
            self._rates[key] = tuple(
                topologies[group.mesh_shape].rate(group.kind, group.axes)
                for group in self.collectives
            )
        return self._rates[key]


def laws(rows: Sequence[Row], machine: Machine) -> tuple[Laws, list[str]]:
    """Return the laws of checked rows, and what the machine cannot have timed.

    Args:
      rows: as `autoshard.study.calibrate.table.rows` gives them.
      machine: its shape (chips, levels) matters here, its rates do not.
    """
    faults: list[str] = []
    parts: dict[tuple[str, Unit], list[tuple[int, float, float]]] = {}
    moves: dict[tuple[Kind, tuple[int, ...], tuple[int, ...]], list[tuple[int, float]]] = {}
    steps: list[tuple[int, float, float]] = []
    for number, row in enumerate(rows):
        if row.kind == "step":
            cells = row.cells
            together = cells["compute_seconds"] + cells["collective_seconds"]
            hideable = cells.get("hideable_seconds", cells["collective_seconds"])
            steps.append((number, together, hideable))
        elif row.kind == "collective":
            group = _group(row, machine)
            if isinstance(group, str):
                faults.append(f"{row.where}, {group}")
                continue
            key = (row.cells["collective"], *group)
            moves.setdefault(key, []).append((number, row.cells["bytes"]))
        else:
            for dtype, unit, flops, size in _parts(row):
                parts.setdefault((dtype, unit), []).append((number, flops, size))
    operations = tuple(
        Operations(dtype, unit, _integers(members, 0), _floats(members, 1), _floats(members, 2))
        for (dtype, unit), members in parts.items()
    )
    collectives = tuple(
        Collectives(*key, _integers(members, 0), _floats(members, 1))
        for key, members in moves.items()
    )
    measured = np.array([row.seconds for row in rows])
    found = Laws(
        measured, operations, collectives, _integers(steps, 0), _floats(steps, 1), _floats(steps, 2)
    )
    return found, faults


def row_work(row: Row) -> tuple[float, float]:
    """Return FLOP and bytes of a row that times operations."""
    parts = _parts(row)
    return sum(part[2] for part in parts), sum(part[3] for part in parts)


def _parts(row: Row) -> list[tuple[str, Unit, float, float]]:
    """(dtype, unit, FLOP, bytes) of each operation that a row is made of."""
    cells = row.cells
    if row.kind == "matmul":
        return [_matmul(cells.get("batch", 1), cells["m"], cells["n"], cells["k"], cells["dtype"])]
    if row.kind == "compute":
        return [(cells["dtype"], cells["unit"], cells["flops"], cells["bytes"])]
    if row.kind == "attention":
        heads, dtype = cells["batch"] * cells["heads"], cells["dtype"]
        queries, keys, depth = cells["queries"], cells["keys"], cells["head_dim"]
        scores = float(heads * queries * keys)
        return [
            _matmul(heads, queries, keys, depth, dtype),
            (dtype, "vector", 0.0, 2 * scores * np.dtype(dtype).itemsize),
            _matmul(heads, queries, depth, keys, dtype),
        ]
    return [("float32", "vector", 0.0, cells.get("bytes", 0.0))]


def _matmul(batch: int, m: int, n: int, k: int, dtype: str) -> tuple[str, Unit, float, float]:
    """[batch, m, k] @ [batch, k, n]: three arrays cross memory once."""
    size = np.dtype(dtype).itemsize * batch * (m * k + k * n + m * n)
    return dtype, "matrix", 2.0 * batch * m * n * k, float(size)


def _group(row: Row, machine: Machine) -> tuple[tuple[int, ...], tuple[int, ...]] | str:
    """(mesh shape, axes) of a collective's group, or what is wrong with it."""
    cells = row.cells
    alone = "a group of one device moves nothing; leave the row out"
    if "mesh" in cells:
        names, sizes = tuple(cells["mesh"]), tuple(cells["mesh"].values())
        if math.prod(sizes) != machine.chips:
            return (
                f"column mesh: it has {math.prod(sizes)} devices, {machine.name} has "
                f"{machine.chips}; give a mesh over all of them, or group_size"
            )
        axes = tuple(sorted(names.index(axis) for axis in set(cells["axes"])))
        return (sizes, axes) if math.prod(sizes[a] for a in axes) > 1 else f"column axes: {alone}"
    size, inside, room = cells["group_size"], 1, machine.chips
    if size == 1:
        return f"column group_size: {alone}"
    if "level" in cells:
        index = _level(cells["level"], machine)
        if index is None:
            known = ", ".join(f"{level.name} or {i}" for i, level in enumerate(machine.network))
            return f"column level: {machine.name} has no {cells['level']!r}; it has {known}"
        inside = math.prod(level.chips for level in machine.network[:index])
        room = machine.network[index].chips
    if room % size:
        where = f"level {cells['level']} of {machine.name}" if "level" in cells else machine.name
        return f"column group_size: {size} does not divide the {room} of {where}"
    return (machine.chips // inside // size, size, inside), (1,)


def _level(name: str, machine: Machine) -> int | None:
    names = [level.name.lower() for level in machine.network]
    if name.lower() in names:
        return names.index(name.lower())
    return int(name) if name.isdigit() and int(name) < len(names) else None


def _integers(members: Sequence[tuple], column: int) -> NDArray[np.int64]:
    return np.array([member[column] for member in members], dtype=np.int64)


def _floats(members: Sequence[tuple], column: int) -> Floats:
    return np.array([member[column] for member in members], dtype=np.float64)
