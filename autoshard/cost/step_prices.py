"""Seconds of one op under each of its strategies: compute, and settling of partial sums.

Compute is the roofline of the op's local FLOP and local bytes. Bytes are what reaches memory: a
kernel writes results that are materialised, and reads what is, and what is fused into it reads (see
`autoshard.xla.facts`); an op that touches only a part of an operand (gather, scatter, dynamic
slices) moves twice that part.

An operand that lies otherwise than the op reads it (see `autoshard.xla.dim_order.walk`) is read out
of order, where that jumps about by whole transactions of the memory, and perhaps written and read
once more.

A partial result over the axes U is settled by an all-reduce over U, or by a reduce-scatter over U.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoshard.cost.collective import Kind, MeshTopology
from autoshard.cost.combined import Settlement, settled_seconds, settlements
from autoshard.cost.corrections import NONE, Corrections
from autoshard.cost.free_ops import moves_nothing
from autoshard.cost.kernels import kernel_seconds, longest_parts
from autoshard.cost.ragged import flops_in_windows, mask_seconds, masked_bytes, times_computed
from autoshard.cost.reordering import transposing
from autoshard.cost.reshard import ReshardCache, ReshardTable
from autoshard.cost.rings import ring_seconds
from autoshard.cost.roofline import op_seconds
from autoshard.cost.tiling import pad_seconds, padding
from autoshard.cost.vector_products import with_sums
from autoshard.machine.chip import Chip
from autoshard.machine.machine import Machine
from autoshard.program.facts import Facts
from autoshard.program.flops import is_matrix_op
from autoshard.program.graph import is_free
from autoshard.program.layout import shards_of
from autoshard.program.strategies import Strategies, project_assignment
from autoshard.program.trace import Op, Program
from autoshard.program.vocabulary import UPDATES
from autoshard.units import counted

Floats = NDArray[np.float64]
PARTIAL = frozenset({"gather", "scan_stack", *UPDATES})
EXPONENTIALS = "gpu.functions-are-multiples", "gpu.exponentials-of-hopper"
"""What a compiler is expected to reckon with where a chip states what an exponential takes."""


@dataclass(frozen=True, slots=True, eq=False)
class StepPrices:
    """The cost laws of one program on one machine and mesh (sizes of the mesh's axes).

    `corrections` are what compiled plans of the program have taught; `evaluated` is a memo of what
    the evaluator asked, plan after plan.
    """

    program: Program
    dataflow: Facts
    machine: Machine
    mesh_shape: tuple[int, ...]
    topology: MeshTopology
    reshards: ReshardCache
    corrections: Corrections = NONE
    evaluated: dict[object, Any] = field(init=False, repr=False, default_factory=dict)

    def reshard(self, value: int, *, alone: bool = False) -> ReshardTable:
        """The table of reshards between all layouts of one value; with whole latencies if `alone`.

        Their steps are the same.
        """
        record = self.program.values[value]
        together, narrowed = self.dataflow.sending(value)
        together = 1 if alone else together
        width = None if narrowed is None else narrowed.width
        return self.reshards.table(record.shape, record.itemsize, together=together, width=width)

    def narrowing(self, value: int) -> float:
        """Bytes that are sent for each byte of a value that is copied."""
        narrowed = self.dataflow.narrowed.get(value)
        return 1.0 if narrowed is None else narrowed.width / self.program.values[value].itemsize

    def local_bytes(self, value: int, dimensions: NDArray[np.int64]) -> Floats:
        """Bytes per device of `value` in each of the layouts `[n, axes]`."""
        return self.program.values[value].bytes / self._shards(dimensions)

    def held_bytes(self, value: int, dimensions: NDArray[np.int64]) -> Floats:
        """The same with the tiles of the chip's memory filled."""
        cut = np.asarray(dimensions).reshape(-1, len(self.mesh_shape))
        shape = self.program.values[value].shape
        sizes = np.array(shape, dtype=np.int64) // shards_of(cut, self.mesh_shape, len(shape))
        innermost = self.dataflow.innermost.get(value)
        held = self.local_bytes(value, cut) * padding(sizes, self.machine.chip, innermost)
        return held.reshape(np.shape(dimensions)[:-1])

    def heap_factor(self, value: int) -> float:
        """Bytes that a value takes in memory for each of its own."""
        return heap_factor(self.dataflow, self.machine.chip, value)

    @property
    def scratch_factor(self) -> float:
        """The same, of what no value stands for."""
        return 1.0 + self.machine.chip.compiler.heap_overhead

    def copy_factor(self, value: int, dimensions: NDArray[np.int64]) -> Floats:
        """Bytes that copies of a value take for each of the value in these layouts `[n, axes]`."""
        narrowed = self.dataflow.narrowed.get(value)
        if narrowed is None:
            return np.full(len(dimensions), self.scratch_factor)
        has = self.machine.chip.compiler.has
        by_rows = narrowed.is_table and has("tpu.own-rows-converted-after-lookup")
        wide = by_rows & (dimensions == 0).any(axis=-1)
        return self.scratch_factor * np.where(wide, 1.0, self.narrowing(value))

    def copied_bytes(self, value: int, layout: Sequence[int]) -> float:
        """Bytes per device of a copy of `value` in one layout."""
        dimensions = np.array(layout)
        factor = self.copy_factor(value, dimensions[None])[0]
        return float(self.held_bytes(value, dimensions) * factor)

    def scratch_bytes(self, value: int, layout: Sequence[int]) -> float:
        """Bytes per device of another array of the heap, as large as `value` in one layout."""
        return float(self.held_bytes(value, np.array(layout))) * self.scratch_factor

    def priced_by(self, op: Op) -> Hashable:
        """What decides the seconds of an op on this machine: ops that agree in it cost the same."""
        values = self.program.values
        arrays = tuple(
            (values[v].shape, values[v].itemsize, values[v].dtype) if v >= 0 else None
            for v in (*op.inputs, *op.outputs)
        )
        around = self.dataflow.surroundings(op), self.corrections.factor(op)
        return (
            op.primitive,
            op.flops,
            op.kernel,
            len(op.inputs),
            arrays,
            self.is_filled(op),
            *around,
        )

    def compute_seconds(self, op: Op, strategies: Strategies) -> Floats:
        """Seconds of one execution of `op`, for every strategy; `[len(strategies)]`."""
        if op.kernel is not None:
            longest = longest_parts(op, strategies, self.mesh_shape)
            busy = kernel_seconds(self.machine.chip, op.kernel, strategies.shards, longest)
            return (busy + ring_seconds(self, op, strategies)) * self.corrections.factor(op)
        transposed = op.index in self.dataflow.transposed
        if moves_nothing(self.program, self.dataflow, op) and not transposed:
            return np.zeros(len(strategies))
        traffic = self._traffic(op, strategies)
        if transposed:
            traffic = traffic + transposing(self, op, strategies)[0]
        if op.groups > 1:
            traffic = traffic + masked_bytes(self, op, strategies)
        flops = self._flops(op) / strategies.shards * flops_in_windows(self, op, strategies)
        busy = with_sums(self, op, strategies, self._busy(op, flops, traffic))
        if op.primitive == "pad" and self.dataflow.materialised[op.outputs[0]]:
            held = self.held_bytes(op.outputs[0], strategies.written[0])
            alone = pad_seconds(held, self.program.values[op.outputs[0]], self.machine.chip)
            busy = np.maximum(busy, alone * self.corrections.factor(op))
        if op.groups > 1:
            busy = busy + mask_seconds(self, op, strategies) * self.corrections.factor(op)
        if op.index in self.dataflow.rows:
            return np.where(strategies.reduced.any(axis=1), busy, 0.0)  # else its readers do it
        return busy

    def _flops(self, op: Op) -> float:
        """FLOP of `op`, with those of the transcendental functions that are fused into it."""
        compiler = self.machine.chip.compiler
        if is_matrix_op(op.primitive) or compiler.denies(*EXPONENTIALS):
            return op.flops * times_computed(compiler, op)
        return op.flops + self.dataflow.exponentials[op.index] * self.machine.chip.exponential_flops

    def _busy(self, op: Op, flops: Floats, traffic: Floats) -> Floats:
        """Seconds of `op` for local FLOP and bytes; what is fused or joined is not launched."""
        unit = "matrix" if is_matrix_op(op.primitive) else "vector"
        seconds = op_seconds(self.machine.chip, flops, traffic, self.dtype(op), unit=unit)
        flow = self.dataflow
        writes = any(flow.materialised[o] for o in op.outputs) or is_matrix_op(op.primitive)
        launches = writes and op.index not in flow.joined
        busy = np.asarray(seconds) - (0.0 if launches else self.machine.chip.launch_seconds)
        return busy * self.corrections.factor(op)

    def ideal_seconds(self, alike: Sequence[Sequence[int]]) -> float:
        """Seconds that no plan on any mesh of these chips undercuts.

        Every op is cut into as many equal parts as there are chips, and nothing is communicated.
        `alike` partitions the op indices into ops of the same rule and shapes.
        """
        total = 0.0
        groups: dict[object, list[int]] = {}
        for number, members in enumerate(alike):
            for member in members:  # what surrounds an op decides what is fused with it
                op = self.program.ops[member]
                key = (number, self.dataflow.surroundings(op), self.corrections.factor(op))
                groups.setdefault(key, []).append(member)
        for members in groups.values():
            op = self.program.ops[members[0]]
            if moves_nothing(self.program, self.dataflow, op) or is_free(op, self.program.values):
                continue
            if op.index in self.dataflow.rows or op.index in self.dataflow.row_slices:
                continue
            times = sum(self.program.ops[m].trips * self.program.ops[m].weight for m in members)
            if op.kernel is not None:
                chips = np.array([self.machine.chips])
                busy = kernel_seconds(self.machine.chip, op.kernel, chips)
                total += float(busy[0]) * self.corrections.factor(op) * times
                continue
            whole = project_assignment(
                op.rule,
                np.full((1, len(self.mesh_shape)), -1),
                tuple(np.full((1, len(self.mesh_shape)), -1) for _ in op.outputs),
                self.mesh_shape,
            )
            chips = float(self.machine.chips)
            flops = np.array([self._flops(op) / chips])
            (busy,) = self._busy(op, flops, self._traffic(op, whole) / chips)
            total += float(busy) * times
        return total

    def settle_seconds(self, op: Op, strategies: Strategies) -> Floats:
        """Seconds of the collectives that settle partial results; `[len(strategies)]`."""
        result = np.zeros(len(strategies))
        for kind, axes, rows, before in self.settlements(strategies):
            for number, output in enumerate(op.outputs):
                size = self._bytes(output, strategies, "written", number)[rows]
                size = size / self.topology.group_size(before)
                stored = strategies.stored[number][rows]
                result[rows] += self.settled_seconds(op, kind, axes, size, stored)
        return result

    def settled_seconds(
        self,
        op: Op,
        kind: Kind,
        axes: tuple[int, ...],
        size: Floats,
        stored: NDArray[np.int64],
        *,
        alone: bool = False,
    ) -> Floats:
        """Seconds of settling partial sums of local `size` into the layouts `stored`; `[n]`.

        See `autoshard.cost.combined.settled_seconds`.

        Args:
          op: which makes the partial sums.
          kind: "all_reduce" or "reduce_scatter".
          axes: over which the sums are partial.
          size: local bytes of the partial sums, `[n]`.
          stored: layouts of the settled sums, `[n, mesh axes]`.
          alone: whether to count the whole latency.
        """
        together = self.dataflow.summed_together[op.index]
        shares = () if alone else ("reduce_scatter",)
        if not alone and op.index not in self.dataflow.renewals:  # those are waited for
            shares = ("reduce_scatter", "all_reduce")
        return settled_seconds(self.topology, kind, axes, size, stored, together, shares)

    def settlements(self, strategies: Strategies) -> tuple[Settlement, ...]:
        """(kind, axes, rows, before) of every group of strategies that is settled alike."""
        if "settlements" not in strategies.found:
            strategies.found["settlements"] = tuple(settlements(strategies))
        return strategies.found["settlements"]

    def exposed(self, hides: bool, *, moved: bool = False) -> float:
        """The fraction of a collective's seconds that adds to the step, if it `hides` beside
        compute, and in a loop, if it is `moved` to another turn (`autoshard.xla.pipelined`)."""
        compiler = self.machine.chip.compiler
        if not hides or compiler.denies("gpu.collectives-begin-and-end", "tpu.v5e-hides-gathers"):
            return self.corrections.waited
        if self.corrections.hidden is not None:
            return self.corrections.hidden
        return 1.0 - max(self.machine.overlap, compiler.pipelined if moved else 0.0)

    def exposed_of_copies(self, value: int) -> float:
        """The same, of the collectives that copy a value."""
        early = self.dataflow.prefetchable[value]
        return self.exposed(early, moved=value in self.dataflow.made_ahead)

    def exposed_of_sums(self, op: Op) -> float:
        """The same, of those that settle the partial sums of an op."""
        hides = not any(self.dataflow.awaited[one] for one in op.outputs)
        return self.exposed(hides, moved=op.index in self.dataflow.summed_behind)

    def dtype(self, op: Op) -> str:
        """Of its first operand, by which the rate of the chip's units goes."""
        known = [value for value in (*op.inputs, *op.outputs) if value >= 0]
        return self.program.values[known[0]].dtype if known else "float32"

    def _traffic(self, op: Op, strategies: Strategies) -> Floats:
        flow = self.dataflow
        touched = np.zeros(len(strategies))
        if moves_nothing(self.program, self.dataflow, op):
            return touched
        if op.index in flow.copied:
            return 2.0 * self._bytes(op.outputs[0], strategies, "written")
        if op.primitive in PARTIAL:
            touched = (4.0 if op.index in flow.copied_back else 2.0) * self._moved(op, strategies)
            if self.is_filled(op):
                touched = touched + self._bytes(op.outputs[0], strategies, "written")
            return touched
        if all(not flow.materialised[o] for o in op.outputs):
            if not is_matrix_op(op.primitive):
                return touched  # its readers do
            touched = self._added(op, strategies)
        for position, size in enumerate(flow.fetched[op.index]):
            if size:
                touched = touched + size / self._parts(strategies, "reads", position)
        for number, value in enumerate(op.outputs):
            if flow.materialised[value]:
                touched = touched + self._bytes(value, strategies, "written", number)
        return touched

    def _added(self, op: Op, strategies: Strategies) -> Floats:
        """Bytes for the results of a product that is added to an array.

        That is read and written. A sum that is partial is settled first, and then added as such:
        the product is written, both are read, and their sum is written.
        """
        written = self._bytes(op.outputs[0], strategies, "written")
        settled = strategies.reduced.any(axis=1) & ~strategies.pending
        stored = self._bytes(op.outputs[0], strategies, "stored")
        return np.where(settled, written + 3.0 * stored, 2.0 * written)

    def is_filled(self, op: Op) -> bool:
        """Whether it updates a buffer that is filled with a constant before."""
        values = self.program.values
        return op.primitive in UPDATES and (op.inputs[0] < 0 or values[op.inputs[0]].free)

    def _moved(self, op: Op, strategies: Strategies) -> Floats:
        """Bytes per device of the slice that a partial op reads or writes."""
        if op.primitive == "gather":
            return self._bytes(op.outputs[0], strategies, "written")
        if op.primitive == "scan_stack":
            return self._bytes(op.inputs[0], strategies, "reads")
        update = 1 if op.primitive == "dynamic_update_slice" else 2
        if update < len(op.inputs) and op.inputs[update] >= 0:
            return self._bytes(op.inputs[update], strategies, "reads", update)
        return self._bytes(op.outputs[0], strategies, "written")

    def _shards(self, dimensions: NDArray[np.int64]) -> Floats:
        """Into how many parts each of the layouts `[n, axes]` cuts a value."""
        return np.where(np.asarray(dimensions) >= 0, self.mesh_shape, 1).prod(axis=-1).astype(float)

    def _parts(self, strategies: Strategies, what: str, number: int) -> Floats:
        """The same of what strategies "reads", or have "written" or "stored": one value of it."""
        key = what, number, self.mesh_shape
        if key not in strategies.found:
            strategies.found[key] = self._shards(getattr(strategies, what)[number])
        return strategies.found[key]

    def _bytes(self, value: int, strategies: Strategies, what: str, number: int = 0) -> Floats:
        """Bytes per device of `value`, under every strategy."""
        return self.program.values[value].bytes / self._parts(strategies, what, number)


def heap_factor(dataflow: Facts, chip: Chip, value: int) -> float:
    """Bytes that a value takes in the memory of a chip for each of its own."""
    return 1.0 + chip.compiler.heap_overhead if dataflow.temporary[value] else 1.0


def step_prices(
    program: Program,
    dataflow: Facts,
    machine: Machine,
    mesh_shape: Sequence[int],
    corrections: Corrections = NONE,
    *,
    reshards: ReshardCache | None = None,
) -> StepPrices:
    """The cost laws of `program` on `machine`, arranged as a mesh of `mesh_shape`.

    `reshards` may be those of another program; they are taken where they are of this mesh.

    Raises:
      ValueError: the mesh does not use all chips of the machine; `dataflow` is not of its chip.
    """
    shape = tuple(mesh_shape)
    if not dataflow.is_of(machine.chip):
        raise ValueError(
            f"the data flow of {program.name} was analysed for {dataflow.chip or 'no chip'}, which "
            f"fuses otherwise than {machine.chip.name}; give analyse(program, machine.chip)"
        )
    if math.prod(shape) != machine.chips:
        raise ValueError(
            f"mesh {'x'.join(map(str, shape))} has {math.prod(shape)} devices, but {machine.name} "
            f"has {counted(machine.chips, 'chip')}; give axes whose sizes multiply to "
            f"{machine.chips}"
        )
    topology = MeshTopology(machine, shape)
    if reshards is None or reshards.topology != topology:
        reshards = ReshardCache(topology)
    return StepPrices(program, dataflow, machine, shape, topology, reshards, corrections)
