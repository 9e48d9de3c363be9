"""Whether a plan fits, asked here and nowhere else.

A plan has a peak in two orders of its kernels: the solver's, in which the memory limit is a row of
the problem, and the compiler's, which differs from plan to plan (`autoshard.xla.forecast`) and may
be unknown. It fits where both peaks are within the limit, up to what sums of floats round:

    max(peak_bytes, scheduled_bytes) <= limit (1 + TOLERANCE)

`search`, `verify`, `check`, requirements, reports and sweeps ask `fits`, so they agree.
"""

from __future__ import annotations

import math

from autoshard.machine.host import Host
from autoshard.plan.plan import Estimate
from autoshard.units import format_bytes

TOLERANCE = 1e-9
"""Relative: what sums of floats round."""


def needed_bytes(estimate: Estimate) -> int:
    """Bytes per device that a plan needs, in whichever order it takes more."""
    return max(estimate.peak_bytes, estimate.scheduled_bytes or 0)


def within(size: float, limit: float) -> bool:
    """Whether so many bytes are within a limit."""
    return size <= limit * (1 + TOLERANCE)


def fits(estimate: Estimate, limit: float) -> bool:
    """Whether a plan fits a memory limit, bytes per device, in both orders."""
    return within(needed_bytes(estimate), limit)


def fits_host(estimate: Estimate, host: Host | None) -> bool:
    """Whether what a plan keeps in the memory of hosts is within that of a device's part."""
    return host is None or within(estimate.host_bytes, host.bytes_per_chip)


def limit_for(size: float) -> str:
    """The least limit that so many bytes are within, as on the command line: `36MiB`."""
    unit, name = (2**20, "MiB") if size >= 2**24 else (2**10, "KiB")
    return f"{math.ceil(size / unit)}{name}"


def refusal(estimate: Estimate, limit: float) -> str:
    """Why a plan does not fit, and the limit under which it would."""
    size, other = needed_bytes(estimate), min(estimate.peak_bytes, estimate.expected_bytes)
    orders = ("solver's", "compiler's")
    most, least = orders if size == estimate.peak_bytes else orders[::-1]
    text = f"it needs {format_bytes(size)} of {format_bytes(limit)} per device"
    if estimate.scheduled_bytes is not None and size != other:
        text += f", in the {most} order ({format_bytes(other)} in the {least})"
    return f"{text}: --memory-limit {limit_for(size)} is enough"
