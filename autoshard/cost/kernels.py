"""Seconds of a Pallas call: the roofline of its grid, with all units of the chip at work at a time.

    seconds = launch + max( products / matrix rate,  elementwise / vector rate,  bytes / bandwidth )

A kernel computes on one block while the next ones are copied, and both units compute at a time. So
the slowest of the three decides, as of any other op of the roofline (`autoshard.cost.roofline`).
Each part of a grid that is cut does its share of all three. Where masks by position leave some
parts more to compute than others, all wait for the longest one.

Products of blocks that are narrower than the matrix units leave part of them idle: with heads of
128, units of 256 x 256 work at half their rate (`Arithmetic.on`).

Where it was measured what kernels of attention reach of the rate of bfloat16 products
(`Chip.kernel_share`), kernels that take exponentials beside their products are priced by it:
elementwise work is part of that and not counted beside it, and all dtypes are at one rate:

    seconds = launch + max( products / (share x matrix rate),  bytes / bandwidth )

Authors of kernels take exponentials from the special-function units of a GPU, which give 16 a clock
where its elementwise units give 128 multiply-adds (docs.nvidia.com/cuda/cuda-c-programming-guide,
throughput of native arithmetic instructions); XLA's own are longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoshard.cost.roofline import op_seconds
from autoshard.machine.chip import Chip
from autoshard.program.graph import Op
from autoshard.program.kernels.records import KernelWork
from autoshard.program.kernels.rule import ring_factors
from autoshard.program.rules.record import FactorKind
from autoshard.program.strategies import Strategies

SPECIAL_FLOPS = 16.0
"""What an exponential of a special-function unit takes, as FLOP of the elementwise units."""


def kernel_seconds(
    chip: Chip, work: KernelWork, shards: NDArray[Any], longest: NDArray[Any] | float = 1.0
) -> NDArray[np.float64]:
    """Seconds of one run of a kernel where it is cut into so many parts; `[len(shards)]`.

    Args:
      chip: on which it runs.
      work: of the whole kernel.
      shards: numbers of parts.
      longest: how many times the mean the longest part has to compute; see `longest_parts`.
    """
    done, nothing = work.arithmetic, np.zeros(len(shards))
    share = longest / shards
    measured = chip.kernel_share if done.exponentials else None
    flops = done.on(chip.matrix_side) * share
    if measured is not None:
        return np.asarray(op_seconds(chip, flops / measured, work.bytes / shards, "bfloat16"))
    products = op_seconds(chip, flops, work.bytes / shards, work.dtype)
    exponentials = done.exponentials * min(chip.exponential_flops, SPECIAL_FLOPS)
    elementwise = (done.elementwise + exponentials) * share
    other = op_seconds(chip, elementwise, nothing, unit="vector")
    return np.maximum(products, other)


def longest_parts(op: Op, strategies: Strategies, mesh_shape: Sequence[int]) -> NDArray[np.float64]:
    """How many times the mean of its parts the longest one computes; `[len(strategies)]`."""
    found = np.ones(len(strategies))
    tensors = (*op.rule.operands, *op.rule.results)
    for one in op.kernel.uneven if op.kernel is not None else ():
        factor = next(iter(tensors[one.tensor][one.dimension]), None)
        if factor is None or op.rule.factors[factor].kind is not FactorKind.PASS:
            continue
        rings = ring_factors(op.rule, op.kernel.rings if op.kernel is not None else ())
        halved = [(k, one.folded) for k, ring in rings.items() if not ring.passed]
        for number, longest in ((factor, one.longest), *halved):
            here = strategies.assignment == number
            parts = np.where(here, np.asarray(mesh_shape), 1).prod(axis=1)
            for count in {*parts.tolist()} - {1}:
                found[parts == count] *= longest(count)
    return found
