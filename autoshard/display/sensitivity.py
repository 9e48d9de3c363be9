"""What the step would take on a machine that is a little better in one respect, plan unchanged.

The decisions stay, the evaluator prices them anew; so the best plan on such a machine takes at most
that long. What a plan would be if it were searched again is another question.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from autoshard.assemble import prices_of
from autoshard.display.profile import Profile
from autoshard.evaluate import evaluate
from autoshard.machine import Machine
from autoshard.network import Level, Torus

MORE = 0.1
"""Rates grow, and fixed costs shrink, by this part; the overlap grows by this."""

MATRIX, VECTOR, BANDWIDTH = "the matrix unit", "the vector unit", "memory bandwidth"
LAUNCHES, OVERLAP = "starts of kernels", "overlap"


@dataclass(frozen=True, slots=True)
class Gain:
    """A change of the machine, what it makes better, and what the step takes then, in seconds."""

    change: str
    part: str
    step_seconds: float


def gains(found: Profile) -> tuple[Gain, ...]:
    """Every change of the machine by itself, the one that helps most first."""
    prices, plan = found.prices, found.plan
    rows = []
    for change, part, machine in better_machines(found.machine):
        anew = prices_of(plan, found.program, machine, analysed=prices.dataflow)
        estimate = evaluate(anew, plan.decisions, plan.mesh.names).estimate
        rows.append(Gain(change, part, estimate.step_seconds))
    return tuple(sorted(rows, key=lambda row: row.step_seconds))


def better_machines(machine: Machine) -> Iterator[tuple[str, str, Machine]]:
    """(the change, what it makes better, the machine) for every figure that prices depend on."""
    up, down = 1 + MORE, 1 - MORE
    more, less = f"{100 * MORE:g} % more", f"{100 * MORE:g} % less"
    chip = machine.chip
    rates = {dtype: rate * up for dtype, rate in chip.peak_flops.items()}
    for change, part, better in (
        (f"{more} FLOP/s of the matrix unit", MATRIX, replace(chip, peak_flops=rates)),
        (
            f"{more} FLOP/s of the vector unit",
            VECTOR,
            replace(chip, vector_flops=chip.vector_flops * up),
        ),
        (
            f"{more} memory bandwidth",
            BANDWIDTH,
            replace(chip, memory_bandwidth=chip.memory_bandwidth * up),
        ),
        (
            f"{less} time to start a kernel",
            LAUNCHES,
            replace(chip, launch_seconds=chip.launch_seconds * down),
        ),
    ):
        yield change, part, replace(machine, chip=better)
    for number, level in enumerate(machine.network):
        if level.chips < 2:
            continue
        for change, part, better in (
            (f"{more} bandwidth of {level.name}", level.name, level.faster(up)),
            (f"{less} latency of {level.name}", f"latency of {level.name}", _nearer(level, down)),
        ):
            levels = (*machine.network[:number], better, *machine.network[number + 1 :])
            yield change, part, replace(machine, network=levels)
    overlap = min(machine.overlap + MORE, 1.0)
    if overlap > machine.overlap:
        yield (
            f"{100 * overlap:.3g} % instead of {100 * machine.overlap:.3g} % of what can be "
            "prefetched hidden",
            OVERLAP,
            replace(machine, overlap=overlap),
        )


def _nearer(level: Level, factor: float) -> Level:
    if isinstance(level, Torus):
        return replace(level, hop_seconds=level.hop_seconds * factor)
    return replace(level, latency_seconds=level.latency_seconds * factor)
