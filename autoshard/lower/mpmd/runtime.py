"""One controller that runs a script: it enqueues programs and transfers, in order, and frees.

JAX runs asynchronously: the controller is ahead of the devices, and every mesh works through its
own queue. A slot is dropped after its last reader was enqueued, and its memory is free as soon as
that has run.

A process that holds only some of the meshes would run the same script and skip the instructions of
the others; `_transfer` is the one place that takes both ends of a transfer to be in this process.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from autoshard.lower.mpmd.cut.pieces import Bounds, Pieces
from autoshard.lower.mpmd.instructions import (
    Gather,
    Instruction,
    Run,
    Send,
    Slot,
    indices_of,
    reads_and_writes,
)
from autoshard.lower.mpmd.place import LoweredMpmd
from autoshard.lower.mpmd.recording import Recorder, Recording
from autoshard.program.state.constants import hold, release


class Stacked:
    """A stacked array whose rows are on several meshes: an opaque leaf of a pytree.

    Attributes:
      pieces: arrays with the rows `start <= row < stop` of `bounds`, in order.
    """

    def __init__(self, pieces: Sequence[jax.Array], bounds: Bounds) -> None:
        self.pieces = tuple(pieces)
        self.bounds = bounds
        rows = sum(piece.shape[0] for piece in self.pieces)
        self.shape = (rows, *self.pieces[0].shape[1:])
        self.dtype = self.pieces[0].dtype

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        del copy
        return np.concatenate([np.asarray(piece) for piece in self.pieces]).astype(
            dtype or self.dtype
        )

    def __repr__(self) -> str:
        return f"Stacked({self.dtype}{list(self.shape)}, rows {list(self.bounds)})"


def joined(tree: Any) -> Any:
    """A pytree with its `Stacked` leaves as host arrays."""
    return jax.tree.map(lambda leaf: np.asarray(leaf) if isinstance(leaf, Stacked) else leaf, tree)


def execute(lowered: LoweredMpmd, args: Any) -> Any:
    """Run the script on the step's arguments.

    Raises:
      TypeError: the arguments are not shaped as the step's.
    """
    return Controller(lowered).step(args)


def execute_recorded(lowered: LoweredMpmd, args: Any) -> tuple[Any, Recording]:
    """As `execute`, but wait for every instruction, and take down what each took."""
    recorder = Recorder(lowered.script, len(lowered.meshes))
    result = Controller(lowered, recorder).step(args)
    name = lowered.partition.name
    return result, Recording(name, len(lowered.meshes), tuple(recorder.done))


class Controller:
    """The state of one run: what is in every slot."""

    def __init__(self, lowered: LoweredMpmd, recorder: Recorder | None = None) -> None:
        self.lowered, self.recorder = lowered, recorder
        self.slots: dict[Slot, Any] = {}
        self.indices: dict[tuple[int, int], Any] = {}

    def step(self, args: Any) -> Any:
        """The step on its arguments; its result."""
        script, partition = self.lowered.script, self.lowered.partition
        leaves, tree = jax.tree.flatten(hold(args))
        if tree != partition.in_tree:
            raise TypeError(
                f"{partition.name} was lowered for arguments {partition.in_tree}, but got {tree}; "
                "give arguments of this structure, or lower it for the new one"
            )
        for position, leaf in enumerate(leaves):
            self._place(position, leaf)
        if self.recorder is not None:
            jax.block_until_ready(list(self.slots.values()))
            for slot, array in self.slots.items():
                self.recorder.placed(slot, array)
        begin = time.perf_counter()
        for one, dead in zip(script.instructions, script.frees, strict=True):
            start = time.perf_counter() - begin
            self.do(one)
            if self.recorder is not None:
                made = [(slot, self.slots[slot]) for slot in reads_and_writes(one)[1]]
                jax.block_until_ready([array for _, array in made])
                self.recorder.carried_out(one, start, time.perf_counter() - begin, made, dead)
            for slot in dead:
                self.slots.pop(slot, None)
        results = [
            self._result(entry, slots)
            for entry, slots in zip(partition.outer.outputs, script.outputs, strict=True)
        ]
        return release(jax.tree.unflatten(partition.out_tree, results))

    def do(self, one: Instruction) -> None:
        """Carry out one instruction."""
        if isinstance(one, Run):
            self._run(one)
        elif isinstance(one, Send):
            self.slots[one.target] = self._transfer(self.slots[one.source], one.target)
        elif isinstance(one, Gather):
            self.slots[one.target] = jnp.stack([self.slots[slot] for slot in one.sources])

    def _run(self, one: Run) -> None:
        unit = self.lowered.script.units[one.unit]
        arguments = [self.slots[slot] for slot in one.inputs]
        arguments += [self._index(unit.mesh, number) for number in indices_of(unit, one.tasks)]
        results = self.lowered.programs[one.unit](*arguments)
        self.slots.update(zip(one.outputs, results, strict=True))

    def _index(self, mesh: int, microbatch: int) -> Any:
        key = mesh, microbatch
        if key not in self.indices:
            everywhere = NamedSharding(self.lowered.meshes[mesh], PartitionSpec())
            self.indices[key] = jax.device_put(np.int32(microbatch), everywhere)
        return self.indices[key]

    def _place(self, position: int, leaf: Any) -> None:
        partition, layouts = self.lowered.partition, self.lowered.layouts
        entry, pieces = partition.outer.inputs[position], self.lowered.script.inputs[position]
        shape = partition.step.top.avals[partition.step.top.inputs[position]].shape
        if np.shape(leaf) != shape and getattr(leaf, "shape", None) != shape:
            raise TypeError(
                f"{partition.in_paths[position]} has shape {np.shape(leaf)}; {partition.name} was "
                f"lowered for {shape}; give it this shape, or lower the step for the new one"
            )
        if isinstance(leaf, Stacked) and not (
            isinstance(entry, Pieces) and entry.bounds == leaf.bounds
        ):
            leaf = np.asarray(leaf)
        for k, slots in enumerate(pieces):
            part = leaf
            if isinstance(leaf, Stacked):
                part = leaf.pieces[k]
            elif isinstance(entry, Pieces):
                start, stop = entry.bounds[k]
                part = leaf[start:stop]
            for slot in slots:
                self.slots[slot] = jax.device_put(part, layouts[slot])

    def _transfer(self, array: Any, target: Slot) -> Any:
        """A copy of an array on another mesh, sharded over the axes of the same names there."""
        mesh = self.lowered.meshes[target.mesh]
        layout = self.lowered.layouts.get(target)
        if layout is None:
            spec = PartitionSpec()
            if isinstance(array.sharding, NamedSharding):
                spec = _fitting(array.sharding.spec, array.shape, mesh)
            layout = NamedSharding(mesh, spec)
        return jax.device_put(array, layout)

    def _result(self, entry: int | Pieces, slots: Sequence[Slot]) -> Any:
        arrays = [self.slots[slot] for slot in slots]
        return Stacked(arrays, entry.bounds) if isinstance(entry, Pieces) else arrays[0]


def _fitting(spec: PartitionSpec, shape: Sequence[int], mesh: Any) -> PartitionSpec:
    """A spec for another mesh: axes that it has, on dimensions that they divide."""
    entries = []
    for entry, size in zip(spec, shape, strict=False):
        names = entry if isinstance(entry, tuple) else (entry,) if entry else ()
        names = tuple(name for name in names if name in mesh.shape)
        count = int(np.prod([mesh.shape[name] for name in names], dtype=np.int64))
        entries.append(names if names and size % count == 0 else None)
    return PartitionSpec(*entries)
