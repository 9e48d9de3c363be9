"""Products of one row, which XLA:GPU multiplies and sums up itself.

A product whose left or right side is a vector on the device, and small, becomes a multiplication
and a sum (xla/service/gpu/transforms/algebraic_simplifier.cc):

    K (M + N) < 10,000,000    K contracted elements, M rows of the left, N columns of the right

Where the matrix lies with the contracted dimension innermost, the sum is of rows, and takes what
memory takes. Else it is of columns: one multiprocessor runs down each 256 bytes of them. Few
columns leave most multiprocessors idle, which read so many bytes a clock
(xla/service/gpu/model/gpu_performance_model_base.cc, AdjustBandwidth). Both run as one kernel, in
which a multiprocessor does half as much, or the products are written first, which is faster where
columns are long:

    together   launch + max( bytes / memory,  2 K width / multiprocessor )
    apart      2 launch + 2 bytes / memory + max( bytes / memory,  K width / multiprocessor )

with `bytes` of the matrix and `width` of its rows, at most 256 bytes. More than 4,096 elements are
summed up in two steps, of about as many elements each, so that many multiprocessors have a part of
the first one (xla/service/gpu/transforms/tree_reduction_rewriter.cc). A slice of a stack is read
where it lies. If its columns are of several dimensions (heads and their features), the whole stack
may be put in the order of rows before the loop (`autoshard.xla.dim_order.wide_rows`).
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from autoshard.cost.corrections import Corrections
from autoshard.machine.machine import Machine
from autoshard.program.dim_order import Transposition
from autoshard.program.facts import Facts
from autoshard.program.layout import shards_of
from autoshard.program.strategies import Strategies
from autoshard.program.trace import Op, Program

Floats = NDArray[np.float64]
HABIT = "gpu.small-products-of-a-row-are-sums"
MOST = 1e7
"""Elements of a product's operands from which it stays one."""
WIDTH = 256
"""Bytes of each row that one multiprocessor sums up."""
AT_ONCE = 4096
"""Elements of a column that are summed up in one step."""


class Prices(Protocol):
    """What is asked of `autoshard.cost.step_prices.StepPrices`."""

    @property
    def program(self) -> Program: ...

    @property
    def dataflow(self) -> Facts: ...

    @property
    def machine(self) -> Machine: ...

    @property
    def mesh_shape(self) -> tuple[int, ...]: ...

    @property
    def corrections(self) -> Corrections: ...


def with_sums(prices: Prices, op: Op, strategies: Strategies, busy: Floats) -> Floats:
    """Seconds of an op, `[len(strategies)]`: `busy`, or what sums in place of products make it."""
    if op.index in prices.dataflow.row_slices:
        return slice_seconds(prices, op, strategies, busy)
    return product_seconds(prices, op, strategies, busy)


def is_sum(op: Op) -> bool:
    """Whether a product of two operands becomes a sum however it is cut."""
    left, right, result = (_factors(one) for one in (*op.rule.operands, *op.rule.results))

    def size(factors: set[int]) -> int:
        return math.prod(op.rule.factors[factor].size for factor in factors)

    rows, columns, depth = size(left - right), size(right - left), size((left & right) - result)
    return min(rows, columns) == 1 and depth * (rows + columns) < MOST


def is_priced(prices: Prices) -> bool:
    """Whether the compiler of the machine is known to make sums of such products."""
    chip = prices.machine.chip
    return chip.sm_bandwidth > 0 and chip.compiler.has(HABIT)


def product_seconds(prices: Prices, op: Op, strategies: Strategies, busy: Floats) -> Floats:
    """Seconds of a product of two operands, `[len(strategies)]`: `busy`, or those of its sum."""
    if op.primitive != "dot_general" or not is_priced(prices) or min(op.inputs) < 0:
        return busy
    local = _local_factors(op, strategies, prices.mesh_shape)
    left, right, result = (_factors(one) for one in (*op.rule.operands, *op.rule.results))
    contracted = sorted((left & right) - result)
    depth = local[:, contracted].prod(axis=1)
    rows, columns = (local[:, sorted(own)].prod(axis=1) for own in (left - right, right - left))
    sums = (np.minimum(rows, columns) == 1) & (depth * (rows + columns) < MOST)
    sums |= (rows == 1) & (columns == 1)
    if not sums.any():
        return busy
    found = busy.copy()
    for side, chosen in ((1, sums & (rows == 1)), (0, sums & (rows > 1))):
        if chosen.any():
            own = _sum_seconds(prices, op, strategies, side, local, contracted)
            found[chosen] = np.maximum(own, busy)[chosen]
    return found


def slice_seconds(prices: Prices, op: Op, strategies: Strategies, busy: Floats) -> Floats:
    """Seconds of a slice that is written for products: nothing where they read it in place."""
    readers = prices.dataflow.row_slices.get(op.index, ())
    if not readers or not is_priced(prices):
        return busy
    (value,) = op.outputs
    shape = prices.program.values[value].shape
    sizes = np.array(shape) / shards_of(strategies.written[0], prices.mesh_shape, len(shape))
    in_place = np.ones(len(strategies), dtype=np.bool_)
    for contracted, own in readers:
        depth, width = (sizes[:, list(dims)].prod(axis=1) for dims in (contracted, own))
        in_place &= depth * (width + 1) < MOST
    return np.where(in_place, 0.0, busy)


def goes_to_several(
    prices: Prices, op: Op, one: Transposition, strategies: Strategies
) -> NDArray[np.bool_]:
    """Whether the batch that a row's result goes to is of several elements, by strategy."""
    if one.row is None or not one.row.batch:
        return np.ones(len(strategies), dtype=np.bool_)
    rank = len(prices.program.values[op.outputs[0]].shape)
    shards = shards_of(strategies.stored[0], prices.mesh_shape, rank).prod(axis=1)
    return shards < one.row.batch


def _sum_seconds(
    prices: Prices,
    op: Op,
    strategies: Strategies,
    side: int,
    local: Floats,
    contracted: list[int],
) -> Floats:
    """Seconds of a product whose operand `side` is its matrix, if it is a sum."""
    chip, matrix = prices.machine.chip, prices.program.values[op.inputs[side]]
    moved = matrix.bytes * np.ones(len(strategies))
    for factor in range(local.shape[1]):
        if factor in _factors(op.rule.operands[side]):
            moved = moved * local[:, factor] / op.rule.factors[factor].size
    order = [factor for dimension in op.rule.operands[side] for factor in dimension]
    width, of_rows = np.ones(len(strategies)), np.zeros(len(strategies), dtype=np.bool_)
    inside = np.ones(len(strategies), dtype=np.bool_)  # no contracted element was met as yet
    for factor in reversed(order):
        if factor in contracted:
            large = local[:, factor] > 1
            of_rows |= inside & large & (width == 1)
            inside &= ~large
        else:
            width = np.where(inside, width * local[:, factor], width)
    of_rows |= _turned(prices, op, strategies, side)
    depth = local[:, contracted].prod(axis=1)
    in_steps = depth > AT_ONCE
    read = moved / chip.memory_rate
    down = np.where(in_steps, np.sqrt(depth), depth) / chip.sm_bandwidth
    down = down * np.minimum(width * matrix.itemsize, WIDTH)
    together = np.maximum(read, 2 * down)
    apart = chip.launch_seconds + 2 * read + np.maximum(read, down)
    columns = np.minimum(together, apart) + in_steps * (chip.launch_seconds + down)
    summed = chip.launch_seconds + np.where(of_rows, read, columns)
    return summed * prices.corrections.factor(op)


def _turned(prices: Prices, op: Op, strategies: Strategies, side: int) -> NDArray[np.bool_]:
    """Whether the stack of a product's matrix is put in the order of rows, by strategy."""
    found = prices.dataflow.transposed.get(op.index, ())
    one = next((one for one in found if one.position == side and one.row), None)
    if one is None or one.row is None:
        return np.zeros(len(strategies), dtype=np.bool_)
    shape = prices.program.values[op.inputs[side]].shape
    shards = shards_of(strategies.reads[side], prices.mesh_shape, len(shape))
    turns = [one.row.turns(sizes) for sizes in (np.array(shape) // shards).tolist()]
    return np.array(turns) & goes_to_several(prices, op, one, strategies)


def _factors(tensor: tuple[tuple[int, ...], ...]) -> set[int]:
    return {factor for dimension in tensor for factor in dimension}


def _local_factors(op: Op, strategies: Strategies, mesh_shape: tuple[int, ...]) -> Floats:
    """Sizes of the rule's factors on one device, `[len(strategies), factors]`."""
    sizes = np.array([factor.size for factor in op.rule.factors], dtype=float)
    local = np.tile(sizes, (len(strategies), 1))
    for axis, size in enumerate(mesh_shape):
        cut = strategies.assignment[:, axis]
        rows = np.nonzero(cut >= 0)[0]
        local[rows, cut[rows]] /= size
    return local
