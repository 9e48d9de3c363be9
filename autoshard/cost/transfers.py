"""Seconds of transfers between the memories of chips and of their hosts.

Each device moves its own part over the link of `autoshard.machine.host`, which neither kernels nor
collectives need. What is moved is read from the device's memory or written there, in which time
kernels have that much less of it: no transfer costs less (`memory_share`). Where a compiler lets
transfers run beside them, there is a stream for each direction: a transfer starts as soon as its
array is there and its stream is free, kernels wait for what comes from the host where they read it,
and for all else where the region ends (`HostLink`). XLA:TPU moves what is stacked by a loop in
another turn, there a turn late and back a turn early: kernels wait for what is left of a stream
when a turn ends, and for all of the first turn's or of the last one's, which are beside the loop.
Without its latency-hiding scheduler it waits for each transfer where it begins.

For the solver all plans expose the same share of a direction's seconds in a region: that of a step
in which kernels and transfers are cut into as many equal parts as there are chips, and nothing
is communicated. Where the compiler's own order is known, it says more
(`autoshard.xla.forecast.exposed_time`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import cast

import numpy as np
from numpy.typing import NDArray

from autoshard.cost.step_prices import StepPrices
from autoshard.machine.file import MachineError
from autoshard.machine.host import Direction, Host
from autoshard.program.graph import Region
from autoshard.program.strategies import Strategies
from autoshard.program.trace import Op
from autoshard.program.vocabulary import TRANSFERS

Floats = NDArray[np.float64]
BESIDE = "gpu.host-copies-beside-kernels", "tpu.host-copies-beside-kernels"
"""That a compiler lets transfers run beside kernels."""
TURNED = "tpu.host-copies-in-another-turn"
"""That those of a loop's turn run in the one before it or after it."""
SPREAD = ("recipe",)
"""Sets of flags with which they run beside all of that turn: so do published runs of MaxText's
recipes for v6e and TPU7x. With XLA:TPU's defaults they end after a product or two: of Llama-3-8B on
v5e-16 with seven stacks on the host, 62 % of their seconds are waited for as compiled."""


def is_transfer(op: Op) -> bool:
    """Whether an op puts an array into another memory."""
    return op.primitive in TRANSFERS


def host_of(prices: StepPrices) -> Host:
    """The host of a machine's chips.

    Raises:
      MachineError: its file says nothing of it, and the program needs it.
    """
    host = prices.machine.host
    if host is None:
        lies = next(value for value in prices.program.values if value.host)
        raise MachineError(
            f"{prices.program.name} keeps {lies.path or lies} in the memory of the host, of which "
            f"the file of {prices.machine.name} says nothing: write a table [host] with chips, "
            "memory_bytes, to_bandwidth, from_bandwidth, efficiency and latency_seconds"
        )
    return host


def transfer_seconds(prices: StepPrices, op: Op, strategies: Strategies) -> Floats:
    """Seconds of one execution of a transfer, none hidden; `[len(strategies)]`."""
    host, direction = host_of(prices), cast("Direction", op.primitive)
    size = prices.local_bytes(op.outputs[0], strategies.written[0])
    return host.latency_seconds + size / host.rate(direction)


def memory_share(prices: StepPrices, direction: Direction) -> float:
    """Seconds in which the device's memory is busy with a transfer, over those of the transfer."""
    return min(1.0, host_of(prices).rate(direction) / prices.machine.chip.memory_rate)


@dataclass(slots=True)
class HostLink:
    """The transfers of one run of a region; seconds are from its begin.

    Attributes:
      free: by direction, when its stream is free.
      made: by op, when its results are there; those of other regions are from the begin.
    """

    free: dict[str, float] = field(default_factory=dict)
    made: dict[int, float] = field(default_factory=dict)

    def send(self, op: Op, source: int, seconds: float) -> float:
        """When a transfer ends that takes so long, of what `source` makes (-1: of no op)."""
        start = max(self.made.get(source, 0.0), self.free.get(op.primitive, 0.0))
        self.free[op.primitive] = self.made[op.index] = start + seconds
        return start + seconds

    def end(self, now: float) -> float:
        """When a region ends whose kernels end `now`."""
        return max([now, *self.free.values()])


def exposed_share(prices: StepPrices, op: Op) -> float:
    """The fraction of a transfer's seconds that adds to the step, see the module."""
    compiler = prices.machine.chip.compiler
    if compiler.denies(*BESIDE) or (compiler.name == "xla:tpu" and not compiler.hides_collectives):
        return 1.0
    shares = prices.evaluated.get("exposed transfers")
    if shares is None:
        ideal = _Ideal(prices)
        ideal.run(prices.program.regions[0])
        shares = prices.evaluated["exposed transfers"] = ideal.shares()
    return shares[op.region, op.primitive]


class _Ideal:
    """Runs a step with everything cut into equal parts, op by op as the program has them.

    Attributes:
      moved, waited: seconds of transfers by region and direction, and what is waited for them.
      known: seconds of kernels, by what decides them.
    """

    def __init__(self, prices: StepPrices) -> None:
        self.program, self.prices = prices.program, prices
        self.host = host_of(prices)
        self.moved: dict[tuple[int, str], float] = {}
        self.waited: dict[tuple[int, str], float] = {}
        self.known: dict[Hashable, float] = {}

    def shares(self) -> Mapping[tuple[int, str], float]:
        return {key: self._share(*key, seconds) for key, seconds in self.moved.items()}

    def _share(self, index: int, direction: str, moved: float) -> float:
        """Of the seconds in which a region moves something, how many are waited for."""
        if not moved:
            return 1.0
        least = memory_share(self.prices, cast("Direction", direction))
        share = min(1.0, max(self.waited.get((index, direction), 0.0) / moved, least))
        region = self.program.regions[index]
        if not self._turned(region):
            return share
        beside = self.program.regions[region.parent].trips / region.trips
        return share + (1.0 - share) * beside

    def _turned(self, region: Region) -> bool:
        """Whether a region's transfers run in another turn of it."""
        compiler = self.prices.machine.chip.compiler
        return region.parent >= 0 and compiler.has(TURNED) and compiler.flags in SPREAD

    def run(self, region: Region) -> float:
        """Seconds of one run of a region."""
        link, now, at = HostLink(), 0.0, region.start
        turned = self._turned(region)
        ops, values = self.program.ops, self.program.values
        coming: dict[int, float] = {}
        while at < region.stop:
            op = ops[at]
            if op.region != region.index:
                inner = self._inner(at, region)
                now = self._wait(region, "from_host", now, self._read(inner, coming))
                now += self.run(inner) * inner.trips / region.trips
                at = inner.stop
                continue
            source = values[op.inputs[0]].producer if op.inputs and op.inputs[0] >= 0 else -1
            if is_transfer(op):
                seconds = self._seconds(op)
                key = region.index, op.primitive
                self.moved[key] = self.moved.get(key, 0.0) + seconds
                end = link.send(op, -1 if turned else source, seconds)
                if op.primitive == "from_host" and not turned:
                    coming[op.outputs[0]] = end
            else:
                ends = [coming[value] for value in op.inputs if value in coming]
                now = self._wait(region, "from_host", now, ends) + self._seconds(op)
                link.made[op.index] = now
            at += 1
        for direction, end in link.free.items():
            now = self._wait(region, direction, now, [end])
        return now

    def _inner(self, at: int, region: Region) -> Region:
        """The region right inside of `region` that an op begins."""
        inner = self.program.regions[self.program.ops[at].region]
        while inner.parent != region.index:
            inner = self.program.regions[inner.parent]
        return inner

    def _read(self, inner: Region, coming: Mapping[int, float]) -> Iterable[float]:
        """When what a region reads from around it is there."""
        if not coming:
            return ()
        inside = self.program.ops[inner.start : inner.stop]
        return [coming[value] for op in inside for value in op.inputs if value in coming]

    def _wait(self, region: Region, direction: str, now: float, ends: Iterable[float]) -> float:
        until = max([now, *ends])
        key = region.index, direction
        self.waited[key] = self.waited.get(key, 0.0) + until - now
        return until

    def _seconds(self, op: Op) -> float:
        prices = self.prices
        value = self.program.values[op.outputs[0]] if op.outputs else None
        if value is not None and is_transfer(op):
            rate = self.host.rate(cast("Direction", op.primitive))
            seconds = self.host.latency_seconds + value.bytes / prices.machine.chips / rate
            return seconds * op.weight
        alike = prices.priced_by(op), op.trips, op.weight
        if alike not in self.known:
            self.known[alike] = prices.ideal_seconds([[op.index]]) / op.trips
        return self.known[alike]
