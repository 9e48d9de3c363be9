"""Transfers to the memory of hosts and from it, as a table of a plan's page."""

from __future__ import annotations

from collections.abc import Sequence

from autoshard.plan.plan import Plan
from autoshard.plan.records import Transfer
from autoshard.units import format_bytes, format_seconds

Rows = list[tuple[str, ...]]


def transfer_rows(plan: Plan) -> Rows:
    """A heading, and a row for all transfers of one type that come from one line."""
    if not plan.transfers:
        return []
    groups: dict[tuple[str, str, str], list[Transfer]] = {}
    for one in plan.transfers:
        groups.setdefault((one.kind, one.value, one.line), []).append(one)
    rows: Rows = [("host memory", "exposed", "seconds", "times", "bytes each", "", "")]
    ordered = sorted(groups.items(), key=lambda item: -sum(one.seconds for one in item[1]))
    for (kind, value, line), members in ordered:
        rows.append((*_row(kind, members), value, line))
    return rows


def _row(kind: str, members: Sequence[Transfer]) -> tuple[str, ...]:
    return (
        kind,
        format_seconds(sum(one.exposed_seconds for one in members)),
        format_seconds(sum(one.seconds for one in members)),
        f"{sum(one.count for one in members):,}",
        format_bytes(members[0].bytes),
    )


def exposed_seconds(plan: Plan) -> tuple[float, float]:
    """Seconds a step of collectives, and of transfers, that nothing hides."""
    moved = sum(one.exposed_seconds for one in plan.transfers)
    waited = plan.estimate.step_seconds - plan.estimate.compute_seconds
    return max(waited - moved, 0.0), moved


def header_rows(plan: Plan) -> list[tuple[str, str, str]]:
    """What lies in the host's memory, and what of the transfers adds to the step."""
    if not plan.transfers and not plan.estimate.host_bytes:
        return []
    _, exposed = exposed_seconds(plan)
    seconds, held = plan.estimate.transfer_seconds, plan.estimate.host_bytes
    return [
        ("transfers", format_seconds(seconds), f"{format_seconds(exposed)} of it exposed"),
        ("host memory", format_bytes(held), "per device, at the most"),
    ]
