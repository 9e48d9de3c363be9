"""Numbers with their units, as people read them."""

from __future__ import annotations

import math

_UNITS = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def format_seconds(seconds: float) -> str:
    """Four digits with a unit: `1.252 s`, `12.53 ms`, `3.100 us`."""
    if not math.isfinite(seconds):
        return "-"
    if seconds == 0:
        return "0 s"
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        # The unit changes where four digits would round up to the next one.
        if abs(seconds) >= scale * 0.99995 or unit == "us":
            number = float(f"{seconds / scale:.4g}")
            return f"{number:.{max(0, 3 - _magnitude(number))}f} {unit}"
    raise AssertionError


def format_bytes(count: float) -> str:
    """Three digits with a binary unit: `6.06 GiB`, `512 B`."""
    if not math.isfinite(count):
        return "unlimited"
    for scale, unit in _UNITS:
        if count >= scale:
            number = float(f"{count / scale:.3g}") if count < 1000 * scale else count / scale
            return f"{number:.{max(0, 2 - _magnitude(number))}f} {unit}"
    return f"{count:.0f} B"


def format_gap(gap: float) -> str:
    """A gap in percent, never rounded to nothing: `0.93 %`, `0 %`, `< 0.01 %`."""
    if not math.isfinite(gap):
        return "unknown"
    if gap <= 1e-8:
        return "0 %"
    return "< 0.01 %" if gap < 1e-4 else f"{100 * gap:.2f} %"


def _magnitude(number: float) -> int:
    return math.floor(math.log10(abs(number))) if number else 0
