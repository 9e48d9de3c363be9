"""What is moved and held to put arrays in another order of dimensions.

Operands that lie otherwise than their op reads them (`autoshard.xla.dim_order.walk`), and stacks
whose slices are gathered along an inner dimension (`autoshard.xla.slices`). XLA:GPU makes these
copies, on chips whose memory is read in transactions. On other chips nothing is copied.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autoshard.cost.vector_products import goes_to_several
from autoshard.machine.chip import Chip
from autoshard.program.dim_order import Transposition, transposed_bytes
from autoshard.program.layout import local_shape, shards_of
from autoshard.program.strategies import Strategies
from autoshard.program.trace import Op

if TYPE_CHECKING:
    from autoshard.cost.step_prices import StepPrices

Floats = NDArray[np.float64]


class Ways(NamedTuple):
    """How a compiler transposes operands.

    Attributes:
      transaction: bytes that memory moves for each element that is read out of order.
      copied: whether every transposition is read and written by itself.
      jumps: whether few elements that lie together are read out of order, one by one.
    """

    transaction: float
    copied: bool
    jumps: bool


def ways(chip: Chip) -> Ways | None:
    """How the chip's compiler transposes operands; None where it costs nothing."""
    own = chip.compiler
    if own.denies("tpu.products-read-transposed"):
        return Ways(0.0, copied=True, jumps=False)
    if not (chip.transaction_bytes and own.has("gpu.products-write-batch-left-right")):
        return None
    return Ways(
        chip.transaction_bytes if own.has("gpu.transposes-element-by-element") else 0.0,
        copied=not own.has("gpu.transposes-through-tiles"),
        jumps=own.has("gpu.tiles-of-sixteen-elements"),
    )


def transposing(
    prices: StepPrices, op: Op, strategies: Strategies
) -> tuple[Floats, tuple[tuple[Floats, Floats], ...]]:
    """Bytes per device that transposing the operands of `op` moves, and those of the copies.

    Of a copy first what it takes while reductions read it, then what it takes on top of what it
    replaces, see `autoshard.xla.liveness.Turned`. All are `[len(strategies)]`. A dimension that is
    cut to one element lies anywhere.
    """
    turned = prices.dataflow.turned.get(op.index, ())
    how = ways(prices.machine.chip)
    if how is None:
        moved = np.zeros(len(strategies))
        return moved, ((moved, moved),) * len(turned)
    transposed = prices.dataflow.transposed.get(op.index, ())
    amounts = tuple(life.amounts for life in turned)
    kinds = tuple(
        (prices.program.values[v].shape, prices.program.values[v].itemsize)
        for v in (op.inputs[one.position] for one in transposed)
    )
    by = prices.mesh_shape, how, prices.scratch_factor
    key = "transposing", transposed, amounts, kinds, by
    if key not in strategies.found:
        strategies.found[key] = _transposing(prices, op, strategies, transposed, amounts, how)
    return strategies.found[key]


def _transposing(
    prices: StepPrices,
    op: Op,
    strategies: Strategies,
    transposed: tuple[Transposition, ...],
    amounts: tuple[tuple[float, float, float], ...],
    how: Ways,
) -> tuple[Floats, tuple[tuple[Floats, Floats], ...]]:
    moved, copies = np.zeros(len(strategies)), []
    for one, (replaces, parts, times) in zip(transposed, amounts, strict=True):
        value = prices.program.values[op.inputs[one.position]]
        one = replace(one, copy=one.copy or how.copied, jumps=one.jumps and how.jumps)
        reads = strategies.reads[one.position]
        weights = (len(value.shape) + 2) ** np.arange(reads.shape[1], dtype=np.int64)
        _, first, rows = np.unique((reads + 2) @ weights, return_index=True, return_inverse=True)
        found = []
        for layout in reads[first].tolist():
            sizes = local_shape(value.shape, tuple(layout), prices.mesh_shape)
            stays = one.row is not None and not one.row.turns(sizes)
            more = transposed_bytes(one, replaces, sizes, value.itemsize, how.transaction)
            found.append((0.0, 0.0, 0.0) if stays else more)
        there = goes_to_several(prices, op, one, strategies)
        moves, made, held = np.array(found).T[:, rows.reshape(-1)] * there
        moved = moved + times * moves
        factor = parts * prices.scratch_factor
        copies.append((made * factor, held * factor))
    return moved, tuple(copies)


def stack_bytes(
    prices: StepPrices, value: int, before: NDArray[np.int64], after: NDArray[np.int64]
) -> Floats:
    """Bytes per device of the stack that is put in order so that slices of it can be gathered.

    From layouts `before` to `after` of the slice `value`, both `[n, axes]`; see
    `autoshard.xla.slices.Slice`.
    """
    record, chip = prices.program.values[value], prices.machine.chip
    if not (chip.transaction_bytes and chip.compiler.has("gpu.stacks-put-in-order")):
        return np.zeros(len(before))
    rank = len(record.shape)
    shards = shards_of(before, prices.mesh_shape, rank)
    gathered = np.zeros((len(before), rank), dtype=bool)
    for axis in range(len(prices.mesh_shape)):
        rows = np.flatnonzero((before[:, axis] >= 0) & (after[:, axis] < 0))
        gathered[rows, before[rows, axis]] = True
    large = np.array(record.shape, dtype=np.int64) // shards > 1
    inner = np.cumsum(large, axis=1) - large > 0
    stack = prices.program.values[prices.dataflow.slices[value].stack]
    local = stack.bytes / shards.prod(axis=1) * prices.scratch_factor
    return local * (gathered & inner).any(axis=1)
