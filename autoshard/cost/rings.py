"""What attention costs beside its products where its sequence is cut as a ring.

See `autoshard.program.kernels.ring`. Of a step that computes for `c` seconds while keys and values
(backward: their gradients, too) are sent on for `s` seconds, over `n` devices:

    exposed = halves in and out  +  (n - 1) max(s - c, 0)  +  gradients on their last way home

and all of it where the compiler hides no collectives. To send an array on to the next device of a
ring takes its bytes over one link (`MeshTopology.shift_seconds`); halves are exchanged by
permutations across the ring.

In memory, every step reads the cut operands and writes results once, and adds results to sums in
float32 that are read and written; under a causal mask a step picks halves, which copies half of the
operands. The exchange of halves reads and writes both candidates of each half. Where nothing goes
round, each half is a call of its own, and what it reads and writes is copied once more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from autoshard.cost.collective import MeshTopology
from autoshard.cost.kernels import kernel_seconds
from autoshard.machine.machine import Machine
from autoshard.program.kernels.ring import Ring, Sending, sendings
from autoshard.program.kernels.rule import ring_factors
from autoshard.program.strategies import Strategies
from autoshard.program.trace import Op, Program

Floats = NDArray[np.float64]

SUM_BYTES = 4.0
"""Bytes of an element of a sum: float32."""
KERNELS = 4
"""Kernels of a step beside the first one under a causal mask: two of attention, two that add."""


class Prices(Protocol):
    """What rings ask of the prices of a step (`autoshard.cost.step_prices.StepPrices`)."""

    @property
    def program(self) -> Program: ...
    @property
    def machine(self) -> Machine: ...
    @property
    def mesh_shape(self) -> tuple[int, ...]: ...
    @property
    def topology(self) -> MeshTopology: ...
    def local_bytes(self, value: int, dimensions: NDArray[np.int64]) -> Floats:
        """Bytes per device of a value in each of the layouts `[n, axes]`."""
        ...


class Round(NamedTuple):
    """Strategies whose rings run over the same axes, and send the same."""

    ring: Ring
    axes: tuple[int, ...]
    devices: int
    rows: NDArray[np.int64]


class Sent(NamedTuple):
    """One array that a ring sends; bytes and seconds of one time, `[rows]`."""

    sending: Sending
    value: int
    bytes: Floats
    seconds: Floats


def rounds(op: Op, strategies: Strategies, mesh_shape: Sequence[int]) -> Iterator[Round]:
    """The rings of those strategies that cut the sequence of `op`."""
    rings = ring_factors(op.rule, op.kernel.rings if op.kernel is not None else ())
    for factor, ring in rings.items():
        cut = (strategies.assignment == factor) & (np.asarray(mesh_shape) > 1)
        for pattern in np.unique(cut, axis=0):
            axes = tuple(np.flatnonzero(pattern).tolist())
            devices = math.prod(mesh_shape[axis] for axis in axes)
            if devices > 1:
                rows = np.flatnonzero((cut == pattern).all(axis=1))
                yield Round(ring, axes, devices, rows)


def sent_arrays(prices: Prices, op: Op, strategies: Strategies, one: Round) -> Iterator[Sent]:
    """What a ring sends."""
    shift, exchange = prices.topology.shift_rate(one.axes), None
    for sending in sendings(one.ring, one.devices):
        value, size = _array(prices, op, strategies, sending.number)
        size = size[one.rows] / sending.share
        rate = shift
        if sending.half:
            rate = exchange = exchange or prices.topology.rate("collective_permute", one.axes)
        yield Sent(sending, value, size, rate.latency_seconds + rate.seconds_per_byte * size)


def ring_exposed(prices: Prices, op: Op, strategies: Strategies) -> Floats:
    """Seconds of one run in which nothing but the ring's sending goes on; `[len(strategies)]`."""
    found = np.zeros(len(strategies))
    for one in rounds(op, strategies, prices.mesh_shape):
        for sent in shares(prices, op, strategies, one):
            found[one.rows] += sent[1]
    return found


def shares(prices: Prices, op: Op, strategies: Strategies, one: Round) -> list[tuple[Sent, Floats]]:
    """What a ring sends, with the seconds of all times that are not hidden; `[rows]` each."""
    assert op.kernel is not None
    found = list(sent_arrays(prices, op, strategies, one))
    step = sum((sent.seconds for sent in found if sent.sending.hidden), np.zeros(len(one.rows)))
    work = kernel_seconds(prices.machine.chip, op.kernel, strategies.shards[one.rows])
    hidden = np.zeros(len(one.rows))
    if not prices.machine.chip.compiler.denies(
        "gpu.collectives-begin-and-end", "tpu.v5e-hides-gathers"
    ):
        hidden = np.minimum(work / one.devices, step) / np.maximum(step, 1e-30)
    return [
        (sent, sent.sending.times * sent.seconds * (1.0 - hidden * sent.sending.hidden))
        for sent in found
    ]


def ring_seconds(prices: Prices, op: Op, strategies: Strategies) -> Floats:
    """Seconds of one run for what a ring copies, adds and launches; `[len(strategies)]`."""
    found = np.zeros(len(strategies))
    chip = prices.machine.chip
    for one in rounds(op, strategies, prices.mesh_shape):
        ring, rows = one.ring, one.rows
        read, written, added = _bytes(prices, op, strategies, ring)
        each = (1.0 + ring.causal) * read + written + 2.0 * added
        steps = one.devices - 1 if ring.passed else 0
        copies = (4.0 if ring.passed else 6.0) * ring.causal  # in halves, if nothing goes round
        moved = steps * each + copies * (read + written)
        launches = steps * (KERNELS if ring.causal else KERNELS // 2) + (not ring.passed)
        found[rows] = moved[rows] / chip.memory_rate + launches * chip.launch_seconds
    return found


def ring_bytes(prices: Prices, op: Op, strategies: Strategies) -> Floats:
    """Bytes per device that a ring needs beside its operands and results; `[len(strategies)]`.

    Exchanged operands, what goes round twice (seen, and under way), a step's results, and sums.
    """
    found = np.zeros(len(strategies))
    for one in rounds(op, strategies, prices.mesh_shape):
        ring, rows = one.ring, one.rows
        read, written, added = _bytes(prices, op, strategies, ring)
        held = (read if ring.causal else 0.0) + written + (added if ring.passed else 0.0)
        for number in (*ring.passed, *ring.summed):
            held = held + 2.0 * _array(prices, op, strategies, number)[1] / ring.share(number)
        found[rows] = held[rows]
    return found


def _bytes(
    prices: Prices, op: Op, strategies: Strategies, ring: Ring
) -> tuple[Floats, Floats, Floats]:
    """Bytes per device of the cut operands, of the results, and of sums of the results."""
    values = prices.program.values
    read = sum((_array(prices, op, strategies, k)[1] for k in ring.operands), np.zeros(1))
    written, added = np.zeros(1), np.zeros(1)
    for number in ring.results:
        value, size = _array(prices, op, strategies, number)
        written = written + size * (1.0 + ring.beside * (number == ring.results[0]))
        added = added + size * SUM_BYTES / values[value].itemsize / ring.share(number)
    return read, written, added


def _array(prices: Prices, op: Op, strategies: Strategies, number: int) -> tuple[int, Floats]:
    """An operand or result by number, and its bytes per device."""
    count = len(op.inputs)
    if number < count:
        value, layouts = op.inputs[number], strategies.reads[number]
    else:
        value, layouts = op.outputs[number - count], strategies.written[number - count]
    return value, prices.local_bytes(value, layouts)
