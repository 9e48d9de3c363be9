"""Sums that XLA:TPU makes whole, although a plan has only their parts, and where it puts them.

A reduce-scatter over all chips of a torus is an all-reduce there (`MeshTopology.leaves_whole`). The
sum lies in memory as a whole until something reads it, or a collective begins that does: that cuts
out its part.

    down's gradient: bf16[8192, 32768]{unreduced=x}  --all-reduce-->  bf16[8192, 32768]  until read

An all-reduce writes over what it adds up. But a product beside which another collective runs writes
a tuple, and what is added up of it lies beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from autoshard.cost.step import StepPrices
from autoshard.decided import Decided
from autoshard.graph import Op
from autoshard.occupancy import UnderWay, passing
from autoshard.strategy import Strategies


def whole_sums(
    prices: StepPrices, decided: Decided, flights: UnderWay
) -> Iterator[tuple[int, float]]:
    """Points and bytes of sums beside what `autoshard.occupancy.op_events` counts.

    Args:
      prices: in the order in which the ops run.
      decided: the plan.
      flights: where collectives begin and end.
    """
    begun: dict[int, int] = {}
    busy = np.zeros(prices.dataflow.end + 1, dtype=bool)
    for (value, life), at in flights.begun.items():
        begun[value] = min(at, begun.get(value, at))
        steps = decided.steps_of_copy(value)
        if any(kind != "all_slice" for step in steps for kind, _ in step.kinds):
            busy[at : flights.copies[value][life][0]] = True
    for op in prices.program.ops:
        if decided.decisions.assignment[op.index] is None:
            continue
        strategy = decided.chosen(op)
        axes = np.flatnonzero(strategy.reduced[0]).tolist()
        if not axes or strategy.pending[0]:
            continue
        scattered = bool(strategy.scattered[0])
        if scattered and not prices.topology.leaves_whole(axes):
            continue
        at = prices.dataflow.when[op.index]
        if busy[at]:
            yield from _beside(prices, op, strategy)
        if scattered:
            settled = max(flights.settled.get(op.index, at), at + 1)
            yield from _until_read(prices, op, strategy, settled, begun)


def _beside(prices: StepPrices, op: Op, strategy: Strategies) -> Iterator[tuple[int, float]]:
    at = prices.dataflow.when[op.index]
    for number, output in enumerate(op.outputs):
        yield from passing(at, prices.scratch_bytes(output, strategy.written[number][0]))


def _until_read(
    prices: StepPrices, op: Op, strategy: Strategies, settled: int, begun: Mapping[int, int]
) -> Iterator[tuple[int, float]]:
    """From where the sum is there; until then it is counted as what the op writes."""
    for number, output in enumerate(op.outputs):
        read = min([use.last + 1 for use in prices.dataflow.readers[output]], default=settled)
        read = min(read, begun.get(output, read))
        rest = prices.scratch_bytes(output, strategy.written[number][0]) - prices.scratch_bytes(
            output, strategy.stored[number][0]
        )
        if read > settled and rest > 0:
            yield settled, rest
            yield read, -rest
