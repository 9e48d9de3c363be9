"""What operations send while they run: rings of attention, and rows that go to their groups."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autoshard.cost.collective import Kind
from autoshard.cost.rings import ring_exposed, rounds, sent_arrays
from autoshard.cost.row_exchange import exchange_seconds, sent_rows
from autoshard.cost.step_prices import StepPrices
from autoshard.program.strategies import Strategies
from autoshard.program.trace import Op


class Within(NamedTuple):
    """One array that the strategies `rows` of an op send, so many times in one run.

    `bytes` are those of one time, one for each of the strategies.
    """

    kind: Kind
    axes: tuple[int, ...]
    rows: NDArray[np.int64]
    times: int
    bytes: list[int]


def sent_within(prices: StepPrices, op: Op, strategies: Strategies) -> Iterator[Within]:
    """What an op sends, as the moves of a plan list it."""
    for one in rounds(op, strategies, prices.mesh_shape):
        for sent in sent_arrays(prices, op, strategies, one):
            sizes = [int(size) for size in sent.bytes.tolist()]
            yield Within("collective_permute", one.axes, one.rows, sent.sending.times, sizes)
    for rows in sent_rows(prices, op, strategies):
        sizes = [round(size) for size in rows.bytes.tolist()]
        yield Within("all_to_all", rows.axes, rows.rows, 1, sizes)


def waited_within(prices: StepPrices, op: Op, strategies: Strategies) -> NDArray[np.float64]:
    """Seconds of one run in which nothing but that goes on; `[len(strategies)]`."""
    waited = ring_exposed(prices, op, strategies)
    return waited + exchange_seconds(prices, op, strategies)
