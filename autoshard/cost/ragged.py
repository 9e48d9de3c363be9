"""What a ragged product takes where its compiler has no kernel for it.

XLA:GPU multiplies all rows with every group's matrix. One kernel writes the rows once per group,
zero where they are of another, and one call of the library multiplies them: `g` times the FLOP, and
`g` times the rows in memory. Of the gradient of the matrices both operands are written so. XLA:TPU
does the same for that gradient alone, and masks inside of the product: nothing is written.

    seconds = product( g F, g rows + matrices + result )  +  write( rows + g rows )

Where groups are cut, a device has its own alone. It rolls rows to the front and results back.
Where rows are cut with them, it has a window of its groups' rows (`autoshard.cost.row_exchange`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autoshard.cost.roofline import op_seconds
from autoshard.cost.row_exchange import exchanging, window_bytes, window_share
from autoshard.machine.compiler import Compiler
from autoshard.program.ragged import SLACK
from autoshard.program.rules.ragged import group_factor
from autoshard.program.strategies import Strategies
from autoshard.program.trace import Op

if TYPE_CHECKING:
    from autoshard.cost.step_prices import Floats, StepPrices

WRITTEN = {False: "gpu.ragged-once-per-group", True: "gpu.ragged-gradients-once-per-group"}
"""Habits of computing all rows with every group, and of writing them so; of gradients, where True.
"""
MASKED_INSIDE = "tpu.ragged-gradients-once-per-group"


def times_computed(compiler: Compiler, op: Op) -> int:
    """How many times its FLOP a compiler makes of an op: once per group, or once."""
    if op.groups == 1:
        return 1
    gradient = is_gradient(op)
    dense = compiler.has(WRITTEN[gradient]) or (gradient and compiler.has(MASKED_INSIDE))
    return op.groups if dense else 1


def flops_in_windows(prices: StepPrices, op: Op, strategies: Strategies) -> Floats:
    """FLOP for each one of an even share where rows are exchanged; 1 of others.

    Of what is computed once per group, all groups count in a share, and a device has its own alone.
    """
    if op.groups == 1:
        return np.ones(len(strategies))
    devices = exchanging(op, strategies, prices.mesh_shape)
    dense = times_computed(prices.machine.chip.compiler, op) > 1
    return np.where(devices > 1, SLACK / (devices if dense else 1), 1.0)


def masked_bytes(prices: StepPrices, op: Op, strategies: Strategies) -> Floats:
    """Bytes per device of the rows that are written once per group; `[len(strategies)]`."""
    if not writes_rows(prices, op):
        return np.zeros(len(strategies))
    groups = op.groups / group_shards(prices, op, strategies)
    groups = groups / exchanging(op, strategies, prices.mesh_shape)
    return groups * _row_bytes(prices, op, strategies) * window_share(prices, op, strategies)


def writes_rows(prices: StepPrices, op: Op) -> bool:
    """Whether the compiler writes rows that an op reads once per group."""
    return op.groups > 1 and prices.machine.chip.compiler.has(WRITTEN[is_gradient(op)])


def mask_seconds(prices: StepPrices, op: Op, strategies: Strategies) -> Floats:
    """Seconds of writing rows once per group and of rolling them; `[len(strategies)]`."""
    if op.groups == 1:
        return np.zeros(len(strategies))
    rows, masked = _row_bytes(prices, op, strategies), masked_bytes(prices, op, strategies)
    result = 0.0
    if not is_gradient(op):  # rolled back
        result = prices.local_bytes(op.outputs[0], strategies.written[0])
    cut = group_shards(prices, op, strategies) > 1
    moved = np.where(cut, 2.0 * (rows + result), 0.0)
    window = window_bytes(prices, op, strategies)
    moved = np.where(window > 0, 2.0 * window, moved)  # nothing is rolled within
    moved = moved + np.where(masked > 0, rows + masked, 0.0)
    seconds = op_seconds(prices.machine.chip, np.zeros(len(strategies)), moved, unit="vector")
    return np.where(moved > 0, seconds, 0.0)


def _row_bytes(prices: StepPrices, op: Op, strategies: Strategies) -> Floats:
    """Bytes per device of the operands that have rows: one, or two of a gradient."""
    sizes = [
        prices.local_bytes(value, strategies.reads[position])
        for position, value in enumerate(op.inputs[: rows_read(op)])
        if value >= 0
    ]
    return np.sum(sizes, axis=0) if sizes else np.zeros(len(strategies))


def rows_read(op: Op) -> int:
    """How many operands of an op have rows, the first ones."""
    return 2 if is_gradient(op) else 1


def group_shards(prices: StepPrices, op: Op, strategies: Strategies) -> Floats:
    """Into how many parts the groups of an op are cut; `[len(strategies)]`."""
    factor = group_factor(op.rule)
    sizes = np.asarray(prices.mesh_shape)
    if factor is None:
        return np.ones(len(strategies))
    return np.where(strategies.assignment == factor, sizes, 1).prod(axis=1).astype(float)


def is_gradient(op: Op) -> bool:
    """Whether the result has one matrix per group."""
    factor = group_factor(op.rule)
    return any(factor in dimension for dimension in op.rule.results[0])
