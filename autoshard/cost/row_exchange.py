"""What a ragged product costs where its rows go to the devices of their groups.

See `autoshard.program.ragged`. Groups are priced as even as one window of rows allows: a device
does `SLACK` times the rows of its part, all in one round.

    send      all-to-all of the part of each operand that has rows, and back of a window of results
    compute   of a window: `SLACK` times the share of the FLOP, with the device's own groups alone
    memory    windows of operands and results are written and read beside the parts

Rows that a user's `shard_map` sends (`autoshard.compat.row_exchange`) are an all-to-all of one
array, without windows.

Where a part's own rows are of the device's own groups, they stay: the price is that of parts of
which all rows but one in `n` go elsewhere, as an all-to-all sends them. Nothing is computed
meanwhile, since the loop over windows waits for each of its collectives.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from autoshard.cost.collective import MeshTopology
from autoshard.program.ragged import SLACK, window_rows
from autoshard.program.rules.ragged import (
    exchange_of,
    exchanged_rows,
    group_factor,
    sending_factor,
)
from autoshard.program.strategies import Strategies
from autoshard.program.trace import Op, Program

Floats = NDArray[np.float64]


class Prices(Protocol):
    """What exchanges ask of the prices of a step (`autoshard.cost.step_prices.StepPrices`)."""

    @property
    def program(self) -> Program: ...
    @property
    def mesh_shape(self) -> tuple[int, ...]: ...
    @property
    def topology(self) -> MeshTopology: ...
    def local_bytes(self, value: int, dimensions: NDArray[np.int64]) -> Floats:
        """Bytes per device of a value in each of the layouts `[n, axes]`."""
        ...


class SentRows(NamedTuple):
    """One array whose rows are sent, by the strategies `rows` of an op.

    `tensor` counts operands first; of a result, `bytes` are those of a window. Both `[rows]`.
    """

    axes: tuple[int, ...]
    rows: NDArray[np.int64]
    tensor: int
    value: int
    bytes: Floats
    seconds: Floats


def exchange_axes(op: Op, assignment: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which axes of each assignment `[n, axes]` cut rows and groups together."""
    found = exchange_of(op.rule) if op.groups > 1 else None
    if found is None:
        return np.zeros(assignment.shape, np.bool_)
    return assignment == found.factor


def exchanging(op: Op, strategies: Strategies, mesh_shape: tuple[int, ...]) -> NDArray[np.int64]:
    """Over how many devices rows are exchanged, 1 where they are not; `[len(strategies)]`."""
    together = exchange_axes(op, strategies.assignment)
    return np.where(together, np.asarray(mesh_shape), 1).prod(axis=1)


def window_share(prices: Prices, op: Op, strategies: Strategies) -> Floats:
    """Rows of a window for each row of a part; `[len(strategies)]`.

    Where rows are not exchanged it is 1.
    """
    apart = _groups_apart(prices, op, strategies)
    exchanged = exchanging(op, strategies, prices.mesh_shape) > 1
    return np.where(exchanged, SLACK / apart, 1.0)


def sent_rows(prices: Prices, op: Op, strategies: Strategies) -> Iterator[SentRows]:
    """What the strategies of an op send from parts to groups, and back."""
    sending = sending_factor(op.primitive, op.rule)
    if sending is not None:
        yield from _sent_between_parts(prices, op, strategies, sending)
        return
    together = exchange_axes(op, strategies.assignment) & (np.asarray(prices.mesh_shape) > 1)
    if not together.any():
        return
    exchange = exchange_of(op.rule)
    assert exchange is not None
    places = dict(exchange.places)
    for pattern in np.unique(together[together.any(axis=1)], axis=0):
        axes = tuple(np.flatnonzero(pattern).tolist())
        rows = np.flatnonzero((together == pattern).all(axis=1))
        rate = prices.topology.rate("all_to_all", axes)
        for tensor in exchanged_rows(op.rule, exchange):
            value, size = _array(prices, op, strategies, tensor)
            size = size[rows]
            if tensor >= len(op.inputs):
                size = size * _in_windows(prices, op, strategies, tensor, places[tensor])[rows]
            seconds = rate.latency_seconds + rate.seconds_per_byte * size
            yield SentRows(axes, rows, tensor, value, size, seconds)


def _sent_between_parts(
    prices: Prices, op: Op, strategies: Strategies, sending: int
) -> Iterator[SentRows]:
    """What the collective of a user's `shard_map` sends, where its parts are cut.

    Its operand is what the call is given. How many of its rows go is known at run time alone: the
    seconds are of as many as fit into both the operand and the result, as even among parts.
    """
    cut = (strategies.assignment == sending) & (np.asarray(prices.mesh_shape) > 1)
    for pattern in np.unique(cut[cut.any(axis=1)], axis=0):
        axes = tuple(np.flatnonzero(pattern).tolist())
        rows = np.flatnonzero((cut == pattern).all(axis=1))
        rate = prices.topology.rate("all_to_all", axes)
        value, size = _array(prices, op, strategies, 0)
        _, taken = _array(prices, op, strategies, len(op.inputs))
        fitting = np.minimum(size, taken)[rows]
        seconds = rate.latency_seconds + rate.seconds_per_byte * fitting
        yield SentRows(axes, rows, 0, value, size[rows], seconds)


def exchange_seconds(prices: Prices, op: Op, strategies: Strategies) -> Floats:
    """Seconds of one run in which rows are sent; `[len(strategies)]`."""
    found = np.zeros(len(strategies))
    for sent in sent_rows(prices, op, strategies):
        found[sent.rows] += sent.seconds
    return found


def window_bytes(prices: Prices, op: Op, strategies: Strategies) -> Floats:
    """Bytes per device of the windows of operands and results; `[len(strategies)]`."""
    found = np.zeros(len(strategies))
    exchange = exchange_of(op.rule) if op.groups > 1 else None
    if exchange is None:
        return found
    for tensor in exchanged_rows(op.rule, exchange):
        found = found + _array(prices, op, strategies, tensor)[1]
    exchanged = exchanging(op, strategies, prices.mesh_shape) > 1
    return np.where(exchanged, found * window_share(prices, op, strategies), 0.0)


def _groups_apart(prices: Prices, op: Op, strategies: Strategies) -> NDArray[np.int64]:
    """Into how many parts the groups are cut beside any exchange."""
    factor = group_factor(op.rule)
    here = np.zeros(strategies.assignment.shape, np.bool_)
    if factor is not None:
        here = strategies.assignment == factor
    return np.where(here, np.asarray(prices.mesh_shape), 1).prod(axis=1)


def _in_windows(
    prices: Prices, op: Op, strategies: Strategies, tensor: int, dimension: int
) -> Floats:
    """Rows of a window, in whole rows, for each row of a result's part."""
    sizes, value = np.asarray(prices.mesh_shape), op.outputs[tensor - len(op.inputs)]
    layouts = strategies.written[tensor - len(op.inputs)]
    parts = np.where(layouts == dimension, sizes, 1).prod(axis=1)
    apart = _groups_apart(prices, op, strategies)
    whole = prices.program.values[value].shape[dimension]
    rows = [
        window_rows(whole // part, cut) / max(whole // part, 1)
        for part, cut in zip(parts.tolist(), apart.tolist(), strict=True)
    ]
    return np.array(rows)


def _array(prices: Prices, op: Op, strategies: Strategies, tensor: int) -> tuple[int, Floats]:
    count = len(op.inputs)
    if tensor < count:
        value, layouts = op.inputs[tensor], strategies.reads[tensor]
    else:
        value, layouts = op.outputs[tensor - count], strategies.written[tensor - count]
    return value, prices.local_bytes(value, layouts)
