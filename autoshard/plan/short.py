"""A plan in a few lines, as `print(plan)` shows it; `autoshard.plan.text.page` has all of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from autoshard.plan.records import Baseline, Estimate, Move, Proof
from autoshard.units import counted, format_bytes, format_gap, format_seconds

MOST = 4
"""Kinds of collectives that are named."""


def short_report(
    title: str,
    estimate: Estimate,
    proof: Proof,
    moves: Sequence[Move],
    baselines: Sequence[Baseline],
    limit: float,
    throughput: Sequence[str] = (),
) -> str:
    """What the step takes, what fits, how sure that is, and what is moved: a line each.

    Args:
      title: program, machine and mesh.
      estimate, proof, moves, baselines: of the plan.
      limit: bytes per device that it may use.
      throughput: tokens a second and MFU, as far as they are known.
    """
    exposed = sum(move.exposed_seconds for move in moves)
    lines = [
        f"step: {format_seconds(estimate.step_seconds)}, of which "
        f"{format_seconds(exposed)} waits for collectives",
        *([f"throughput: {', '.join(throughput)}"] if throughput else []),
        f"memory: {format_bytes(estimate.expected_bytes)} of {format_bytes(limit)} per device",
        f"proof: no plan in the space is faster than {format_seconds(proof.bound)}, "
        f"a gap of {format_gap(proof.gap)}",
    ]
    known = [(row.step_seconds, row.name) for row in baselines if row.step_seconds is not None]
    if known and estimate.step_seconds > 0:
        seconds, name = min(known)
        ratio = seconds / estimate.step_seconds
        lines.append(f"best scheme: {name}, {format_seconds(seconds)}, {ratio:.3f} times as long")
    lines.append(f"collectives: {_collectives(moves)}")
    return "\n".join([title, *(f"  {line}" for line in lines)])


def _collectives(moves: Sequence[Move]) -> str:
    summed: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for move in moves:
        entry = summed[f"{move.kind} over {', '.join(move.axes)}"]
        entry[0] += move.exposed_seconds
        entry[1] += move.count
    ranked = sorted(summed.items(), key=lambda one: -one[1][0])
    said = [
        f"{count:,.0f} {name} ({format_seconds(seconds)})"
        for name, (seconds, count) in ranked[:MOST]
    ]
    more = [f"{counted(len(ranked) - MOST, 'more kind')}"] if len(ranked) > MOST else []
    return "; ".join([*said, *more]) or "none: every device works alone"
