"""What decisions keep in memory: bytes that come and go at program points.

A collective is one point, and a buffer lives as long as somebody reads the value, its copy or the
value itself; unless it is said what is under way, and who reads which (`UnderWay`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from autoshard.cost.ragged import masked_bytes
from autoshard.cost.reordering import stack_bytes, transposing
from autoshard.cost.rings import ring_bytes
from autoshard.cost.row_exchange import window_bytes
from autoshard.cost.step_prices import StepPrices
from autoshard.plan.copies import copy_intervals
from autoshard.plan.decisions import Decisions
from autoshard.program.strategies import Strategies
from autoshard.program.trace import Op


@dataclass(frozen=True, slots=True)
class UnderWay:
    """Program points at which collectives begin and end, and between which buffers are needed.

    Attributes:
      begun: by value and number of the interval in which a copy of it lives (those of its mode),
        where the first collective that makes it begins.
      settled: by op, where the collective that settles its partial results ends.
      copies: by value, the intervals in which copies of it are read; a value that is missing has
        those of `copy_intervals`.
      released: by value, from where its own buffer is no longer needed, since the rest of its
        readers read copies.
    """

    begun: Mapping[tuple[int, int], int] = field(default_factory=dict)
    settled: Mapping[int, int] = field(default_factory=dict)
    copies: Mapping[int, Sequence[tuple[int, int]]] = field(default_factory=dict)
    released: Mapping[int, int] = field(default_factory=dict)


AT_ONCE = UnderWay()
"""Collectives that begin and end where they stand."""


def passing(at: int, size: float) -> tuple[tuple[int, float], tuple[int, float]]:
    """Points and bytes of what lies in memory at one point alone."""
    return (at, size), (at + 1, -size)


def op_events(
    prices: StepPrices, op: Op, strategy: Strategies, flights: UnderWay = AT_ONCE
) -> list[tuple[int, float]]:
    """Points and bytes of what `op` needs beside its operands and results, under one strategy."""
    flow = prices.dataflow
    events: list[tuple[int, float]] = []
    if op.index in flow.transposed:
        for life, (copy, held) in zip(
            flow.turned[op.index], transposing(prices, op, strategy)[1], strict=True
        ):
            events.append((life.start, copy[0]))
            events.append((life.reduced, held[0] - copy[0]))
            events.append((life.stop, -held[0]))
    beside = masked_bytes(prices, op, strategy) + ring_bytes(prices, op, strategy)
    beside = float((beside + window_bytes(prices, op, strategy))[0])
    if beside:
        events += passing(flow.when[op.index], beside * prices.scratch_factor)
    if strategy.scattered[0]:
        at = flow.when[op.index]
        until = max(flights.settled.get(op.index, at), at + 1)
        for number, output in enumerate(op.outputs):
            scratch = prices.scratch_bytes(output, strategy.written[number][0])
            events += [(at, scratch), (until, -scratch)]
    return events


def buffer_events(
    prices: StepPrices, decisions: Decisions, value: int, flights: UnderWay = AT_ONCE
) -> dict[int, float]:
    """By program point, the bytes by which a value's buffer and its copy grow (or shrink) there."""
    flow = prices.dataflow
    events: defaultdict[int, float] = defaultdict(float)
    layout, copy, mode = decisions.stored[value], decisions.copy[value], decisions.mode[value]
    if layout is None:
        return {}
    start, stop = flow.start[value], flow.stop[value]
    stop = min(stop, flights.released.get(value, stop))
    if stop > start:
        size = float(prices.held_bytes(value, np.array(layout))) * prices.heap_factor(value)
        events[start] += size
        events[stop] -= size
    if copy is None:
        return dict(events)
    if flow.is_inside(prices.program, value):
        at = flow.when[prices.program.values[value].producer]
        for point, sent in passing(at, prices.scratch_bytes(value, layout)):
            events[point] += sent
    size = prices.copied_bytes(value, copy)
    if value in flow.slices:
        one = flow.slices[value]
        stack = float(stack_bytes(prices, value, np.array([layout]), np.array([copy]))[0])
        events[one.start] += stack
        events[one.stop] -= stack
    lives = [life for modes, life in copy_intervals(flow.readers[value]) if mode in modes]
    for number, (first, last) in enumerate(flights.copies.get(value, lives)):
        events[min(first, flights.begun.get((value, number), first))] += size
        events[last] -= size
    return dict(events)


def occupied_bytes(prices: StepPrices, events: Iterable[tuple[int, float]]) -> NDArray[np.float64]:
    """Bytes in use by program point, of constants and of all that comes and goes."""
    end = prices.dataflow.end
    changes = np.zeros(end + 2)
    changes[0] += prices.program.constant_bytes
    known = list(events)
    np.add.at(changes, [point for point, _ in known], [change for _, change in known])
    return np.cumsum(changes)[:end]
