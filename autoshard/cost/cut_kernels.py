"""What it takes to cut a kernel in two, so that a value inside of it can be resharded.

The first part reads what the kernel reads for the value, and writes the value; the second reads its
copy in the place of that. So the first part is what is paid more.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from autoshard.cost.roofline import op_seconds
from autoshard.cost.step_prices import StepPrices


def cut_bytes(prices: StepPrices, value: int) -> float:
    """Bytes that the first part moves, of whole arrays; 0 where no kernel is cut for the value."""
    flow, program = prices.dataflow, prices.program
    if not flow.is_inside(program, value):
        return 0.0
    record = program.values[value]
    return record.bytes + float(sum(flow.fetched[record.producer]))


def cut_seconds(
    prices: StepPrices, value: int, dimensions: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Seconds of the first part, in each of the layouts `[n, axes]` of the value; `[n]`."""
    moved = cut_bytes(prices, value)
    if not moved:
        return np.zeros(len(dimensions))
    record = prices.program.values[value]
    local = moved / record.bytes * prices.local_bytes(value, dimensions)
    return np.asarray(op_seconds(prices.machine.chip, 0.0, local, record.dtype, unit="vector"))
