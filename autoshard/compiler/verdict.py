"""Predicted beside compiled: collectives, memory and seconds of a plan, and what is wrong.

Four things refute a plan: a collective right after partitioning that the plan does not have, other
transfers to the host's memory or from it than it has, and a peak or a step that is off by more than
a tolerance. The CPU's compiler judges neither, since the
plan is for another machine and it knows no times.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from autoshard.compiler.compiled import Compiled
from autoshard.compiler.hlo.collectives import WIRE_SHARES
from autoshard.compiler.moves import compare_moves
from autoshard.lower.compare import Comparison, Tally
from autoshard.plan.plan import Plan
from autoshard.terminal import columns
from autoshard.units import format_bytes, format_percent, format_seconds

MEMORY_TOLERANCE = 0.2
"""How far the compiled peak may be from the predicted one, as a share of that."""

SMALLEST_DIFFERENCE = 2**24
"""Bytes by which peaks may always differ: what compilers take for themselves, however small the
program (XLA:TPU keeps some MiB for spilled registers and semaphores)."""

STEP_TOLERANCE = 0.5
"""How far the compiled step may be from the predicted one, as a share of that. Both are estimates:
plans of the built-in programs are within 20 %; what is counted wrongly is off by multiples."""

SHORTEST_DIFFERENCE = 1e-4
"""Seconds by which steps may always differ: what is launched beside the kernels that are priced."""


def planned_wire_bytes(plan: Plan) -> Iterator[tuple[tuple[str, ...], float]]:
    """Bytes that a device sends in a step, by the axes of each of the plan's collectives."""
    sizes = dict(zip(plan.mesh.names, plan.mesh.sizes, strict=True))
    for move in plan.moves:
        if move.kind != "all_slice":
            group = math.prod(sizes[axis] for axis in move.axes)
            share = WIRE_SHARES.get(move.kind, lambda _: 1.0)(group)
            sent = move.bytes if move.sent_bytes is None else move.sent_bytes
            yield _in_order(move.axes, sizes), move.count * sent * share


@dataclass(frozen=True, slots=True)
class CompileVerdict:
    """A plan and what a compiler made of it.

    Attributes:
      plan, compiled: the two sides.
      comparison: moves and collectives right after partitioning.
      memory_tolerance: a share of the predicted peak.
      step_tolerance: a share of the predicted seconds.
    """

    plan: Plan
    compiled: Compiled
    comparison: Comparison
    memory_tolerance: float = MEMORY_TOLERANCE
    step_tolerance: float = STEP_TOLERANCE

    @property
    def involuntary(self) -> tuple[Tally, ...]:
        """Collectives that were made and not planned."""
        return self.comparison.unplanned

    @property
    def transfers(self) -> Mapping[tuple[str, int], tuple[int, int]]:
        """How often transfers run, planned and compiled, by kind and bytes."""
        table: dict[tuple[str, int], list[int]] = {}
        for column, side in enumerate((self.plan.transfers, self.compiled.transfers)):
            for one in side:
                table.setdefault((one.kind, one.bytes), [0, 0])[column] += one.count
        return {key: (planned, found) for key, (planned, found) in sorted(table.items())}

    @property
    def transfers_agree(self) -> bool:
        """Whether just the planned transfers are made; the CPU has but one memory."""
        if self.compiled.kind == "cpu":
            return True
        return all(planned == found for planned, found in self.transfers.values())

    @property
    def peak_agrees(self) -> bool:
        """Whether the peaks are as near as they should be."""
        if self.compiled.kind == "cpu":
            return True
        predicted = self.plan.estimate.expected_bytes
        allowed = max(self.memory_tolerance * predicted, SMALLEST_DIFFERENCE)
        return abs(self.compiled.memory.peak_bytes - predicted) <= allowed

    @property
    def step_agrees(self) -> bool:
        """Whether the seconds of a step are as near as they should be."""
        timeline = self.compiled.timeline
        if self.compiled.kind == "cpu" or timeline is None:
            return True
        predicted = self.plan.estimate.expected_seconds
        allowed = max(self.step_tolerance * predicted, SHORTEST_DIFFERENCE)
        return abs(timeline.seconds - predicted) <= allowed

    @property
    def agrees(self) -> bool:
        """Whether nothing refutes the plan."""
        agree = self.transfers_agree and self.peak_agrees and self.step_agrees
        return not self.involuntary and agree

    @property
    def faults(self) -> list[str]:
        """Everything that refutes the plan."""
        faults = [
            f"involuntary {tally.kind}({','.join(tally.axes)}), {tally.bytes:,} B x "
            f"{tally.found - tally.planned:,}, at {tally.found_at[0] if tally.found_at else '?'}"
            for tally in self.involuntary
        ]
        if not self.transfers_agree:
            faults += [
                f"{kind} of {size:,} B: {found:,} instead of {planned:,}"
                for (kind, size), (planned, found) in self.transfers.items()
                if found != planned
            ]
        if not self.peak_agrees:
            predicted, found = self.plan.estimate.expected_bytes, self.compiled.memory.peak_bytes
            faults.append(
                f"the compiled peak of {format_bytes(found)} is more than "
                f"{format_percent(self.memory_tolerance, '.0f')} from the predicted "
                f"{format_bytes(predicted)}"
            )
        if not self.step_agrees and self.compiled.timeline is not None:
            expected, took = self.plan.estimate.expected_seconds, self.compiled.timeline.seconds
            faults.append(
                f"the compiled step of {format_seconds(took)} is more than "
                f"{format_percent(self.step_tolerance, '.0f')} from the predicted "
                f"{format_seconds(expected)}"
            )
        return faults

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "agrees": self.agrees,
            "faults": self.faults,
            "memory_tolerance": self.memory_tolerance,
            "step_tolerance": self.step_tolerance,
            "predicted": asdict(self.plan.estimate),
            "compiled": self.compiled.to_json(),
            "collectives": [asdict(tally) for tally in self.comparison.tallies],
            "wire_bytes": [
                {"axes": list(axes), "predicted": a, "partitioned": b, "final": c}
                for axes, (a, b, c) in self.wire_bytes().items()
            ],
        }

    def wire_bytes(self) -> Mapping[tuple[str, ...], tuple[float, float, float]]:
        """Bytes that a device sends in a step by axes: predicted, partitioned and final."""
        columns = [
            planned_wire_bytes(self.plan),
            *(
                ((one.axes, one.count * one.wire_bytes) for one in side)
                for side in (self.compiled.partitioned, self.compiled.final)
            ),
        ]
        table: dict[tuple[str, ...], list[float]] = {}
        for number, column in enumerate(columns):
            for axes, size in column:
                table.setdefault(axes, [0.0, 0.0, 0.0])[number] += size
        return {axes: (a, b, c) for axes, (a, b, c) in sorted(table.items())}

    def __str__(self) -> str:
        return "\n\n".join(
            part for part in (self._sides(), self._wires(), str(self.comparison)) if part
        )

    def _sides(self) -> str:
        estimate, compiled = self.plan.estimate, self.compiled
        memory, time = compiled.memory, compiled.timeline
        rows: list[tuple[str, ...]] = [("", "predicted", "compiled", "")]
        if time is not None:
            exposed = estimate.expected_seconds - estimate.compute_seconds
            waited = "collectives and transfers" if self.plan.transfers else "collectives"
            rows += [
                _row("step", estimate.expected_seconds, time.seconds, format_seconds),
                _row("  compute", estimate.compute_seconds, time.compute_seconds, format_seconds),
                *self._again(),
                _row(
                    "  collectives, none hidden",
                    estimate.collective_seconds,
                    time.collective_seconds,
                    format_seconds,
                ),
                _row(f"  {waited}, exposed", exposed, time.exposed_seconds, format_seconds),
            ]
        rows += [
            _row("peak", estimate.expected_bytes, memory.peak_bytes, format_bytes),
            ("  arguments", "", format_bytes(memory.argument_bytes), ""),
            ("  results beside them", "", format_bytes(_own_output(compiled)), ""),
            ("  temporaries", "", format_bytes(memory.temporary_bytes), ""),
        ]
        if self.plan.transfers or memory.host_bytes:
            predicted = estimate.host_bytes
            rows.append(_row("in host memory", predicted, memory.host_bytes, format_bytes))
        for (kind, size), (planned, found) in self.transfers.items():
            name = f"  {kind}, {format_bytes(size)}"
            rows.append((name, f"{planned:,} times", f"{found:,} times", ""))
        cached = ", kept from then" if compiled.from_cache else ""
        heading = (
            f"by XLA:{compiled.kind.upper()} for {compiled.device_kind} in "
            f"{compiled.compile_seconds:.1f} s{cached}; seconds: {compiled.basis}"
        )
        return "\n".join([heading, *columns(rows, right=(1, 2, 3))])

    def _again(self) -> list[tuple[str, ...]]:
        """What XLA's rematerialization adds, where it found too little memory."""
        time = self.compiled.timeline
        if time is None or not time.again_seconds:
            return []
        name = "    again, for want of memory (see --memory-limit)"
        return [_row(name, 0.0, time.again_seconds, format_seconds)]

    def _wires(self) -> str:
        rows: list[tuple[str, ...]] = []
        rows.append(("bytes sent by a device over", "predicted", "partitioned", "final"))
        for axes, sizes in self.wire_bytes().items():
            rows.append((",".join(axes), *map(format_bytes, sizes)))
        return "\n".join(columns(rows, right=(1, 2, 3))) if len(rows) > 1 else ""


def judge(
    plan: Plan,
    compiled: Compiled,
    *,
    memory_tolerance: float = MEMORY_TOLERANCE,
    step_tolerance: float = STEP_TOLERANCE,
) -> CompileVerdict:
    """Hold a plan to what a compiler made of it.

    Args:
      plan: whose lowering was compiled.
      compiled: as `compile_plan` gives it.
      memory_tolerance: how far the peak may be off, as a share of the predicted one.
      step_tolerance: how far the seconds of a step may be off, likewise.
    """
    comparison = compare_moves(plan.moves, compiled.partitioned, plan.mesh)
    return CompileVerdict(plan, compiled, comparison, memory_tolerance, step_tolerance)


def _own_output(compiled: Compiled) -> int:
    return compiled.memory.output_bytes - compiled.memory.alias_bytes


def _row(name: str, predicted: float, compiled: float, form: Any) -> tuple[str, str, str, str]:
    ratio = f"x {compiled / predicted:.2f}" if predicted > 0 else ""
    return name, form(predicted), form(compiled), ratio


def _in_order(axes: Iterable[str], sizes: Mapping[str, int]) -> tuple[str, ...]:
    named = set(axes)
    return tuple(axis for axis in sizes if axis in named)
