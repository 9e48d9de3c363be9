"""Machines that are a little better in one respect: a rate, a fixed cost, or the overlap.

What a plan saves on them tells what binds it, and what would help most.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from autoshard.machine.machine import Machine
from autoshard.machine.network import Torus
from autoshard.machine.numbers import with_numbers
from autoshard.units import format_percent

MORE = 0.1
"""Rates grow, and fixed costs shrink, by this part; the overlap grows by this."""

MATRIX, VECTOR, BANDWIDTH = "the matrix unit", "the vector unit", "memory bandwidth"
LAUNCHES, OVERLAP = "starts of kernels", "overlap"


@dataclass(frozen=True, slots=True)
class Better:
    """A better machine.

    Attributes:
      part: what is better.
      change: how much, in words.
      is_rate: whether it is a rate, of which a machine may have more, and no fixed cost or share.
      machine: the machine.
    """

    part: str
    change: str
    is_rate: bool
    machine: Machine


def better_machines(machine: Machine, share: float = MORE) -> Iterator[Better]:
    """Every machine that is better by a share in one respect on which prices depend."""
    up, down = 1 + share, 1 - share
    more, less = f"{format_percent(share, 'g')} more", f"{format_percent(share, 'g')} less"
    chip = machine.chip

    def scaled(numbers: Mapping[str, float], factor: float) -> Machine:
        return with_numbers(machine, {path: factor * value for path, value in numbers.items()})

    peaks = {f"chip.peak_flops.{dtype}": rate for dtype, rate in chip.peak_flops.items()}
    yield Better(MATRIX, f"{more} FLOP/s of the matrix unit", True, scaled(peaks, up))
    vector = {"chip.vector_flops": chip.vector_flops}
    yield Better(VECTOR, f"{more} FLOP/s of the vector unit", True, scaled(vector, up))
    memory = {"chip.memory_bandwidth": chip.memory_bandwidth}
    yield Better(BANDWIDTH, f"{more} memory bandwidth", True, scaled(memory, up))
    if chip.launch_seconds:
        launch = {"chip.launch_seconds": chip.launch_seconds}
        yield Better(LAUNCHES, f"{less} time to start a kernel", False, scaled(launch, down))
    names = [level.name for level in machine.network]
    for number, level in enumerate(machine.network):
        if level.chips < 2:
            continue
        name = level.name if names.count(level.name) == 1 else f"{level.name} {number}"
        at = f"network[{number}]"
        if isinstance(level, Torus):
            wires = {f"{at}.link_bandwidth": level.link_bandwidth}
            latency = {f"{at}.hop_seconds": level.hop_seconds}
        else:
            wires = {f"{at}.chip_bandwidth": level.chip_bandwidth}
            if level.pair_bandwidth < float("inf"):
                wires[f"{at}.pair_bandwidth"] = level.pair_bandwidth
            latency = {
                f"{at}.latency_seconds": level.latency_seconds,
                f"{at}.start_seconds": level.start_seconds,
            }
        yield Better(name, f"{more} bandwidth of {name}", True, scaled(wires, up))
        if any(latency.values()):
            words = f"{less} latency of {name}"
            yield Better(f"latency of {name}", words, False, scaled(latency, down))
    overlap = min(machine.overlap + share, 1.0)
    if overlap > machine.overlap:
        yield Better(
            OVERLAP,
            f"{format_percent(overlap, '.3g')} instead of "
            f"{format_percent(machine.overlap, '.3g')} of what can be prefetched hidden",
            False,
            with_numbers(machine, {"overlap": overlap}),
        )
