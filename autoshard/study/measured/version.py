"""The version of all that prices a run: so that a page says which prices are of an earlier one."""

from __future__ import annotations

import functools
import zlib
from importlib import resources

PRICING = (
    *("machine", "program", "cost", "solve", "plan", "xla", "problem", "search", "models"),
    "study/measured",
)
"""Packages by which a run is priced."""
SHOWING = ("page.py", "summary.py")
"""Modules among them that only show prices."""


@functools.cache
def version(*more: str) -> str:
    """A checksum of the sources by which runs are priced, eight digits.

    Args:
      more: folders of the package beside `PRICING`.
    """
    found = 0
    for package in (*PRICING, *more):
        root = resources.files("autoshard") / package
        with resources.as_file(root) as folder:
            paths = sorted(path for path in folder.rglob("*") if path.suffix in (".py", ".toml"))
            for path in paths:
                if path.name not in SHOWING:
                    found = zlib.crc32(path.read_bytes(), found)
    return f"{found:08x}"
