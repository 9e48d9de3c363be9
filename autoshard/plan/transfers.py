"""The planned transfers between the memories of chips and of their hosts, and what lies there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from autoshard.cost.step_prices import StepPrices
from autoshard.cost.transfers import exposed_share, is_transfer, transfer_seconds
from autoshard.plan.decisions import Decisions
from autoshard.plan.records import Transfer
from autoshard.plan.strategies_of import ChosenStrategies
from autoshard.program.layout import format_type
from autoshard.program.strategies import Strategies
from autoshard.program.trace import Op
from autoshard.units import format_bytes, format_seconds


def transfer_of(
    prices: StepPrices, op: Op, strategy: Strategies, names: tuple[str, ...]
) -> Transfer | None:
    """What an op moves under `strategy` (one row); None where it is not a transfer."""
    if not is_transfer(op):
        return None
    value, layout = prices.program.values[op.outputs[0]], strategy.written[0]
    seconds = float(transfer_seconds(prices, op, strategy)[0]) * op.trips * op.weight
    return Transfer(
        kind=op.primitive,
        bytes=int(prices.local_bytes(value.index, layout)[0]),
        count=op.trips,
        seconds=seconds,
        exposed_seconds=seconds * exposed_share(prices, op),
        scope=op.scope,
        line=op.line,
        value=format_type(value.dtype, value.shape, tuple(layout[0].tolist()), names),
    )


def seconds_of_transfers(prices: StepPrices, decisions: Decisions) -> Mapping[int, float]:
    """Seconds of every transfer, by op, as often as one run of its region counts it."""
    chosen = ChosenStrategies(decisions, prices.mesh_shape, prices.evaluated)
    return {
        op.index: float(transfer_seconds(prices, op, chosen(op))[0]) * op.weight
        for op in prices.program.ops
        if is_transfer(op) and decisions.assignment[op.index] is not None
    }


def host_notes(
    prices: StepPrices, decisions: Decisions, value: int, names: tuple[str, ...]
) -> tuple[str, ...]:
    """What a value takes of the host's memory and what its transfers cost, a sentence each.

    Args:
      prices: of the step.
      decisions: of the plan.
      value: the value's number.
      names: of the mesh axes.
    """
    told, layout = [], decisions.stored[value]
    if value in prices.dataflow.hosted and layout is not None:
        size = format_bytes(float(prices.local_bytes(value, np.array(layout))))
        told.append(f"it lies in the memory of the host: {size} per device")
    chosen = ChosenStrategies(decisions, prices.mesh_shape)
    for op in prices.program.ops:
        if not is_transfer(op) or value not in (*op.inputs, *op.outputs):
            continue
        if decisions.assignment[op.index] is None:
            continue
        one = transfer_of(prices, op, chosen(op), names)
        assert one is not None
        times = f" {one.count:,} times" if one.count > 1 else ""
        told.append(
            f"{one.kind}{times}, {format_bytes(one.bytes)} each: {format_seconds(one.seconds)} a "
            f"step, {format_seconds(one.exposed_seconds)} of it exposed"
            f"{f' ({one.line})' if one.line else ''}"
        )
    return tuple(dict.fromkeys(told))


def host_occupied(prices: StepPrices, decisions: Decisions) -> NDArray[np.float64]:
    """Bytes of a device in its host's memory, by program point."""
    flow = prices.dataflow
    changes = np.zeros(flow.end + 2)
    for point, change in _events(prices, decisions):
        changes[point] += change
    return np.cumsum(changes)[: flow.end]


def _events(prices: StepPrices, decisions: Decisions) -> Iterator[tuple[int, float]]:
    for value, (start, stop) in prices.dataflow.hosted.items():
        layout = decisions.stored[value]
        if layout is not None:
            size = float(prices.local_bytes(value, np.array(layout)))
            yield start, size
            yield stop, -size
